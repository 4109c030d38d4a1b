package org.apache.spark.sql.sparkckpt.state

import java.util.concurrent.{CancellationException, CompletableFuture, ConcurrentLinkedQueue}
import java.util.concurrent.atomic.AtomicLong

import scala.collection.mutable
import scala.util.control.NonFatal

import org.apache.spark.internal.Logging
import org.apache.spark.sql.execution.streaming.state.{StateStoreCustomMetric, StateStoreId}
import org.apache.spark.sql.sparkckpt.format._

/**
 * Runs the merges of one store beside its batches. A merge starts from a handle whose id Spark has
 * named, hence one that was committed, and its result waits here for the next commit to adopt it.
 *
 * It does not wait for Spark's maintenance interval, a minute by default: a stream of short batches
 * would pile up dozens of files in that time.
 */
final class BackgroundMerges(
    storeId: StateStoreId,
    policy: MergePolicy,
    merger: StateMerger,
    storage: StateStorage,
    adoptionWindow: Int) extends Logging {

  private val finished = new ConcurrentLinkedQueue[MergedFile]
  private val mergeTimeMs = new AtomicLong
  private val mergedBytes = new AtomicLong
  private val mergedFiles = new AtomicLong
  @volatile private var running: CompletableFuture[Void] = CompletableFuture.completedFuture(null)

  /**
   * Starts what the policy asks for, unless a merge is running or waits to be adopted.
   *
   * @param justLoaded the batch has had to load its state first: merges that can wait for the next one
   *                   leave it the processor
   */
  def consider(
      handle: StateHandle,
      families: Seq[(ColumnFamily, StateFamily)],
      justLoaded: Boolean): Unit = {
    val plans = families.flatMap { case (family, description) =>
      val files = handle.filesOf(family.name)
      policy.plan(files).map(plan => (family, description, files, plan))
    }.filterNot { case (_, _, files, plan) =>
      justLoaded && !mustAdopt(handle) && ownFiles(files, plan) < 2 * policy.maxDeltas
    }
    if (plans.nonEmpty && finished.isEmpty) {
      val tooMany = plans.exists { case (_, _, files, plan) =>
        ownFiles(files, plan) >= BackgroundMerges.HardLimit * policy.maxDeltas
      }
      if (running.isDone) {
        running = CompletableFuture.runAsync(() => plans.foreach {
          case (family, description, files, plan) => run(handle, family, description, files, plan)
        }, StateMerger.pool)
      }
      // Batches that outrun the merges must wait for them, or loads would become ever slower.
      if (tooMany) await()
    }
  }

  /** What a rescaled store has inherited from others it has at once, and will not get more of. */
  private def ownFiles(files: Seq[StateFileRef], plan: MergePlan): Int =
    files.slice(plan.from, plan.until).count(storage.isOwn)

  /**
   * Whether the next version must not depend on another checkpoint's files any more. The first version
   * after a restore may: its batch is the one that people wait for.
   */
  def mustAdopt(base: StateHandle): Boolean =
    !Manifest.isManifest(base.id) && base.families.exists(_.files.exists(_.isForeign))

  private def run(
      handle: StateHandle,
      family: ColumnFamily,
      description: StateFamily,
      files: Seq[StateFileRef],
      plan: MergePlan): Unit = {
    val start = System.nanoTime()
    try {
      val merged = merger.merge(family, description, files, plan, handle.version)
      mergedBytes.addAndGet(merged.file.length)
      mergedFiles.incrementAndGet()
      finished.add(merged)
    } catch {
      case _: CancellationException =>
      case e: Throwable if NonFatal(e) || e.isInstanceOf[OutOfMemoryError] =>
        logWarning(s"Merging files of $storeId failed; the state is as it was. It is tried again " +
          "with one of the next batches.", e)
    } finally mergeTimeMs.addAndGet((System.nanoTime() - start) / 1000000)
  }

  /**
   * The merges that a commit of `version` may adopt. One that is too old is dropped: a cleaner may
   * take a file that no handle has named for so long for an orphan.
   */
  def takeFinished(version: Long): Seq[MergedFile] = {
    val taken = mutable.ArrayBuffer.empty[MergedFile]
    var next = finished.poll()
    while (next != null) {
      if (version - next.version <= adoptionWindow) taken += next else discard(next)
      next = finished.poll()
    }
    taken.toSeq
  }

  def takeMetrics(): Map[StateStoreCustomMetric, Long] = Map(
    StateMetrics.MergeTime -> mergeTimeMs.getAndSet(0),
    StateMetrics.MergedBytes -> mergedBytes.getAndSet(0))

  def await(): Unit = running.join()

  /** No handle names what has not been adopted by now, and none will. */
  def close(): Unit = try await() finally {
    var next = finished.poll()
    while (next != null) {
      discard(next)
      next = finished.poll()
    }
  }

  private def discard(merged: MergedFile): Unit = try storage.delete(merged.file.path) catch {
    case NonFatal(e) => logWarning(s"Deleting ${merged.file.path} failed; a cleaner will", e)
  }
}

object BackgroundMerges {
  /** In multiples of the files that make a merge due. */
  private val HardLimit = 4
}
