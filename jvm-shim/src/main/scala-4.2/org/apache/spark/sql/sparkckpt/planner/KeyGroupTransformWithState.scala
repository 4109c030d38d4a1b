package org.apache.spark.sql.sparkckpt.planner

import org.apache.spark.sql.catalyst.encoders.ExpressionEncoder
import org.apache.spark.sql.catalyst.expressions.{Attribute, Expression}
import org.apache.spark.sql.catalyst.plans.logical.TransformWithStateInPySpark
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.python.streaming.TransformWithStateInPySparkExec
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorStateInfo
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.TransformWithStateExec
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.statefulprocessor.StatefulProcessorHandleImpl
import org.apache.spark.sql.execution.streaming.state.StateStore
import org.apache.spark.sql.sparkckpt.SparkckptConf
import org.apache.spark.sql.sparkckpt.inband.InBandStatefulProcessor
import org.apache.spark.sql.streaming.{OutputMode, StatefulProcessor, TimeMode}
import org.apache.spark.sql.types.StructType

/**
 * Spark's transformWithState runs on providers that Spark knows by name only. These subclasses let
 * ours pass, and that of Python can keep its state in-band. Their constructors are the ones of their
 * parents, because Spark copies plan nodes by reflection; they equal no parent, because Spark drops
 * a replaced node that equals the original.
 */
object KeyGroupTransformWithState {
  def apply(plan: SparkPlan): SparkPlan = plan.transformUp {
    case node: TransformWithStateExec if node.isStreaming => KeyGroupTransformWithStateExec(node)
    case node: TransformWithStateInPySparkExec if node.isStreaming =>
      KeyGroupTransformWithStateInPySparkExec(node)
  }
}

class KeyGroupTransformWithStateExec(
    keyDeserializer: Expression,
    valueDeserializer: Expression,
    groupingAttributes: Seq[Attribute],
    dataAttributes: Seq[Attribute],
    statefulProcessor: StatefulProcessor[Any, Any, Any],
    timeMode: TimeMode,
    outputMode: OutputMode,
    keyEncoder: ExpressionEncoder[Any],
    outputObjAttr: Attribute,
    stateInfo: Option[StatefulOperatorStateInfo],
    batchTimestampMs: Option[Long],
    prevBatchTimestampMs: Option[Long],
    eventTimeWatermarkForLateEvents: Option[Long],
    eventTimeWatermarkForEviction: Option[Long],
    child: SparkPlan,
    isStreaming: Boolean,
    hasInitialState: Boolean,
    initialStateGroupingAttrs: Seq[Attribute],
    initialStateDataAttrs: Seq[Attribute],
    initialStateDeserializer: Expression,
    initialState: SparkPlan)
  extends TransformWithStateExec(
    keyDeserializer, valueDeserializer, groupingAttributes, dataAttributes, statefulProcessor,
    timeMode, outputMode, keyEncoder, outputObjAttr, stateInfo, batchTimestampMs,
    prevBatchTimestampMs, eventTimeWatermarkForLateEvents, eventTimeWatermarkForEviction, child,
    isStreaming, hasInitialState, initialStateGroupingAttrs, initialStateDataAttrs,
    initialStateDeserializer, initialState) {

  override protected def validateStateStoreProvider(isStreaming: Boolean): Unit =
    if (conf.stateStoreProviderClass != SparkckptConf.ProviderClass) {
      super.validateStateStoreProvider(isStreaming)
    }

  override protected def withNewChildrenInternal(
      newLeft: SparkPlan, newRight: SparkPlan): TransformWithStateExec =
    KeyGroupTransformWithStateExec(super.withNewChildrenInternal(newLeft, newRight))

  override def canEqual(other: Any): Boolean = other.isInstanceOf[KeyGroupTransformWithStateExec]

  override def equals(other: Any): Boolean = canEqual(other) && super.equals(other)

  override def hashCode(): Int = 31 * super.hashCode() + 1
}

