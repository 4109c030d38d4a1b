package org.apache.spark.sql.sparkckpt.state

import scala.collection.mutable
import scala.util.control.NonFatal

import org.apache.spark.internal.Logging
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.sparkckpt.MemoryExceededException
import org.apache.spark.sql.sparkckpt.state.memory.MemoryEngine
import org.apache.spark.sql.types.StructType

/**
 * The working state in memory while there is room for it, and in RocksDB from then on. Nothing has to be
 * begun again for the move: a batch or a load that runs out of memory copies what there is, its own
 * changes included, and goes on.
 */
final class SpillingEngine(
    storeId: StateStoreId,
    defaultFamily: ColumnFamily,
    inMemory: () => MemoryEngine,
    onDisk: () => RocksDBEngine) extends StateEngine with Logging {

  /** Python's state calls come from a thread of their own. */
  @volatile private var engine: StateEngine = try inMemory() catch {
    case e: MemoryExceededException => logMove(e); onDisk()
  }
  private val families = mutable.LinkedHashMap(defaultFamily.name -> defaultFamily)

  override def open(empty: Boolean, readOnly: Boolean): StateStore = {
    if (empty) {
      families.clear()
      families(defaultFamily.name) = defaultFamily
      if (isSpilled) returnToMemory()
    }
    new SpillingStateStore(this, readOnly, try engine.open(empty, readOnly) catch {
      case e: MemoryExceededException =>
        logMove(e)
        val disk = onDisk()
        engine.close()
        engine = disk
        disk.open(empty, readOnly)
    })
  }

  /** What is loaded now may be less than what was moved, and others may have given memory back. */
  private def returnToMemory(): Unit = {
    val disk = engine
    val memory = try Some(inMemory()) catch { case _: MemoryExceededException => None }
    memory.foreach { engine =>
      this.engine = engine
      disk.close()
    }
  }

  override def fill[T](store: StateStore, family: ColumnFamily)(body: StateFiller => T): T = {
    val filled = store.asInstanceOf[SpillingStateStore]
    try engine.fill(filled.engineStore, family)(body) catch {
      case e: MemoryExceededException =>
        move(filled, e, without = Some(family.name))
        engine.fill(filled.engineStore, family)(body)
    }
  }

  override def upgrade(store: StateStore): StateStore = {
    val upgraded = store.asInstanceOf[SpillingStateStore]
    upgraded.upgradeTo(engine.upgrade(upgraded.engineStore))
    upgraded
  }

  override def commit(store: StateStore): Unit = engine.commit(engineStoreOf(store))
  override def abort(store: StateStore): Boolean = engine.abort(engineStoreOf(store))

  private def engineStoreOf(store: StateStore): StateStore =
    store.asInstanceOf[SpillingStateStore].engineStore

  override def rollBack(): Boolean = engine.rollBack()
  override def keyCounts: Option[KeyCounts] = engine.keyCounts
  override def giveUp(): Unit = engine.giveUp()
  override def doMaintenance(): Unit = engine.doMaintenance()
  override def close(): Unit = engine.close()

  // For the store

  private[state] def isSpilled: Boolean = engine.isInstanceOf[RocksDBEngine]

  private[state] def created(family: ColumnFamily): Unit =
    if (!families.contains(family.name)) families(family.name) = family

  private[state] def removed(family: String): Unit = families.remove(family)

  private[state] def family(name: String): ColumnFamily = families(name)

  /** What has failed for want of memory may be tried again after it. */
  private[state] def move(
      store: SpillingStateStore, why: MemoryExceededException, without: Option[String] = None): Unit =
    engine match {
      case memory: MemoryEngine =>
        logMove(why)
        val disk = onDisk()
        store.moveTo(copy(memory, disk, store.isReadOnly, without))
        engine = disk
        memory.abandon()
      case _ => throw why
    }

  /** What fails, as on a full disk, leaves memory as it was and nothing on disk. */
  private def copy(
      memory: MemoryEngine,
      disk: RocksDBEngine,
      readOnly: Boolean,
      without: Option[String]): StateStore = {
    var opened = Option.empty[StateStore]
    try {
      val store = disk.open(empty = true, readOnly)
      opened = Some(store)
      families.values.foreach { family =>
        if (family ne defaultFamily) family.createIn(store)
        if (!without.contains(family.name)) {
          disk.fill(store, family)(memory.copyRows(family.name, _))
        }
      }
      store
    } catch {
      case e: Throwable =>
        def end(body: => Unit): Unit =
          try body catch { case NonFatal(suppressed) => e.addSuppressed(suppressed) }
        // RocksDB is not closed under a store that is open: it would wait for it.
        end(opened.foreach(_.abort()))
        end(disk.close())
        throw e
    }
  }

  private def logMove(why: MemoryExceededException): Unit =
    logWarning(s"The working state of $storeId moves to RocksDB on local disk. ${why.getMessage}")
}

