package org.apache.spark.sql.sparkckpt.state.memory

import scala.collection.mutable

import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.sparkckpt.state._
import org.apache.spark.sql.types.StructType

/**
 * The working state on the heap of the executor. A batch costs what it changes: nothing is copied for
 * a version, and an aborted or repeated batch is undone.
 *
 * @param memoryLimit of all such engines in the executor; None: half of its heap
 * @param pool what it holds is also asked for there, if there is one, and stays within its region
 */
final class MemoryEngine(
    storeId: StateStoreId,
    keySchema: StructType,
    valueSchema: StructType,
    keySpec: KeyStateEncoderSpec,
    useColumnFamilies: Boolean,
    storeConf: StateStoreConf,
    multiValued: Boolean,
    memoryLimit: Option[Long],
    pool: Option[StoragePool]) extends StateEngine {

  private val budget = new MemoryBudget(
    storeId.toString, memoryLimit.getOrElse(MemoryBudget.defaultLimit), pool)
  private val families = mutable.LinkedHashMap.empty[String, MemoryFamily]
  /** A family that is removed cannot be brought back by undoing changes. */
  private var hasRemovedFamily = false
  private var canRollBack = false
  @volatile private var closed = false

  reset()

  private def reset(): Unit = {
    families.values.foreach(_.close())
    families.clear()
    families(StateStore.DEFAULT_COL_FAMILY_NAME) = new MemoryFamily(
      StateStore.DEFAULT_COL_FAMILY_NAME, keySpec, valueSchema, multiValued, isInternal = false, budget)
    hasRemovedFamily = false
    canRollBack = false
  }

  override def open(empty: Boolean, readOnly: Boolean): StateStore = {
    requireNotClosed()
    if (empty) reset()
    new MemoryStateStore(this, storeId, keySchema, valueSchema, useColumnFamilies, storeConf)
  }

  override def fill[T](store: StateStore, family: ColumnFamily)(body: StateFiller => T): T = {
    requireNotClosed()
    canRollBack = false
    families(family.name).fill(body)
  }

  /** The same store: operators go on reading through the one that they have upgraded. */
  override def upgrade(store: StateStore): StateStore = store

  override def commit(store: StateStore): Unit = {
    store.asInstanceOf[MemoryStateStore].close()
    canRollBack = !hasRemovedFamily
    hasRemovedFamily = false
    families.values.foreach(_.commit())
  }

  override def abort(store: StateStore): Boolean = {
    store.asInstanceOf[MemoryStateStore].close()
    if (hasRemovedFamily) return false
    budget.giveBack(families.values.foreach(_.abort()))
    true
  }

  override def rollBack(): Boolean = {
    val possible = canRollBack && families.values.forall(_.canRollBack)
    if (possible) budget.giveBack(families.values.foreach(_.rollBack()))
    canRollBack = false
    possible
  }

  override def keyCounts: Option[KeyCounts] = None

  /** All rows of a family, as a fill would put them. */
  def copyRows(family: String, to: StateFiller): Unit = families(family).copyRows(to)

  /**
   * Gives up the account of what it holds, and must not be used any more. Rows and iterators that were
   * handed out stay valid: what they show is there until they are gone.
   */
  def abandon(): Unit = {
    closed = true
    families.clear()
    budget.close()
  }

  override def giveUp(): Unit = budget.giveBack(reset())

  override def doMaintenance(): Unit = ()

  override def close(): Unit = {
    closed = true
    families.values.foreach(_.close())
    families.clear()
    budget.close()
  }

  /** A task that goes on nevertheless must not find the families empty. */
  private def requireNotClosed(): Unit =
    if (closed) throw new IllegalStateException(s"The working state of $storeId has been unloaded")

  // For the store

  private[memory] def endScans(): Unit = families.values.foreach(_.endScans())

  private[memory] def family(name: String): Option[MemoryFamily] = families.get(name)
  private[memory] def familyNames: Set[String] = families.keySet.toSet

  private[memory] def createFamily(
      name: String,
      keySpec: KeyStateEncoderSpec,
      valueSchema: StructType,
      multiValued: Boolean,
      isInternal: Boolean): Unit = {
    requireNotClosed()
    if (!families.contains(name)) {
      families(name) =
        new MemoryFamily(name, keySpec, valueSchema, multiValued, isInternal, budget)
    }
  }

  private[memory] def removeFamily(name: String): Boolean = {
    val removed = families.remove(name)
    removed.foreach(_.close())
    hasRemovedFamily = true
    removed.isDefined
  }

  private[memory] def metrics: StateStoreMetrics = {
    val (internal, external) = families.values.partition(_.isInternal)
    StateStoreMetrics(
      external.map(_.keys).sum,
      budget.bytes,
      Map(
        MemoryEngine.PageBytes -> families.values.map(_.bytes).sum,
        MemoryEngine.RecordBytes -> families.values.map(_.liveBytes).sum,
        MemoryEngine.internalKeys -> internal.map(_.keys).sum),
      Map.empty)
  }
}

object MemoryEngine extends StateEngineMetrics {
  private val PageBytes: StateStoreCustomMetric = StateStoreCustomSizeMetric(
    "sparkckptMemoryPageBytes", "sparkckpt: bytes of the pages that hold state in memory")
  private val RecordBytes: StateStoreCustomMetric = StateStoreCustomSizeMetric(
    "sparkckptMemoryRecordBytes", "sparkckpt: bytes of the records in these pages that are in use")

  override def customMetrics: Seq[StateStoreCustomMetric] = Seq(PageBytes, RecordBytes)
  override def instanceMetrics: Seq[StateStoreInstanceMetric] = Nil
  override def internalKeys: StateStoreCustomMetric =
    RocksDBStateStoreProvider.CUSTOM_METRIC_NUM_INTERNAL_COL_FAMILIES_KEYS
}
