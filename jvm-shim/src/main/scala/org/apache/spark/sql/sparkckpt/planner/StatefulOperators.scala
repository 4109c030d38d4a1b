package org.apache.spark.sql.sparkckpt.planner

import org.apache.spark.sql.catalyst.expressions.Expression
import org.apache.spark.sql.catalyst.plans.physical.{AllTuples, ClusteredDistribution, Partitioning, PartitioningCollection, SinglePartition, StatefulOpClusteredDistribution}
import org.apache.spark.sql.execution.SparkPlan
import org.apache.spark.sql.execution.python.streaming.{FlatMapGroupsInPandasWithStateExec, TransformWithStateInPySparkExec}
import org.apache.spark.sql.execution.streaming.operators.stateful.{SessionWindowStateStoreSaveExec, StatefulOperator, StateStoreSaveExec, StateStoreWriter}
import org.apache.spark.sql.execution.streaming.operators.stateful.flatmapgroupswithstate.FlatMapGroupsWithStateExec
import org.apache.spark.sql.execution.streaming.operators.stateful.join.StreamingSymmetricHashJoinExec
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.TransformWithStateExec
import org.apache.spark.sql.sparkckpt.{OperatorLayout, SparkckptErrors}
import org.apache.spark.sql.types.{StructField, StructType}
import org.apache.spark.sql.util.SchemaUtils

/** A child of a stateful operator must come by the key groups of these keys, in N partitions. */
case class KeyedInput(keys: Seq[Expression], parallelism: Int) {

  /** Other keys, or the same in another order, have other key groups than the state has. */
  def isGivenBy(plan: SparkPlan, maxParallelism: Int): Boolean = {
    def isGiven(partitioning: Partitioning): Boolean = partitioning match {
      case groups: KeyGroupPartitioning =>
        groups.maxParallelism == maxParallelism && groups.numPartitions == parallelism &&
          groups.expressions.size == keys.size &&
          groups.expressions.zip(keys).forall { case (a, b) => a.semanticEquals(b) }
      case SinglePartition => parallelism == 1
      case PartitioningCollection(members) => members.exists(isGiven)
      case _ => false
    }
    isGiven(plan.outputPartitioning)
  }
}

/** What the rule reads off Spark's stateful operators: the only place that knows their classes. */
object StatefulOperators {

  /** transformWithState and its like in a batch query keep state nowhere: they are left out. */
  def in(plan: SparkPlan): Seq[StatefulOperator] = plan.collect {
    case Streaming(operator) => operator
  }

  object Streaming {
    def unapply(plan: SparkPlan): Option[StatefulOperator] = plan match {
      case batch: TransformWithStateExec if !batch.isStreaming => None
      case batch: TransformWithStateInPySparkExec if !batch.isStreaming => None
      case operator: StatefulOperator if operator.stateInfo.isDefined => Some(operator)
      case _ => None
    }
  }

  /**
   * Per child of the operator; None where all tuples must meet in one partition, and for an initial
   * state that is not read: those operators do not even take a new child in its place.
   */
  def inputs(operator: StatefulOperator): Seq[Option[KeyedInput]] =
    operator.requiredChildDistribution.zipWithIndex.map {
      case (_, 1) if !readsSecondChild(operator) => None
      case (AllTuples, _) => None
      case (stateful: StatefulOpClusteredDistribution, _) =>
        stateful.requiredNumPartitions.map(KeyedInput(stateful.expressions, _))
      case (clustered: ClusteredDistribution, _) =>
        val parallelism =
          clustered.requiredNumPartitions.getOrElse(operator.getStateInfo.numPartitions)
        Some(KeyedInput(clustered.clustering, parallelism))
      case (other, _) =>
        throw SparkckptErrors.exchangeNotReplaced(describe(operator), s"it asks for $other")
    }

  private def readsSecondChild(operator: StatefulOperator): Boolean = operator match {
    case transform: TransformWithStateExec => transform.hasInitialState
    case transform: TransformWithStateInPySparkExec => transform.hasInitialState
    case groups: FlatMapGroupsWithStateExec => groups.hasInitialState
    case _ => true
  }

  def layout(writer: StateStoreWriter, maxParallelism: Int): OperatorLayout = {
    val keyed = inputs(writer).flatten
    OperatorLayout(
      stateRoot = writer.getStateInfo.checkpointLocation,
      operatorName = writer.shortName,
      parallelism = keyed.headOption.map(_.parallelism).getOrElse(1),
      maxParallelism = maxParallelism,
      keyed = keyed.nonEmpty,
      groupingSchema = groupingSchema(writer),
      stateFormatVersion = stateFormatVersion(writer))
  }

  def describe(operator: StatefulOperator): String =
    s"${operator.nodeName} (operator ${operator.getStateInfo.operatorId})"

  private def groupingSchema(writer: StateStoreWriter): Option[String] = (writer match {
    case transform: TransformWithStateExec => transform.groupingAttributes
    case transform: TransformWithStateInPySparkExec => transform.groupingAttributes
    case _ => Nil
  }) match {
    case keys if keys.exists(key => SchemaUtils.hasNonUTF8BinaryCollation(key.dataType)) =>
      Some(StructType(keys.map(key => StructField(key.name, key.dataType))).json)
    case _ => None
  }

  private def stateFormatVersion(writer: StateStoreWriter): Option[Int] = writer match {
    case join: StreamingSymmetricHashJoinExec => Some(join.stateFormatVersion)
    case aggregate: StateStoreSaveExec => Some(aggregate.stateFormatVersion)
    case session: SessionWindowStateStoreSaveExec => Some(session.stateFormatVersion)
    case groups: FlatMapGroupsWithStateExec => Some(groups.stateFormatVersion)
    case groups: FlatMapGroupsInPandasWithStateExec => Some(groups.stateFormatVersion)
    case _ => None
  }
}
