package org.apache.spark.sql.sparkckpt.recovery

import scala.jdk.CollectionConverters._

import org.apache.hadoop.fs.Path

import org.apache.spark.internal.Logging
import org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
import org.apache.spark.sql.catalyst.plans.logical.{Deduplicate, GlobalLimit}
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.sparkckpt.{SparkckptConf, SparkckptErrors}
import org.apache.spark.sql.sparkckpt.coordinator.{CoordinatorService, QueryRun, StartRequest}

/**
 * What the options say is to be done to a query's checkpoint before the query starts: restore it from
 * elsewhere (`restore.path`) if it is empty, or rescale it (`rescaleOnRestart`). The coordinator does
 * it; here it is decided whether.
 *
 * It must run before the query reads its logs, and whatever it throws must end the query: one that
 * is to go on from a checkpoint must never start from nothing.
 */
final class RestoreByConf(query: StreamExecution) extends Logging {
  private val conf = query.sparkSession.sessionState.conf
  private val location = query.resolvedCheckpointRoot
  private val options: String => Option[String] = key => Option(conf.getConfString(key, null))

  /** A checkpoint that is there wins, as in Flink: the option can stay set when a query restarts. */
  def restore(): Unit = {
    val path = SparkckptConf.RestorePath.from(options)
    val name = SparkckptConf.RestoreQuery.from(options)
    if (path.nonEmpty && (name.isEmpty || name == query.name)) {
      if (hasCheckpoint) {
        logInfo(s"The query goes on from its own checkpoint in $location; $path is left alone")
      } else whyNot match {
        case Some(why) if name.isEmpty =>
          logInfo(s"The query in $location is not restored from $path: $why")
        case Some(why) => throw SparkckptErrors.notRestorable(name, why)
        case None =>
          val source = qualified(path)
          if (name.isEmpty) requireFirst(source)
          try restoreFrom(source) catch {
            case e: Throwable =>
              CoordinatorService.active.foreach(_.notRestored(source, location))
              throw e
          }
      }
    }
  }

  /** To what a new query would have now, if its offset log says otherwise. */
  def rescale(): Unit = if (SparkckptConf.RescaleOnRestart.from(options)) {
    for {
      (_, offsets) <- query.offsetLog.getLatest()
      planned <- offsets.metadataOpt if SinkAheadRecovery.usesSparkckpt(planned)
      written <- planned.conf.get(SQLConf.SHUFFLE_PARTITIONS.key) if written != parallelism.toString
    } {
      prepare(StartRequest.rescale(QueryRun.of(query), parallelism))
      // What was added to a log by this run is remembered by it, and may have been replaced.
      query.offsetLog.batchCache.clear()
      query.commitLog.batchCache.clear()
    }
  }

  private def restoreFrom(source: Path): Unit = {
    val sessionDecides = SparkckptConf.RestoreParallelism.from(options).isEmpty &&
      SparkckptConf.RescaleOnRestart.from(options)
    prepare(StartRequest.restore(
      QueryRun.of(query), source, isIdle(source), Option.when(sessionDecides)(parallelism)))
  }

  private def isIdle(source: Path): Boolean =
    !query.sparkSession.sharedState.activeStreamingQueries.values.asScala.exists { other =>
      s"$source/".startsWith(s"${other.resolvedCheckpointRoot}/")
    }

  /** The options hold for a whole session, and not every query in it is the one that is meant. */
  private def requireFirst(source: Path): Unit = CoordinatorService.active.foreach { service =>
    val first = service.firstRestored(source, location)
    if (first != location) {
      throw SparkckptErrors.restoredAlready(source.toString, first, location)
    }
  }

  private def prepare(request: StartRequest): Unit = {
    SparkckptConf.RestoreOptions.foreach(_.from(options))
    CoordinatorService.active.filter(_ => CoordinatorService.isEnabled(options)) match {
      case Some(service) =>
        // Spark's logger evaluates what it is given only if it is to be logged.
        val done = service.prepare(request)
        logInfo(done)
      case None => throw SparkckptErrors.coordinatorNeeded(request.toString)
    }
  }

  /** A restore that was interrupted may have written entries already; it is to be gone on with. */
  private def hasCheckpoint: Boolean =
    query.offsetLog.getLatestBatchId().nonEmpty && !exists("_sparkckpt/restoring.json")

  private def exists(name: String): Boolean = {
    val path = new Path(location, name)
    path.getFileSystem(query.sparkSession.sessionState.newHadoopConf()).exists(path)
  }

  private def qualified(path: String): Path = {
    val source = new Path(path)
    source.getFileSystem(query.sparkSession.sessionState.newHadoopConf()).makeQualified(source)
  }

  /** Why this query cannot be one that is restored; in a session there may be such queries too. */
  private def whyNot: Option[String] =
    if (conf.stateStoreProviderClass != SparkckptConf.ProviderClass) {
      Some(s"its state is to be kept by ${conf.stateStoreProviderClass}")
    } else if (!keepsState) Some("it keeps no state")
    else None

  private def keepsState: Boolean = query.analyzedPlan.exists {
    case deduplicate: Deduplicate => deduplicate.isStreaming
    case limit: GlobalLimit => limit.isStreaming
    case other => UnsupportedOperationChecker.isStatefulOperation(other)
  }

  /** The stream's session takes it from here, and its offset log from there. */
  private def parallelism: Int = conf.getConf(SQLConf.STATEFUL_SHUFFLE_PARTITIONS_INTERNAL)
    .getOrElse(conf.getConf(SQLConf.SHUFFLE_PARTITIONS))
}
