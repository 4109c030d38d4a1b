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
 * One version of a store, open in a task. Reads go to the engine's working state, which checks that the
 * store is still open; writes go there and into the change set, which [[commit]] hands to the provider
 * to be written. The instance holds the provider's permit until it is committed, aborted, released or
 * upgraded.
 */
final class KeyGroupStateStore(
    val provider: KeyGroupStateStoreProvider,
    override val version: Long,
    val checkpointId: Option[String],
    val base: Option[StateHandle],
    override protected[state] val engineStore: StateStore,
    readOnly: Boolean,
    private[state] val operatorStates: OperatorStateBuffer)
  extends ForwardingStateStore with OperatorStateStore with Logging {

  private val open = new AtomicBoolean(true)
  @volatile private var committed: Option[CommitResult] = None
  /** Not asked for when it is needed: Python's state calls come from another thread. */
  private[state] val task = TaskContext.get()
  /** Not the same all the time: the engine may change under an open store. */
  private def keyCounts: Option[KeyCounts] = provider.keyCounts
  private val lock = new Object
  private var failed = false
  private var hasChanges = false
  private lazy val changes: ChangeSet = {
    val set = provider.newChangeSet(task)
    hasChanges = true
    set
  }
  private var removedFamilies = Set.empty[String]

  Option(task).foreach(_.addTaskCompletionListener[Unit] { context =>
    if (open.get()) {
      try {
        if (readOnly && context.getTaskFailure.isEmpty) release() else abort()
      } catch {
        case NonFatal(e) => logWarning(s"Closing $this at the end of its task failed", e)
      }
    }
  })

  override def id: StateStoreId = provider.stateStoreId

  // Column families

  override def createColFamilyIfAbsent(
      name: String,
      keySchema: StructType,
      valueSchema: StructType,
      keySpec: KeyStateEncoderSpec,
      multiValued: Boolean,
      isInternal: Boolean): Unit = change {
    provider.register(this,
      new ColumnFamily(name, keySchema, keySpec, valueSchema, multiValued, isInternal))
  }

  override def removeColFamilyIfExists(name: String): Boolean = change {
    val exists =
      engineStore.removeColFamilyIfExists(name) || base.exists(_.filesOf(name).nonEmpty)
    if (exists) {
      changesIfAny.foreach(_.drop(name))
      removedFamilies += name
      provider.forget(name)
    }
    exists
  }

  // Writes. Python's state calls come from a thread of their own, which a killed task does not wait
  // for: a late one must find the store closed, not write into memory that was given back.

  override def put(key: UnsafeRow, value: UnsafeRow, family: String): Unit = change {
    countNew(key, family)
    capture(family, StateOp.Put, key, value)
    engineStore.put(key, value, family)
  }

  override def putList(key: UnsafeRow, values: Array[UnsafeRow], family: String): Unit = change {
    countNew(key, family)
    capture(family, StateOp.Put, key, values.headOption.orNull)
    values.iterator.drop(1).foreach(capture(family, StateOp.Append, key, _))
    engineStore.putList(key, values, family)
  }

  override def merge(key: UnsafeRow, value: UnsafeRow, family: String): Unit = change {
    countNew(key, family)
    capture(family, StateOp.Append, key, value)
    engineStore.merge(key, value, family)
  }

  /** Appending nothing is nothing: RocksDB would put a bare delimiter there. */
  override def mergeList(key: UnsafeRow, values: Array[UnsafeRow], family: String): Unit =
    if (values.nonEmpty) change {
      countNew(key, family)
      values.foreach(capture(family, StateOp.Append, key, _))
      engineStore.mergeList(key, values, family)
    }

  override def remove(key: UnsafeRow, family: String): Unit = change {
    keyCounts.foreach { counts =>
      if (engineStore.keyExists(key, family)) counts.add(provider.family(family), -1)
    }
    capture(family, StateOp.Delete, key, null)
    engineStore.remove(key, family)
  }

  /** Recorded key by key: a range of encoded keys is not a range of key groups. */
  override def deleteRange(begin: UnsafeRow, end: UnsafeRow, family: String): Unit = change {
    val scan = if (provider.family(family).multiValued) {
      engineStore.rangeScanWithMultiValues(Some(begin), Some(end), family)
    } else {
      engineStore.rangeScan(Some(begin), Some(end), family)
    }
    var last: UnsafeRow = null
    try scan.foreach { pair =>
      if (pair.key != last) {
        last = pair.key.copy()
        keyCounts.foreach(_.add(provider.family(family), -1))
        capture(family, StateOp.Delete, last, null)
      }
    } finally scan.close()
    engineStore.deleteRange(begin, end, family)
  }

  /** What fails halfway leaves working state and change set apart: it must not be committed. */
  private def change[T](body: => T): T = lock.synchronized {
    if (!open.get()) throw new IllegalStateException(s"$this is closed")
    try body catch {
      case e: Throwable => failed = true; throw e
    }
  }

  private def countNew(key: UnsafeRow, family: String): Unit = keyCounts.foreach { counts =>
    if (!engineStore.keyExists(key, family)) counts.add(provider.family(family), 1)
  }

  private def capture(family: String, op: Byte, key: UnsafeRow, value: UnsafeRow): Unit =
    changes.add(provider.family(family), provider.extractor(family), op, key, value)

  // Operator state

  override def operatorState: Option[Array[Byte]] = lock.synchronized {
    if (!open.get()) throw new IllegalStateException(s"$this is closed")
    operatorStates.current.map(_.clone())
  }

  override def setOperatorState(blob: Array[Byte]): Unit = change {
    if (readOnly) throw new IllegalStateException(s"$this is open for reading")
    operatorStates.set(blob)
  }

  private def changesIfAny: Option[ChangeSet] = if (hasChanges) Some(changes) else None

  // The end of the store

  override def commit(): Long = lock.synchronized {
    if (!open.get()) throw new IllegalStateException(s"$this is closed")
    if (failed) throw new IllegalStateException(s"A change to $this failed: it cannot be committed")
    val result = provider.commit(this, changesIfAny, removedFamilies)
    committed = Some(result)
    close()
    result.handle.version
  }

  override def abort(): Unit = lock.synchronized {
    if (open.get()) {
      try provider.abort(this) finally close()
    }
  }

  override def release(): Unit = if (open.get()) {
    try engineStore.release() catch {
      case NonFatal(e) => provider.invalidate(); throw e
    } finally close()
  }

  private def close(): Unit = if (open.compareAndSet(true, false)) {
    changesIfAny.foreach(_.free())
    provider.releasePermit()
  }

  /** Hands the permit on to the writable store made of this one. */
  private[state] def handOver(): Boolean = open.compareAndSet(true, false)

  override def hasCommitted: Boolean = committed.isDefined

  override def getStateStoreCheckpointInfo(): StateStoreCheckpointInfo = committed match {
    case Some(CommitResult(handle, _, _)) => StateStoreCheckpointInfo(
      id.partitionId, handle.version, Some(handle.id), handle.baseId)
    case None => throw new IllegalStateException(s"$this has no checkpoint: it is not committed")
  }

  override def metrics: StateStoreMetrics = {
    val engine = engineStore.metrics
    engine.copy(
      numKeys = keyCounts.map(_.external).getOrElse(engine.numKeys),
      customMetrics = engine.customMetrics ++ committed.map(_.metrics).getOrElse(Map.empty) ++
        keyCounts.map(RocksDBEngine.internalKeys -> _.ofInternalFamilies),
      instanceMetrics = Map.empty)
  }

  override def toString: String =
    s"KeyGroupStateStore[$id, version=$version, checkpointId=${checkpointId.getOrElse("none")}]"
}

/** What a commit left behind; `description` is the handle as bytes. */
case class CommitResult(
    handle: StateHandle, description: Array[Byte], metrics: Map[StateStoreCustomMetric, Long])
