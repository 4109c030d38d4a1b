package org.apache.spark.sql.sparkckpt.coordinator

import org.apache.spark.sql.streaming.StreamingQueryListener
import org.apache.spark.sql.streaming.StreamingQueryListener._

/**
 * Tells the coordinator of committed batches and ended queries; the plugin names it in the conf, so
 * that every session has one. Its events may be late or lost: the commit log is the truth.
 */
class CoordinatorQueryListener extends StreamingQueryListener {
  /** A run is announced elsewhere, as soon as it is known to be on this backend. */
  override def onQueryStarted(event: QueryStartedEvent): Unit = ()

  override def onQueryProgress(event: QueryProgressEvent): Unit = {
    val progress = event.progress
    // A trigger that found nothing to do reports the number of the batch that would come next.
    if (progress.durationMs.containsKey("addBatch")) {
      CoordinatorService.active.foreach(_.batchCommitted(progress.runId, progress.batchId))
    }
  }

  override def onQueryTerminated(event: QueryTerminatedEvent): Unit =
    CoordinatorService.active.foreach(_.queryEnded(event.runId, event.exception))
}
