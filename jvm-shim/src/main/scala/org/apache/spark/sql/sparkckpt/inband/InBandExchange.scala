package org.apache.spark.sql.sparkckpt.inband

import java.util.Base64

import org.json4s.{JArray, JInt, JNull, JObject, JString, JValue}
import org.json4s.jackson.JsonMethods.{compact, render}

import org.apache.spark.TaskContext
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.execution.GroupedIterator
import org.apache.spark.sql.execution.metric.SQLMetric
import org.apache.spark.sql.execution.python.inband.{InBandPythonRunner, InBandSession, KeyAndValueColumns}
import org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution
import org.apache.spark.sql.types.{StructField, StructType}

/** What an operator knows on the driver and takes along to its tasks. */
case class InBandPlan(
    spec: ProcessorSpec,
    udf: PythonUDF,
    grouping: Seq[Attribute],
    input: Seq[Attribute],
    columns: KeyAndValueColumns,
    output: Seq[Attribute],
    session: InBandSession,
    limits: InBandLimits,
    jobArtifactUUID: Option[String])

/**
 * The exchange of one task with Python, in two calls: one for the input, and one for the keys whose
 * time has come, if there are any. All access to the store is on the task's thread or under the lock.
 *
 * @param facts what else Python is told with each call
 */
final class InBandExchange(
    plan: InBandPlan,
    state: KeyState,
    operatorState: OperatorStateHolder,
    facts: JObject,
    pythonMetrics: Map[String, SQLMetric],
    lock: Object = new Object) {
  private val context = TaskContext.get()
  private val toSent = UnsafeProjection.create(nullable(plan.columns.sent), nullable(plan.input))

  /** Rows must be sorted by key. Python is not started for none. */
  def processInput(rows: Iterator[InternalRow]): Iterator[InternalRow] = {
    val keys = GroupedIterator(rows, plan.grouping, plan.input).map { case (key, rowsOfKey) =>
      SentKey(key.asInstanceOf[UnsafeRow], rowsOfKey.map(row => toSent(row)), null)
    }
    call(InBandWire.InputPhase, keys)
  }

  /** To be called when all output of the input has been taken. */
  def processExpired(): Iterator[InternalRow] = {
    val withoutValues = new KeyOnlyRows(plan)
    val expired = state.expired()
    val keys = new Iterator[SentKey] {
      override def hasNext: Boolean = lock.synchronized(expired.hasNext)
      override def next(): SentKey = {
        val next = lock.synchronized(expired.next())
        SentKey(next.key, Iterator.single(withoutValues.of(next.key)), next.timers)
      }
    }
    call(InBandWire.TimersPhase, keys)
  }

  private def call(phase: String, keys: Iterator[SentKey]): Iterator[InternalRow] =
    if (!keys.hasNext) Iterator.empty
    else {
      val inFlight = new InFlightKeys
      val limits = BatchLimits(plan.limits.batchRows, plan.limits.batchBytes)
      val input = new InBandInput(keys, state, inFlight, limits, lock)
      val runner = new InBandPythonRunner(
        plan.udf, sentSchema, plan.session, pythonMetrics, plan.jobArtifactUUID, input)
      val server = fetchServer(inFlight)
      val replies = withControl(control(phase, server))(runner.run(context))
      val output = new InBandOutput(
        replies, plan.output, state, inFlight, plan.spec.operatorState, lock)
      new Iterator[InternalRow] {
        private var ended = false
        override def next(): InternalRow = output.next()
        override def hasNext: Boolean = output.hasNext || {
          if (!ended) {
            ended = true
            server.foreach(_.close())
            output.operatorState.foreach(operatorState.set)
          }
          false
        }
      }
    }

  private def sentSchema: StructType =
    StructType(plan.columns.sent.map(a => StructField(a.name, a.dataType)))
      .add(InBandWire.FlagField)
      .add(InBandWire.StateName, state.sentSchema)

  private def fetchServer(inFlight: InFlightKeys): Option[FetchServer] = state match {
    case fetchable: FetchableState if fetchable.canBeFetched =>
      val server = new FetchServer(fetchable, inFlight, plan.session, lock)
      context.addTaskCompletionListener[Unit](_ => server.close())
      Some(server)
    case _ => None
  }

  private def control(phase: String, server: Option[FetchServer]): String = compact(render(
    JObject(
      "version" -> JInt(InBandWire.Version),
      "phase" -> JString(phase),
      "keyOffsets" -> ints(plan.columns.keys),
      "valueOffsets" -> ints(plan.columns.values),
      "timezone" -> JString(plan.session.timeZoneId),
      "runnerConf" -> JObject(
        plan.session.runnerConf.toList.map { case (key, value) => key -> JString(value) }),
      "maxRecordsPerBatch" -> JInt(plan.session.maxRecordsPerBatch),
      "batchId" -> Option(context.getLocalProperty(MicroBatchExecution.BATCH_ID_KEY))
        .map(id => JInt(id.toLong)).getOrElse(JNull),
      "completedCheckpointId" -> Option(context.getLocalProperty(InBandWire.CompletedProperty))
        .map(id => JInt(id.toLong)).getOrElse(JNull),
      "fetch" -> server.map(s => JObject(
        "port" -> JInt(s.port), "secret" -> JString(s.secret))).getOrElse(JNull),
      "operatorState" -> operatorState.get
        .map(blob => JString(Base64.getEncoder.encodeToString(blob))).getOrElse(JNull)) ~~ facts))

  private implicit class Joining(left: JObject) {
    def ~~(right: JObject): JObject = JObject(left.obj ++ right.obj)
  }

  private def ints(numbers: Seq[Int]): JValue = JArray(numbers.map(n => JInt(n)).toList)

  /**
   * Python is told of a call by a local property of the task, which Spark writes to it when the call
   * begins. Tasks of one stage may share these properties in one process.
   */
  private def withControl[T](control: String)(begin: => T): T = {
    val properties = context.getLocalProperties
    properties.synchronized {
      properties.setProperty(InBandWire.ControlProperty, control)
      try begin finally properties.remove(InBandWire.ControlProperty)
    }
  }

  private def nullable(attributes: Seq[Attribute]): Seq[Attribute] =
    attributes.map(_.withNullability(true))
}

/** Rows for keys that have none: the columns of the key are set, all others null. */
private final class KeyOnlyRows(plan: InBandPlan) {
  private val grouping = plan.grouping.map(_.withNullability(true))
  private val projection = UnsafeProjection.create(
    plan.columns.sent.map { column =>
      val index = plan.grouping.indexWhere(column.semanticEquals)
      if (index >= 0) BoundReference(index, grouping(index).dataType, nullable = true)
      else Literal(null, column.dataType)
    })

  def of(key: UnsafeRow): UnsafeRow = projection(key)
}
