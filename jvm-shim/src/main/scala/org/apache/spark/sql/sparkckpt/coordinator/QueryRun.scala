package org.apache.spark.sql.sparkckpt.coordinator

import java.util.UUID

import scala.jdk.CollectionConverters._

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.json4s.{JBool, JInt, JObject, JString}

import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorStateInfo
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.sparkckpt.SparkckptConf

/**
 * One run of a query on this backend: what the coordinator must know to look after its checkpoints.
 *
 * @param options the session's sparkckpt options by their short names
 */
final case class QueryRun(
    runId: UUID,
    queryId: UUID,
    name: Option[String],
    checkpointLocation: String,
    options: Map[String, String],
    minBatchesToRetain: Int,
    hadoopConf: Configuration) {

  /** With `isResumed` a coordinator is started anew for it, and the run may have been overtaken. */
  def startFrame(isResumed: Boolean): Frame = Frame("query_started",
    "runId" -> JString(runId.toString),
    "queryId" -> JString(queryId.toString),
    "name" -> JString(name.getOrElse("")),
    "checkpointLocation" -> JString(checkpointLocation),
    "conf" -> JObject(options.toList.sorted.map { case (k, v) => k -> JString(v) }),
    "minBatchesToRetain" -> JInt(minBatchesToRetain),
    "isResumed" -> JBool(isResumed))
}

object QueryRun {
  private val Internal = "internal."

  /** The run that plans a batch in this session of its own. */
  def of(session: SparkSession, stream: StatefulOperatorStateInfo): QueryRun = {
    val query = session.sharedState.activeStreamingQueries.values.asScala
      .find(_.runId == stream.queryRunId)
    of(session, stream.queryRunId, query.map(_.id).getOrElse(stream.queryRunId),
      query.flatMap(q => Option(q.name)), new Path(stream.checkpointLocation).getParent)
  }

  /** The run of a query that starts. */
  def of(query: StreamExecution): QueryRun =
    of(query.sparkSession, query.runId, query.id, Option(query.name),
      new Path(query.resolvedCheckpointRoot))

  private def of(
      session: SparkSession,
      runId: UUID,
      queryId: UUID,
      name: Option[String],
      checkpoint: Path): QueryRun = {
    val conf = session.sessionState.conf
    val options = conf.getAllConfs.collect {
      case (key, value) if key.startsWith(SparkckptConf.Prefix) =>
        key.stripPrefix(SparkckptConf.Prefix) -> value
    }.filterNot(_._1.startsWith(Internal))
    QueryRun(runId, queryId, name, checkpoint.toString, options, conf.minBatchesToRetain,
      session.sessionState.newHadoopConf())
  }
}
