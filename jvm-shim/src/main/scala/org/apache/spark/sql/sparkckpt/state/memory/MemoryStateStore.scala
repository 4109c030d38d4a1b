package org.apache.spark.sql.sparkckpt.state.memory

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

/** The families of a memory engine, open in a task; it has no versions and no files. */
private[memory] final class MemoryStateStore(
    engine: MemoryEngine,
    override val id: StateStoreId,
    keySchema: StructType,
    valueSchema: StructType,
    useColumnFamilies: Boolean,
    storeConf: StateStoreConf) extends VersionedMemoryStore {

  @volatile private var isOpen = true
  private var isValidated = useColumnFamilies

  override def version: Long = 0

  private[memory] def close(): Unit = isOpen = false

  private def requireOpen(): Unit =
    if (!isOpen) throw new IllegalStateException(s"The working state of $id is closed")

  private def family(operation: String, name: String): MemoryFamily = {
    requireOpen()
    engine.family(name).getOrElse {
      throw StateStoreErrors.unsupportedOperationOnMissingColumnFamily(operation, name)
    }
  }

  // Reads

  override def get(key: UnsafeRow, name: String): UnsafeRow = {
    val value = family("get", name).get(key)
    if (!isValidated && value != null) validate(key, value)
    value
  }

  /** As Spark's own stores do: with the wrong schema rows are read as nonsense, or beyond their end. */
  private def validate(key: UnsafeRow, value: UnsafeRow): Unit = {
    StateStoreProvider.validateStateRowFormat(key, keySchema, value, valueSchema, id, storeConf)
    isValidated = true
  }

  private def validated(
      pairs: StateStoreIterator[UnsafeRowPair]): StateStoreIterator[UnsafeRowPair] =
    if (isValidated) pairs
    else {
      val checked = pairs.map { pair =>
        if (!isValidated) validate(pair.key, pair.value)
        pair
      }
      new StateStoreIterator(checked, () => pairs.close())
    }

  override def multiGet(keys: Array[UnsafeRow], name: String): Iterator[UnsafeRow] =
    keys.iterator.map(get(_, name))

  override def keyExists(key: UnsafeRow, name: String): Boolean = family("keyExists", name).exists(key)

  override def valuesIterator(key: UnsafeRow, name: String): Iterator[UnsafeRow] =
    family("valuesIterator", name).values(key)

  override def prefixScan(prefix: UnsafeRow, name: String): StateStoreIterator[UnsafeRowPair] = {
    val scanned = family("prefixScan", name)
    validated(scanned.pairs(scanned.scanPrefix(prefix)))
  }

  override def prefixScanWithMultiValues(
      prefix: UnsafeRow, name: String): StateStoreIterator[UnsafeRowPair] = {
    val scanned = family("prefixScanWithMultiValues", name)
    scanned.pairsOfAllValues(scanned.scanPrefix(prefix))
  }

  override def rangeScan(
      start: Option[UnsafeRow],
      end: Option[UnsafeRow],
      name: String): StateStoreIterator[UnsafeRowPair] = {
    val scanned = family("rangeScan", name)
    scanned.pairs(scanned.scanRange(start, end))
  }

  override def rangeScanWithMultiValues(
      start: Option[UnsafeRow],
      end: Option[UnsafeRow],
      name: String): StateStoreIterator[UnsafeRowPair] = {
    val scanned = family("rangeScanWithMultiValues", name)
    scanned.pairsOfAllValues(scanned.scanRange(start, end))
  }

  override def iterator(name: String): StateStoreIterator[UnsafeRowPair] = {
    val scanned = family("iterator", name)
    validated(scanned.pairs(scanned.scan()))
  }

  override def iteratorWithMultiValues(name: String): StateStoreIterator[UnsafeRowPair] = {
    val scanned = family("iteratorWithMultiValues", name)
    scanned.pairsOfAllValues(scanned.scan())
  }

  override protected def iteratorFromPrefix(
      prefix: UnsafeRow, name: String): StateStoreIterator[UnsafeRowPair] = {
    val scanned = family("iterator", name)
    scanned.pairs(scanned.scanFromPrefix(prefix))
  }

  override def allColumnFamilyNames: Set[String] = engine.familyNames

  // Column families

  override def createColFamilyIfAbsent(
      name: String,
      keySchema: StructType,
      valueSchema: StructType,
      keySpec: KeyStateEncoderSpec,
      multiValued: Boolean,
      isInternal: Boolean): Unit = {
    requireOpen()
    engine.createFamily(name, keySpec, valueSchema, multiValued, isInternal)
  }

  override def removeColFamilyIfExists(name: String): Boolean = {
    requireOpen()
    engine.removeFamily(name)
  }

  // Writes

  override def put(key: UnsafeRow, value: UnsafeRow, name: String): Unit = {
    require(value != null, "Cannot put a null value")
    family("put", name).put(key, value)
  }

  override def putList(key: UnsafeRow, values: Array[UnsafeRow], name: String): Unit = {
    val changed = family("putList", name)
    changed.requireMultiValued("putList")
    if (values.isEmpty) changed.put(key, null)
    else {
      changed.put(key, values.head)
      values.iterator.drop(1).foreach(changed.append(key, _))
    }
  }

  override def merge(key: UnsafeRow, value: UnsafeRow, name: String): Unit = {
    require(value != null, "Cannot merge a null value")
    family("merge", name).append(key, value)
  }

  override def mergeList(key: UnsafeRow, values: Array[UnsafeRow], name: String): Unit =
    values.foreach(merge(key, _, name))

  override def remove(key: UnsafeRow, name: String): Unit = family("remove", name).remove(key)

  override def deleteRange(begin: UnsafeRow, end: UnsafeRow, name: String): Unit =
    family("deleteRange", name).removeBetween(begin, end)

  override def metrics: StateStoreMetrics = engine.metrics

  // How the store ends is the engine's concern.

  override def release(): Unit = {
    close()
    engine.endScans()
  }
  override def abort(): Unit = throw notHere("abort")
  override def commit(): Long = throw notHere("commit")
  override def hasCommitted: Boolean = !isOpen
  override def getStateStoreCheckpointInfo(): StateStoreCheckpointInfo =
    throw notHere("getStateStoreCheckpointInfo")

  private def notHere(operation: String) =
    new UnsupportedOperationException(s"$operation: the working state of $id has no versions")
}
