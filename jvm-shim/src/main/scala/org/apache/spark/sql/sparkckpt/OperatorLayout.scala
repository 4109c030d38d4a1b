package org.apache.spark.sql.sparkckpt

import org.json4s.{DefaultFormats, Formats}
import org.json4s.jackson.Serialization

import org.apache.spark.sql.execution.streaming.state.StateStoreId
import org.apache.spark.sql.types.{DataType, StructType}

/**
 * What the planner rule knows about a stateful operator and a state store provider cannot find out
 * by itself: a task sees the partition count of its stage, which is not the operator's parallelism
 * when the plan coalesces. The rule publishes one layout per operator in the stream's own session
 * conf, under a `spark.sql.streaming.stateStore.` key because only those reach a provider.
 *
 * @param stateRoot the state root it is for: a batch of the stream may also read other checkpoints
 * @param parallelism number of partitions of the operator: 1 where all tuples must meet
 * @param keyed false for operators that need all tuples in one partition, whatever the conf says
 * @param stateFormatVersion of the operator's state (stream-stream join: 1 to 4), if it has one
 * @param groupingSchema of the grouping key, as JSON, where the schema of the state forgets collations
 */
case class OperatorLayout(
    stateRoot: String,
    operatorName: String,
    parallelism: Int,
    maxParallelism: Int,
    keyed: Boolean,
    stateFormatVersion: Option[Int],
    groupingSchema: Option[String] = None) {

  def json: String = Serialization.write(this)(OperatorLayout.formats)

  def groupingTypes: Option[Seq[DataType]] =
    groupingSchema.map(DataType.fromJson(_).asInstanceOf[StructType].map(_.dataType))

  def rangeOf(partition: Int): KeyGroupRange =
    KeyGroups.rangeOf(partition, parallelism, maxParallelism)
}

object OperatorLayout {
  implicit val formats: Formats = DefaultFormats

  def confKey(operatorId: Long): String = s"${SparkckptConf.Prefix}internal.operator.$operatorId"

  /** That of the store, if it belongs to the stream that published the confs. */
  def of(store: StateStoreId, confs: Map[String, String]): Option[OperatorLayout] =
    confs.get(confKey(store.operatorId)).map(Serialization.read[OperatorLayout])
      .filter(_.stateRoot == store.checkpointRootLocation)
}
