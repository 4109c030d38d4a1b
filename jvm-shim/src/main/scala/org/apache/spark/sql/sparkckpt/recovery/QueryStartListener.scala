package org.apache.spark.sql.sparkckpt.recovery

import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.sparkckpt.coordinator.{CoordinatorService, QueryRun}
import org.apache.spark.sql.sparkckpt.recovery.SinkAheadRecovery.usesSparkckpt
import org.apache.spark.sql.streaming.StreamingQueryListener
import org.apache.spark.sql.streaming.StreamingQueryListener._

/**
 * Looks at a query's checkpoint before the query does: Spark calls `onQueryStarted`, and no other
 * method of a listener, on the stream's own thread, after the query has its id and before it reads
 * its logs. What it throws Spark swallows, unless it is a [[QueryStartFailure]].
 */
class QueryStartListener extends StreamingQueryListener {
  override def onQueryStarted(event: QueryStartedEvent): Unit =
    SparkSession.getActiveSession.orElse(SparkSession.getDefaultSession)
      .flatMap(session => Option(session.sharedState.activeStreamingQueries.get(event.id)))
      .foreach { query =>
        QueryStartFailure.orStop(query, event)(prepare(query))
        // One that was stopped meanwhile may have left its restore to be gone on with.
        if (query.isActive) announce(query)
      }

  /** What it throws ends the query before its logs are read. */
  private def prepare(query: StreamExecution): Unit = {
    val checks = new StartChecks(query)
    val byConf = new RestoreByConf(query)
    checks.requireValidOptions()
    checks.requireNoSavepoint()
    checks.requireUnclaimed()
    byConf.restore()
    checks.requireRestored()
    checks.requireSinkNotAhead()
    // Looks for handles by the ids they are based on, which rescaling replaces in the commit log.
    SinkAheadRecovery.recover(query)
    byConf.rescale()
  }

  /**
   * What a checkpoint was begun with, its offset log tells: so the coordinator can clean up after a
   * former run even if this one finds nothing to do. A new query is announced by its first batch.
   */
  private def announce(query: StreamExecution): Unit = {
    val conf = query.sparkSession.sessionState.conf
    val enabled = CoordinatorService.isEnabled(key => Option(conf.getConfString(key, null)))
    if (enabled && query.offsetLog.getLatest().exists(_._2.metadataOpt.exists(usesSparkckpt))) {
      CoordinatorService.active.foreach(_.queryStarted(query.runId, QueryRun.of(query)))
    }
  }

  override def onQueryProgress(event: QueryProgressEvent): Unit = ()
  override def onQueryTerminated(event: QueryTerminatedEvent): Unit = ()
}