/** An open store of the engine; the one behind it is another after a move. */
private[state] final class SpillingStateStore(
    engine: SpillingEngine,
    private var readOnly: Boolean,
    @volatile private var current: StateStore) extends ForwardingStateStore {

  override protected[state] def engineStore: StateStore = current

  private[state] def isReadOnly: Boolean = readOnly
  private[state] def moveTo(store: StateStore): Unit = current = store
  private[state] def upgradeTo(store: StateStore): Unit = {
    current = store
    readOnly = false
  }

  override def put(key: UnsafeRow, value: UnsafeRow, family: String): Unit =
    try current.put(key, value, family) catch {
      case e: MemoryExceededException =>
        move(e, key, family)
        current.put(key, value, family)
    }

  override def putList(key: UnsafeRow, values: Array[UnsafeRow], family: String): Unit =
    try current.putList(key, values, family) catch {
      case e: MemoryExceededException =>
        move(e, key, family)
        current.putList(key, values, family)
    }

  override def merge(key: UnsafeRow, value: UnsafeRow, family: String): Unit =
    try current.merge(key, value, family) catch {
      case e: MemoryExceededException =>
        move(e, key, family)
        current.merge(key, value, family)
    }

  /** One by one, as long as each may be the one there is no room for: the others must not come twice. */
  override def mergeList(key: UnsafeRow, values: Array[UnsafeRow], family: String): Unit =
    if (engine.isSpilled) current.mergeList(key, values, family)
    else values.foreach(merge(key, _, family))

  /** Who puts a key has not counted it, as long as memory did. */
  private def move(why: MemoryExceededException, key: UnsafeRow, family: String): Unit = {
    engine.move(this, why)
    engine.keyCounts.foreach { counts =>
      if (!current.keyExists(key, family)) counts.add(engine.family(family), 1)
    }
  }

  override def createColFamilyIfAbsent(
      name: String,
      keySchema: StructType,
      valueSchema: StructType,
      keySpec: KeyStateEncoderSpec,
      multiValued: Boolean,
      isInternal: Boolean): Unit = {
    def create(): Unit = current.createColFamilyIfAbsent(
      name, keySchema, valueSchema, keySpec, multiValued, isInternal)
    try create() catch {
      case e: MemoryExceededException =>
        engine.move(this, e)
        create()
    }
    engine.created(new ColumnFamily(name, keySchema, keySpec, valueSchema, multiValued, isInternal))
  }

  override def removeColFamilyIfExists(name: String): Boolean = {
    engine.removed(name)
    current.removeColFamilyIfExists(name)
  }

  override def metrics: StateStoreMetrics = {
    val metrics = current.metrics
    metrics.copy(customMetrics =
      metrics.customMetrics + (SpillingEngine.Spilled -> (if (engine.isSpilled) 1L else 0L)))
  }
}

object SpillingEngine {
  private[state] val Spilled: StateStoreCustomMetric = StateStoreCustomSumMetric(
    "sparkckptSpilledStores", "sparkckpt: stores whose state has outgrown memory, and is in RocksDB")

  def customMetrics: Seq[StateStoreCustomMetric] = Seq(Spilled)
}
