package org.apache.spark.sql.sparkckpt.state

import org.apache.spark.sql.execution.streaming.state.{KeyStateEncoderSpec, StateStore}
import org.apache.spark.sql.sparkckpt.OperatorLayout
import org.apache.spark.sql.sparkckpt.format.StateFamily
import org.apache.spark.sql.types.StructType

/**
 * A column family as the operator registered it. The key schema is that of the encoder: operators
 * may register a shorter one (stream-stream join, state format 4) than the rows they put.
 */
final class ColumnFamily(
    val name: String,
    registeredKeySchema: StructType,
    keySpec: KeyStateEncoderSpec,
    val valueSchema: StructType,
    val multiValued: Boolean,
    val isInternal: Boolean) {

  val keySchema: StructType = keySpec.keySchema
  val isMapState: Boolean = KeyGroupExtractor.isMapKey(keySpec)
  /** The state variable whose TTL index this is. */
  val indexedVariable: Option[String] = KeyGroupExtractor.indexedVariable(name)

  @volatile private var described: Option[StateFamily] = None

  def isSameAs(other: ColumnFamily): Boolean = other.key == key

  private def key = (name, keySpec, valueSchema, multiValued)

  def createIn(store: StateStore): Unit = store.createColFamilyIfAbsent(
    name, registeredKeySchema, valueSchema, keySpec, multiValued, isInternal)

  def extractor(
      layout: OperatorLayout, storeName: String, isMapState: String => Boolean): KeyGroupExtractor =
    new KeyGroupExtractor(
      KeyGroupExtractor.collated(
        KeyGroupExtractor.groupingKey(layout.operatorName, storeName, name, keySpec, isMapState),
        layout.groupingTypes),
      layout.maxParallelism)

  /** The same for every commit of a store, and worth keeping: it holds what each file repeats. */
  def describe(operatorId: Long, storeName: String, maxParallelism: Int): StateFamily = {
    val description =
      StateFamily(operatorId, storeName, name, multiValued, maxParallelism, keySchema, valueSchema)
    if (!described.contains(description)) described = Some(description)
    described.get
  }
}