object KeyGroupTransformWithStateExec {
  def apply(node: TransformWithStateExec): KeyGroupTransformWithStateExec = node match {
    case ours: KeyGroupTransformWithStateExec => ours
    case _ => new KeyGroupTransformWithStateExec(
      node.keyDeserializer,
      node.valueDeserializer,
      node.groupingAttributes,
      node.dataAttributes,
      node.statefulProcessor,
      node.timeMode,
      node.outputMode,
      node.keyEncoder,
      node.outputObjAttr,
      node.stateInfo,
      node.batchTimestampMs,
      node.prevBatchTimestampMs,
      node.eventTimeWatermarkForLateEvents,
      node.eventTimeWatermarkForEviction,
      node.child,
      node.isStreaming,
      node.hasInitialState,
      node.initialStateGroupingAttrs,
      node.initialStateDataAttrs,
      node.initialStateDeserializer,
      node.initialState)
  }
}

class KeyGroupTransformWithStateInPySparkExec(
    functionExpr: Expression,
    groupingAttributes: Seq[Attribute],
    outputAttributes: Seq[Attribute],
    outputMode: OutputMode,
    timeMode: TimeMode,
    stateInfo: Option[StatefulOperatorStateInfo],
    batchTimestampMs: Option[Long],
    prevBatchTimestampMs: Option[Long],
    eventTimeWatermarkForLateEvents: Option[Long],
    eventTimeWatermarkForEviction: Option[Long],
    userFacingDataType: TransformWithStateInPySpark.UserFacingDataType.Value,
    child: SparkPlan,
    isStreaming: Boolean,
    hasInitialState: Boolean,
    initialState: SparkPlan,
    initialStateGroupingAttrs: Seq[Attribute],
    initialStateSchema: StructType)
  extends TransformWithStateInPySparkExec(
    functionExpr, groupingAttributes, outputAttributes, outputMode, timeMode, stateInfo,
    batchTimestampMs, prevBatchTimestampMs, eventTimeWatermarkForLateEvents,
    eventTimeWatermarkForEviction, userFacingDataType, child, isStreaming, hasInitialState,
    initialState, initialStateGroupingAttrs, initialStateSchema)
  with InBandStatefulProcessor {

  override protected def newHandle(
      store: StateStore, keyEncoder: ExpressionEncoder[Any]): StatefulProcessorHandleImpl =
    new StatefulProcessorHandleImpl(
      store, getStateInfo.queryRunId, keyEncoder, timeMode, isStreaming, batchTimestampMs,
      prevBatchTimestampMs, metrics)

  override protected def validateStateStoreProvider(isStreaming: Boolean): Unit =
    if (conf.stateStoreProviderClass != SparkckptConf.ProviderClass) {
      super.validateStateStoreProvider(isStreaming)
    }

  override protected def withNewChildrenInternal(
      newLeft: SparkPlan, newRight: SparkPlan): TransformWithStateInPySparkExec =
    KeyGroupTransformWithStateInPySparkExec(super.withNewChildrenInternal(newLeft, newRight))

  override def canEqual(other: Any): Boolean =
    other.isInstanceOf[KeyGroupTransformWithStateInPySparkExec]

  override def equals(other: Any): Boolean = canEqual(other) && super.equals(other)

  override def hashCode(): Int = 31 * super.hashCode() + 1
}

object KeyGroupTransformWithStateInPySparkExec {
  def apply(node: TransformWithStateInPySparkExec): KeyGroupTransformWithStateInPySparkExec =
    node match {
      case ours: KeyGroupTransformWithStateInPySparkExec => ours
      case _ => new KeyGroupTransformWithStateInPySparkExec(
        node.functionExpr,
        node.groupingAttributes,
        node.output,
        node.outputMode,
        node.timeMode,
        node.stateInfo,
        node.batchTimestampMs,
        node.prevBatchTimestampMs,
        node.eventTimeWatermarkForLateEvents,
        node.eventTimeWatermarkForEviction,
        node.userFacingDataType,
        node.child,
        node.isStreaming,
        node.hasInitialState,
        node.initialState,
        node.initialStateGroupingAttrs,
        node.initialStateSchema)
    }
}
