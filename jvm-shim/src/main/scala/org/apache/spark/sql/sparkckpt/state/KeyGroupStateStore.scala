package org.apache.spark.sql.sparkckpt.state

import java.util.concurrent.atomic.AtomicBoolean

import scala.util.control.NonFatal

import org.apache.spark.TaskContext
import org.apache.spark.internal.Logging
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.sparkckpt.format.{StateHandle, StateOp}
import org.apache.spark.sql.types.StructType

/**
 * One version of a store, open in a task. Reads go to the engine's working state; writes go there and
 * into the change set, which [[commit]] hands to the provider to be written. The instance holds the
 * provider's permit until it is committed, aborted, released or upgraded.
 */
final class KeyGroupStateStore(
    val provider: KeyGroupStateStoreProvider,
    override val version: Long,
    val checkpointId: Option[String],
    val base: Option[StateHandle],
    override protected[state] val engineStore: StateStore,
    readOnly: Boolean) extends VersionedStateStore with Logging {

  private val open = new AtomicBoolean(true)
  @volatile private var committed: Option[CommitResult] = None
  private lazy val changes: ChangeSet = provider.newChangeSet()
  private var hasChanges = false
  private var removedFamilies = Set.empty[String]

  Option(TaskContext.get()).foreach(_.addTaskCompletionListener[Unit] { context =>
    if (open.get()) {
      try {
        if (readOnly && context.getTaskFailure.isEmpty) release() else abort()
      } catch {
        case NonFatal(e) => logWarning(s"Closing $this at the end of its task failed", e)
      }
    }
  })

  override def id: StateStoreId = provider.stateStoreId

  // Reads: the engine checks that the store is still open.

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
      isInternal: Boolean): Unit = {
    provider.register(this,
      new ColumnFamily(name, keySchema, keySpec, valueSchema, multiValued, isInternal))
  }

  override def removeColFamilyIfExists(name: String): Boolean = {
    val removed = engineStore.removeColFamilyIfExists(name)
    if (removed || base.exists(_.filesOf(name).nonEmpty)) {
      if (hasChanges) changes.drop(name)
      removedFamilies += name
      provider.forget(name)
    }
    removed
  }

  // Writes

  override def put(key: UnsafeRow, value: UnsafeRow, family: String): Unit = {
    engineStore.put(key, value, family)
    capture(family, StateOp.Put, key, value)
  }

  override def putList(key: UnsafeRow, values: Array[UnsafeRow], family: String): Unit = {
    engineStore.putList(key, values, family)
    capture(family, StateOp.Put, key, values.headOption.orNull)
    values.iterator.drop(1).foreach(capture(family, StateOp.Append, key, _))
  }

  override def merge(key: UnsafeRow, value: UnsafeRow, family: String): Unit = {
    engineStore.merge(key, value, family)
    capture(family, StateOp.Append, key, value)
  }

  /** Appending nothing is nothing: RocksDB would put a bare delimiter there. */
  override def mergeList(key: UnsafeRow, values: Array[UnsafeRow], family: String): Unit =
    if (values.nonEmpty) {
      engineStore.mergeList(key, values, family)
      values.foreach(capture(family, StateOp.Append, key, _))
    }

  override def remove(key: UnsafeRow, family: String): Unit = {
    engineStore.remove(key, family)
    capture(family, StateOp.Delete, key, null)
  }

  /** Recorded key by key: a range of encoded keys is not a range of key groups. */
  override def deleteRange(begin: UnsafeRow, end: UnsafeRow, family: String): Unit = {
    val scan = if (provider.family(family).multiValued) {
      engineStore.rangeScanWithMultiValues(Some(begin), Some(end), family)
    } else {
      engineStore.rangeScan(Some(begin), Some(end), family)
    }
    try scan.foreach(pair => capture(family, StateOp.Delete, pair.key, null)) finally scan.close()
    engineStore.deleteRange(begin, end, family)
  }

  private def capture(family: String, op: Byte, key: UnsafeRow, value: UnsafeRow): Unit = {
    hasChanges = true
    changes.add(provider.family(family), provider.extractor(family), op, key, value)
  }

  // The end of the store

  override def commit(): Long = {
    val result =
      provider.commit(this, if (hasChanges) Some(changes) else None, removedFamilies)
    committed = Some(result)
    if (hasChanges) changes.free()
    close()
    result.handle.version
  }

  override def abort(): Unit = if (open.get()) {
    try {
      provider.invalidate()
      if (hasChanges) changes.free()
      engineStore.abort()
    } finally close()
  }

  override def release(): Unit = if (open.get()) {
    try engineStore.release() catch {
      case NonFatal(e) => provider.invalidate(); throw e
    } finally close()
  }

  private def close(): Unit = if (open.compareAndSet(true, false)) provider.releasePermit()

  /** Hands the permit on to the writable store made of this one. */
  private[state] def handOver(): Boolean = open.compareAndSet(true, false)

  override def hasCommitted: Boolean = committed.isDefined

  override def getStateStoreCheckpointInfo(): StateStoreCheckpointInfo = committed match {
    case Some(CommitResult(handle, _)) => StateStoreCheckpointInfo(
      id.partitionId, handle.version, Some(handle.id), handle.baseId)
    case None => throw new IllegalStateException(s"$this has no checkpoint: it is not committed")
  }

  override def metrics: StateStoreMetrics = {
    val engine = engineStore.metrics
    engine.copy(
      customMetrics = engine.customMetrics ++ committed.map(_.metrics).getOrElse(Map.empty),
      instanceMetrics = Map.empty)
  }

  override def toString: String =
    s"KeyGroupStateStore[$id, version=$version, checkpointId=${checkpointId.getOrElse("none")}]"
}

/** What a commit left behind. */
case class CommitResult(handle: StateHandle, metrics: Map[StateStoreCustomMetric, Long])
