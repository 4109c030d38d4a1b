package org.apache.spark.sql.sparkckpt.state

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

/** A store that does with `engineStore` whatever it does not do otherwise. */
abstract class ForwardingStateStore extends VersionedStateStore {
  override def id: StateStoreId = engineStore.id
  override def version: Long = engineStore.version

  // Reads

  override def get(key: UnsafeRow, family: String): UnsafeRow = engineStore.get(key, family)
  override def multiGet(keys: Array[UnsafeRow], family: String): Iterator[UnsafeRow] =
    engineStore.multiGet(keys, family)
  override def keyExists(key: UnsafeRow, family: String): Boolean =
    engineStore.keyExists(key, family)
  override def valuesIterator(key: UnsafeRow, family: String): Iterator[UnsafeRow] =
    engineStore.valuesIterator(key, family)
  override def prefixScan(key: UnsafeRow, family: String): StateStoreIterator[UnsafeRowPair] =
    engineStore.prefixScan(key, family)
  override def prefixScanWithMultiValues(
      key: UnsafeRow, family: String): StateStoreIterator[UnsafeRowPair] =
    engineStore.prefixScanWithMultiValues(key, family)
  override def rangeScan(
      start: Option[UnsafeRow],
      end: Option[UnsafeRow],
      family: String): StateStoreIterator[UnsafeRowPair] = engineStore.rangeScan(start, end, family)
  override def rangeScanWithMultiValues(
      start: Option[UnsafeRow],
      end: Option[UnsafeRow],
      family: String): StateStoreIterator[UnsafeRowPair] =
    engineStore.rangeScanWithMultiValues(start, end, family)
  override def iterator(family: String): StateStoreIterator[UnsafeRowPair] =
    engineStore.iterator(family)
  override def iteratorWithMultiValues(family: String): StateStoreIterator[UnsafeRowPair] =
    engineStore.iteratorWithMultiValues(family)
  override def allColumnFamilyNames: Set[String] = engineStore.allColumnFamilyNames

  // Column families

  override def createColFamilyIfAbsent(
      name: String,
      keySchema: StructType,
      valueSchema: StructType,
      keySpec: KeyStateEncoderSpec,
      multiValued: Boolean,
      isInternal: Boolean): Unit = engineStore.createColFamilyIfAbsent(
    name, keySchema, valueSchema, keySpec, multiValued, isInternal)
  override def removeColFamilyIfExists(name: String): Boolean =
    engineStore.removeColFamilyIfExists(name)

  // Writes

  override def put(key: UnsafeRow, value: UnsafeRow, family: String): Unit =
    engineStore.put(key, value, family)
  override def putList(key: UnsafeRow, values: Array[UnsafeRow], family: String): Unit =
    engineStore.putList(key, values, family)
  override def merge(key: UnsafeRow, value: UnsafeRow, family: String): Unit =
    engineStore.merge(key, value, family)
  override def mergeList(key: UnsafeRow, values: Array[UnsafeRow], family: String): Unit =
    engineStore.mergeList(key, values, family)
  override def remove(key: UnsafeRow, family: String): Unit = engineStore.remove(key, family)
  override def deleteRange(begin: UnsafeRow, end: UnsafeRow, family: String): Unit =
    engineStore.deleteRange(begin, end, family)

  // The end of the store

  override def commit(): Long = engineStore.commit()
  override def abort(): Unit = engineStore.abort()
  override def release(): Unit = engineStore.release()
  override def hasCommitted: Boolean = engineStore.hasCommitted
  override def getStateStoreCheckpointInfo(): StateStoreCheckpointInfo =
    engineStore.getStateStoreCheckpointInfo()
  override def metrics: StateStoreMetrics = engineStore.metrics
}
