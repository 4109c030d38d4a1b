package org.apache.spark.sql.sparkckpt.state

import scala.util.control.NonFatal

import org.apache.spark.internal.Logging
import org.apache.spark.sql.sparkckpt.format.{StateFileName, StateStorage}

/**
 * Deletes the files of one store that no version Spark can still ask for consists of. Spark keeps the
 * last `retained` batches; the oldest handle of those names all older files that are still needed,
 * since every later version descends from it.
 *
 * It sees only the handles of its own store. Where others may need the store's files, because the
 * checkpoint was rescaled, restored or pinned, it deletes nothing: that takes a coordinator.
 *
 * @param adoptionWindow for so many versions a merged file may wait to be named by a handle
 */
final class StateCleaner(storage: StateStorage, retained: Int, adoptionWindow: Int) extends Logging {

  private var cleanedUpTo = 0L

  /** @param committed a version that Spark has committed */
  def clean(committed: Long): Unit = {
    val oldest = committed - retained
    if (oldest > cleanedUpTo && !storage.isShared) {
      cleanedUpTo = oldest
      val names = storage.list()
      val handles = names.filter(n => n.isHandle && n.version == oldest)
      // Without a handle of the oldest version there is no telling what it needs: keep everything.
      if (handles.nonEmpty) {
        val needed = handles.flatMap(n => storage.readHandle(n.version, n.id).paths).toSet
        StateCleaner.deletable(names, needed, oldest, adoptionWindow).foreach { name =>
          try storage.delete(name.path) catch {
            case NonFatal(e) => logWarning(s"Deleting ${name.path} failed; it is tried again", e)
          }
        }
      }
    }
  }
}

object StateCleaner {
  def deletable(
      names: Seq[StateFileName],
      needed: Set[String],
      oldest: Long,
      adoptionWindow: Int): Seq[StateFileName] = names.filter { name =>
    val expired = if (name.isMerge) name.version + adoptionWindow < oldest else name.version < oldest
    expired && !needed.contains(name.path)
  }
}
