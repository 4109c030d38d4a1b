package org.apache.spark.sql.sparkckpt.transfer

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.StateStore
import org.apache.spark.sql.sparkckpt.SparkckptErrors

/** What became of a partition of the target; `id` is None in checkpoint format version 1. */
case class WrittenPartition(id: Option[String], rows: Long)

/** Makes a partition of the target: the first version of it, as if all rows were of one batch. */
final class StateWriter(target: StateSide, version: Long) extends Serializable {

  def write(
      shape: StoreShape, partition: Int, records: Iterator[Array[Byte]]): WrittenPartition = {
    val provider = target.open(shape, partition)
    try {
      val store = provider.getStore(
        version - 1, None, forceSnapshotOnCommit = false, loadEmpty = true)
      try writeInto(store, shape, records) catch {
        case e: Throwable => abort(store, e); throw e
      }
    } finally provider.close()
  }

  private def writeInto(
      store: StateStore, shape: StoreShape, records: Iterator[Array[Byte]]): WrittenPartition = {
    if (shape.useColumnFamilies) shape.families.filterNot(_.isDefault).foreach(_.createIn(store))
    val families = shape.families.map(new FamilyWriter(store, _)).toArray
    var rows = 0L
    records.foreach { record =>
      families(StateRecord.family(record)).write(record)
      rows += 1
    }
    store.commit()
    WrittenPartition(store.getStateStoreCheckpointInfo().stateStoreCkptId, rows)
  }

  private def abort(store: StateStore, cause: Throwable): Unit =
    if (!store.hasCommitted) {
      try store.abort() catch { case e: Exception => cause.addSuppressed(e) }
    }
}

/**
 * The values of one key come from one partition of the source, one after the other; a shuffle does not
 * promise that, and lists must not change their order: hence the check.
 */
private final class FamilyWriter(store: StateStore, family: FamilyShape) {
  private val key = new UnsafeRow(family.keyFields)
  private val value = new UnsafeRow(family.valueSchema.length)
  private var list: UnsafeRow = _
  private var length = 0L

  def write(record: Array[Byte]): Unit = {
    StateRecord.pointKey(record, key)
    StateRecord.pointValue(record, value)
    if (!family.multiValued) store.put(key, value, family.name)
    else {
      val position = StateRecord.position(record)
      if (position == 0) {
        store.put(key, value, family.name)
        list = key.copy()
      } else if (key == list && position == length) {
        store.merge(key, value, family.name)
      } else {
        throw SparkckptErrors.listOutOfOrder(store.id.toString, family.name)
      }
      length = position + 1
    }
  }
}
