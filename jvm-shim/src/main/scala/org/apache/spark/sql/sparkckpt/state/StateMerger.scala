package org.apache.spark.sql.sparkckpt.state

import java.util.UUID
import java.util.concurrent.{CancellationException, ExecutorService}

import org.apache.spark.sql.sparkckpt.KeyGroupRange
import org.apache.spark.sql.sparkckpt.format._
import org.apache.spark.util.ThreadUtils

/** A finished merge: the file that can stand for these neighbours in a family's list. */
case class MergedFile(family: String, replaced: Seq[StateFileRef], file: StateFileRef, version: Long) {

  /** The list with the file in their place, if they still stand in it side by side. */
  def replaceIn(files: Seq[StateFileRef]): Option[Seq[StateFileRef]] = {
    val at = files.indexOfSlice(replaced)
    if (at < 0) None else Some(files.patch(at, Seq(file), replaced.length))
  }
}

/**
 * Merges files of a store into one. It only reads and writes files, never the working state, and what
 * it makes takes effect only when a later commit puts it into a handle in place of exactly the files
 * it was made of: so it is right whatever happens in between.
 */
final class StateMerger(
    storage: StateStorage, options: StateFileOptions, range: KeyGroupRange, isClosed: () => Boolean) {

  /** @param version of the handle the files come from; it names the file's age to a cleaner */
  def merge(
      family: ColumnFamily,
      description: StateFamily,
      files: Seq[StateFileRef],
      plan: MergePlan,
      version: Long): MergedFile = {
    if (isClosed()) throw new CancellationException("store closed")
    val replaced = files.slice(plan.from, plan.until)
    val path = storage.mergePath(version, UUID.randomUUID().toString, family.name)
    val out = storage.create(path)
    try {
      val writer = new StateFileWriter(out, description, options)
      val summary = try {
        var rows = 0L
        StateMerger.foreachCursors(storage, replaced, range, family) { cursors =>
          KeyGroupMerge.ofFiles(cursors, family.multiValued, plan.complete).foreach { (keyGroup, op, key, value) =>
            rows += 1
            if ((rows & 0xfff) == 0 && isClosed()) throw new CancellationException("store closed")
            writer.write(keyGroup, op, key, value)
          }
        }
        writer.finish()
      } finally writer.close()
      out.close()
      MergedFile(family.name, replaced, StateFileRef(
        path, 0, summary.length, summary.tailLength, summary.tailCrc32, summary.rows,
        math.max(summary.firstKeyGroup, 0), math.max(summary.lastKeyGroup, 0),
        replaced.map(_.firstVersion).min, replaced.map(_.lastVersion).max,
        replaced.map(_.level).max + 1, plan.complete), version)
    } catch {
      case e: Throwable => out.cancel(); throw e
    }
  }
}

object StateMerger {
  /** One pool per executor: merges must not multiply with the number of stores. */
  lazy val pool: ExecutorService =
    ThreadUtils.newDaemonCachedThreadPool("sparkckpt-merge", maxThreadNumber = 2)

  /**
   * Opens the files that overlap the range, oldest first, for the time of `body`; files of different
   * key groups one after the other, in ascending key groups.
   */
  def foreachCursors(
      storage: StateStorage,
      files: Seq[StateFileRef],
      range: KeyGroupRange,
      family: ColumnFamily)(body: Seq[StateFileReader] => Unit): Unit =
    Slices.disjoint(files, range).foreach { group =>
      val opened = scala.collection.mutable.ArrayBuffer.empty[StateFileReader]
      try {
        group.foreach { file =>
          opened += storage.open(file, range, family.keySchema, family.valueSchema)
        }
        body(opened.toSeq)
      } finally opened.foreach(_.close())
    }
}
