package org.apache.spark.sql.sparkckpt.inband

import org.json4s.{JBool, JInt, JObject, JString}

import org.apache.spark.{JobArtifactSet, SparkUnsupportedOperationException}
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{Attribute, Expression, PythonUDF}
import org.apache.spark.sql.catalyst.plans.logical.{EventTimeTimeout, ProcessingTimeTimeout}
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.python.inband.{InBandSession, KeyAndValueColumns}
import org.apache.spark.sql.execution.python.streaming.FlatMapGroupsInPandasWithStateExec
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorStateInfo
import org.apache.spark.sql.execution.streaming.operators.stateful.flatmapgroupswithstate.FlatMapGroupsWithStateExecHelper.StateData
import org.apache.spark.sql.execution.streaming.operators.stateful.flatmapgroupswithstate.GroupStateImpl.NO_TIMESTAMP
import org.apache.spark.sql.execution.streaming.state.StateStore
import org.apache.spark.sql.streaming.{GroupStateTimeout, OutputMode}
import org.apache.spark.sql.types.StructType

/**
 * applyInPandasWithState with its state in-band. Only how a partition's rows are processed is other
 * than Spark's; late rows, the order of input and timeouts, commit and metrics are its parent's.
 */
class InBandGroupsWithStateExec(
    functionExpr: Expression,
    groupingAttributes: Seq[Attribute],
    outAttributes: Seq[Attribute],
    stateType: StructType,
    stateInfo: Option[StatefulOperatorStateInfo],
    stateFormatVersion: Int,
    outputMode: OutputMode,
    timeoutConf: GroupStateTimeout,
    batchTimestampMs: Option[Long],
    eventTimeWatermarkForLateEvents: Option[Long],
    eventTimeWatermarkForEviction: Option[Long],
    skipEmittingInitialStateKeys: Boolean,
    child: SparkPlan)
  extends FlatMapGroupsInPandasWithStateExec(
    functionExpr, groupingAttributes, outAttributes, stateType, stateInfo, stateFormatVersion,
    outputMode, timeoutConf, batchTimestampMs, eventTimeWatermarkForLateEvents,
    eventTimeWatermarkForEviction, skipEmittingInitialStateKeys, child) {

  private val spec = ProcessorSpecs.of(functionExpr, ProcessorSpecs.Groups)
  private val inBandSession = InBandSession.of(conf)
  private val limits = InBandLimits.of(conf)
  private val artifactUUID = JobArtifactSet.getCurrentJobArtifactState.map(_.uuid)
  private def plan = InBandPlan(
    spec.get, functionExpr.asInstanceOf[PythonUDF], groupingAttributes, child.output,
    KeyAndValueColumns.of(groupingAttributes ++ needed, groupingAttributes), outAttributes,
    inBandSession, limits, artifactUUID)

  private def needed: Seq[Attribute] =
    spec.get.columns.fold(child.output)(names => child.output.filter(a => names(a.name)))

  override def createInputProcessor(store: StateStore): InputProcessor = new InputProcessor(store) {
    private val states = new GroupStates(
      store, stateType, storesTimeout = isTimeoutEnabled, threshold, numUpdatedStateRows,
      numRemovedStateRows)
    private val operatorState = OperatorStateHolder.of(spec.get, store)
    private val exchange = new InBandExchange(plan, states, operatorState, facts, pythonMetrics)

    override def processNewData(rows: Iterator[InternalRow]): Iterator[InternalRow] =
      counted(exchange.processInput(rows))

    override def processTimedOutState(): Iterator[InternalRow] =
      operatorState.savedAfter(counted(exchange.processExpired()))

    private def counted(rows: Iterator[InternalRow]): Iterator[InternalRow] = rows.map { row =>
      numOutputRows += 1
      row
    }

    override def processNewDataWithInitialState(
        childDataIter: Iterator[InternalRow],
        initStateIter: Iterator[InternalRow],
        skipEmittingInitialStateKeys: Boolean): Iterator[InternalRow] =
      throw SparkUnsupportedOperationException()

    override protected def callFunctionAndUpdateState(
        stateData: StateData,
        valueRowIter: Iterator[InternalRow],
        hasTimedOut: Boolean): Iterator[InternalRow] = throw SparkUnsupportedOperationException()
  }

  private def threshold: Option[Long] = timeoutConf match {
    case ProcessingTimeTimeout => batchTimestampMs
    case EventTimeTimeout => eventTimeWatermarkForEviction
    case _ => None
  }

  private def facts: JObject = JObject(
    "timeoutConf" -> JString(timeoutConf match {
      case ProcessingTimeTimeout => "ProcessingTimeTimeout"
      case EventTimeTimeout => "EventTimeTimeout"
      case _ => "NoTimeout"
    }),
    "batchTimestampMs" -> JInt(BigInt(batchTimestampMs.getOrElse(NO_TIMESTAMP))),
    "watermarkMs" -> JInt(BigInt(eventTimeWatermarkForEviction.getOrElse(NO_TIMESTAMP))),
    "watermarkPresent" -> JBool(watermarkPresent))

  override protected def withNewChildInternal(
      newChild: SparkPlan): FlatMapGroupsInPandasWithStateExec =
    InBandGroupsWithStateExec(super.withNewChildInternal(newChild))

  override def canEqual(other: Any): Boolean = other.isInstanceOf[InBandGroupsWithStateExec]

  override def equals(other: Any): Boolean = canEqual(other) && super.equals(other)

  override def hashCode(): Int = 31 * super.hashCode() + 1
}

/** Puts our operator in the place of Spark's where the Python function says that it can. */
object InBandGroups {
  private val StateFormat = 2

  def apply(plan: SparkPlan): SparkPlan = plan.transformUp {
    case node: FlatMapGroupsInPandasWithStateExec if replaces(node) => InBandGroupsWithStateExec(node)
  }

  /** Of format 1 is only state that was begun by Spark 2: it stays Spark's. */
  private def replaces(node: FlatMapGroupsInPandasWithStateExec): Boolean =
    node.stateFormatVersion == StateFormat && !node.isInstanceOf[InBandGroupsWithStateExec] &&
      ProcessorSpecs.of(node.functionExpr, ProcessorSpecs.Groups).isDefined
}

object InBandGroupsWithStateExec {
  def apply(node: FlatMapGroupsInPandasWithStateExec): InBandGroupsWithStateExec =
    new InBandGroupsWithStateExec(
      node.functionExpr,
      node.groupingAttributes,
      node.outAttributes,
      node.stateType,
      node.stateInfo,
      node.stateFormatVersion,
      node.outputMode,
      node.timeoutConf,
      node.batchTimestampMs,
      node.eventTimeWatermarkForLateEvents,
      node.eventTimeWatermarkForEviction,
      node.skipEmittingInitialStateKeys,
      node.child)
}
