package org.apache.spark.sql.sparkckpt.inband

import scala.concurrent.duration.NANOSECONDS

import org.json4s.{JBool, JInt, JObject, JString}

import org.apache.spark.JobArtifactSet
import org.apache.spark.rdd.RDD
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.encoders.ExpressionEncoder
import org.apache.spark.sql.catalyst.expressions.PythonUDF
import org.apache.spark.sql.execution.python.inband.{InBandSession, KeyAndValueColumns}
import org.apache.spark.sql.execution.python.streaming.TransformWithStateInPySparkExec
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.statefulprocessor.StatefulProcessorHandleImpl
import org.apache.spark.sql.execution.streaming.state.{NoPrefixKeyStateEncoderSpec, StateStore, StateStoreOps}
import org.apache.spark.sql.streaming.TimeMode
import org.apache.spark.sql.types.{StructField, StructType}
import org.apache.spark.util.CompletionIterator

/**
 * transformWithState of Python with its state in-band, where its function says that it can: else,
 * and for a batch with initial state, all is as Spark does it.
 */
trait InBandStatefulProcessor extends TransformWithStateInPySparkExec {

  private val spec = ProcessorSpecs.of(functionExpr, ProcessorSpecs.Processor)
  private val inBandSession = InBandSession.of(conf)
  private val limits = InBandLimits.of(conf)
  private val artifactUUID = JobArtifactSet.getCurrentJobArtifactState.map(_.uuid)
  private val keySchema =
    StructType(groupingAttributes.map(a => StructField(a.name, a.dataType, a.nullable)))
  private val keyEncoder =
    ExpressionEncoder(keySchema).resolveAndBind().asInstanceOf[ExpressionEncoder[Any]]

  /** Of Spark's, whose constructors differ between its minors. */
  protected def newHandle(
      store: StateStore, keyEncoder: ExpressionEncoder[Any]): StatefulProcessorHandleImpl

  override protected def doExecute(): RDD[InternalRow] =
    if (spec.isEmpty || !isStreaming || hasInitialState) super.doExecute()
    else {
      metrics
      validateStateStoreProvider(isStreaming)
      child.execute().mapPartitionsWithStateStore[InternalRow](
        getStateInfo,
        schemaForKeyRow,
        schemaForValueRow,
        NoPrefixKeyStateEncoderSpec(schemaForKeyRow),
        session.sqlContext.sessionState,
        Some(session.streams.stateStoreCoordinator),
        useColumnFamilies = true,
        useMultipleValuesPerKey = true)(process)
    }

  private def process(store: StateStore, rows: Iterator[InternalRow]): Iterator[InternalRow] = {
    val began = System.nanoTime
    val handle = newHandle(store, keyEncoder)
    val operatorState = OperatorStateHolder.of(spec.get, store)
    val exchange = new InBandExchange(
      plan, statesOf(store, handle), operatorState, facts, pythonMetrics)
    val output = exchange.processInput(withoutLateRows(rows)) ++ expired(exchange)
    CompletionIterator[InternalRow, Iterator[InternalRow]](output, {
      longMetric("allUpdatesTimeMs") += NANOSECONDS.toMillis(System.nanoTime - began)
      longMetric("commitTimeMs") += timeTakenMs {
        handle.doTtlCleanup()
        operatorState.save()
        store.commit()
      }
      setStoreMetrics(store, isStreaming)
      setOperatorMetrics()
    }).map { row =>
      longMetric("numOutputRows") += 1
      row
    }
  }

  private def plan: InBandPlan = InBandPlan(
    spec.get, functionExpr.asInstanceOf[PythonUDF], groupingAttributes, child.output,
    KeyAndValueColumns.of(child.output, groupingAttributes), output, inBandSession, limits,
    artifactUUID)

  private def time: ProcessorTime = ProcessorTime(
    timeMode, batchTimestampMs.getOrElse(-1L), eventTimeWatermarkForEviction.getOrElse(-1L))

  private def statesOf(store: StateStore, handle: StatefulProcessorHandleImpl): ProcessorStates =
    new ProcessorStates(
      store, handle, spec.get, keyEncoder, keySchema, time,
      new ProcessorCounts(longMetric),
      s"${getStateInfo.queryRunId}/${getStateInfo.operatorId}", limits.stateBytes)

  private def expired(exchange: InBandExchange): Iterator[InternalRow] = {
    val began = System.nanoTime
    CompletionIterator[InternalRow, Iterator[InternalRow]](exchange.processExpired(),
      longMetric("timerProcessingTimeMs") += NANOSECONDS.toMillis(System.nanoTime - began))
  }

  private def withoutLateRows(rows: Iterator[InternalRow]): Iterator[InternalRow] =
    watermarkPredicateForDataForLateEvents match {
      case Some(predicate) if timeMode == TimeMode.EventTime() =>
        applyRemovingRowsOlderThanWatermark(rows, predicate)
      case _ => rows
    }

  private def facts: JObject = JObject(
    "timeMode" -> JString(if (timeMode == TimeMode.None()) "None" else timeMode.toString),
    "batchTimestampMs" -> JInt(time.batchTimestampMs),
    "watermarkMs" -> JInt(time.watermarkMs),
    "watermarkPresent" -> JBool(eventTimeWatermarkForEviction.isDefined))
}
