package org.apache.spark.sql.sparkckpt.state

import org.apache.spark.sql.execution.streaming.state.KeyStateEncoderSpec
import org.apache.spark.sql.sparkckpt.OperatorLayout
import org.apache.spark.sql.sparkckpt.format.StateFamily
import org.apache.spark.sql.types.StructType

/**
 * A column family as the operator registered it. The key schema is that of the encoder: operators
 * may register a shorter one (stream-stream join, state format 4) than the rows they put.
 */
final class ColumnFamily(
    val name: String,
    keySpec: KeyStateEncoderSpec,
    val valueSchema: StructType,
    val multiValued: Boolean) {

  val keySchema: StructType = keySpec.keySchema
  val isMapState: Boolean = KeyGroupExtractor.isMapKey(keySpec)

  def hasSchemas(spec: KeyStateEncoderSpec, value: StructType, multi: Boolean): Boolean =
    spec == keySpec && value == valueSchema && multi == multiValued

  def extractor(
      layout: OperatorLayout, storeName: String, isMapState: String => Boolean): KeyGroupExtractor =
    new KeyGroupExtractor(
      KeyGroupExtractor.groupingKey(layout.operatorName, storeName, name, keySpec, isMapState),
      layout.maxParallelism)

  def describe(operatorId: Long, storeName: String, maxParallelism: Int): StateFamily =
    StateFamily(operatorId, storeName, name, multiValued, maxParallelism, keySchema, valueSchema)
}
