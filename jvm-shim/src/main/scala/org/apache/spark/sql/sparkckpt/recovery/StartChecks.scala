package org.apache.spark.sql.sparkckpt.recovery

import java.nio.charset.StandardCharsets.UTF_8

import scala.util.Using
import scala.util.control.NonFatal

import org.apache.hadoop.fs.Path
import org.json4s.{DefaultFormats, Formats}
import org.json4s.jackson.JsonMethods.parse

import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.sparkckpt.{SparkckptConf, SparkckptErrors}
import org.apache.spark.sql.sparkckpt.recovery.SinkAheadRecovery.usesSparkckpt

/**
 * What must not be so when a query starts: on a directory that is only half restored it would start
 * from nothing, as it would on a savepoint, which is nobody's to write into; on one that another
 * query has claimed its state would be deleted under it; with a sink that is ahead of it output would
 * be lost without a word, and with an option that is not valid it would fail in a batch, or go on
 * without checkpoints. Each check throws, and writes nothing.
 */
final class StartChecks(query: StreamExecution) {
  private implicit val formats: Formats = DefaultFormats
  private val location = new Path(query.resolvedCheckpointRoot)
  private val fileSystem =
    location.getFileSystem(query.sparkSession.sessionState.newHadoopConf())

  /** Those of the application were checked when it started; a session may have set others since. */
  def requireValidOptions(): Unit = SparkckptConf.validateAll(option)

  def requireUnclaimed(): Unit = {
    val path = new Path(location, StartChecks.Claimed)
    if (fileSystem.exists(path)) throw SparkckptErrors.claimed(location.toString, claimedBy(path))
  }

  private def claimedBy(path: Path): String =
    try {
      val text = Using.resource(fileSystem.open(path))(in => new String(in.readAllBytes(), UTF_8))
      (parse(text) \ "by").extract[String]
    } catch {
      case NonFatal(_) => "another checkpointLocation"
    }

  def requireNoSavepoint(): Unit =
    if (fileSystem.exists(new Path(location, StartChecks.Savepoint))) {
      throw SparkckptErrors.startOnSavepoint(location.toString)
    }

  def requireRestored(): Unit =
    if (fileSystem.exists(new Path(location, StartChecks.Restoring))) {
      throw SparkckptErrors.restoreUnfinished(location.toString)
    }

  /**
   * A sink has no batch that was not planned, unless the checkpoint was put back to an older state.
   * A query that begins is left alone: where it writes is its own business. One with state is
   * refused in any case: the sink runs no task in a batch that it skips, and from the tasks Spark
   * learns the ids of the new state.
   */
  def requireSinkNotAhead(): Unit = for {
    (planned, offsets) <- query.offsetLog.getLatest()
    if offsets.metadataOpt.exists(usesSparkckpt)
    latest <- SinkLog.latest(query) if latest > planned
    if keepsState || !mayBeAhead
  } throw SparkckptErrors.sinkAhead(location.toString, planned, latest, keepsState)

  private lazy val keepsState: Boolean =
    query.commitLog.getLatest().exists(_._2.stateUniqueIds.exists(_.nonEmpty))

  private def mayBeAhead: Boolean = SparkckptConf.AllowSinkAhead.from(option)

  private def option(key: String): Option[String] =
    Option(query.sparkSession.sessionState.conf.getConfString(key, null))
}

object StartChecks {
  val Claimed: String = "_sparkckpt/claimed.json"
  val Savepoint: String = "_sparkckpt/savepoint.json"
  val Restoring: String = "_sparkckpt/restoring.json"
}
