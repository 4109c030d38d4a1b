package org.apache.spark.sql.sparkckpt.inband

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{GenericInternalRow, UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.execution.metric.SQLMetric
import org.apache.spark.sql.execution.streaming.operators.stateful.flatmapgroupswithstate.GroupStateImpl.NO_TIMESTAMP
import org.apache.spark.sql.execution.streaming.state.StateStore
import org.apache.spark.sql.types._

/**
 * The state of applyInPandasWithState: one value and one timeout per key, in the layout of Spark's
 * state format 2: the value's struct, null if the key has a timeout only, and then the timestamp
 * if the operator has timeouts.
 *
 * @param threshold keys with a timeout before it have timed out; None: there are no timeouts
 */
final class GroupStates(
    store: StateStore,
    stateType: StructType,
    storesTimeout: Boolean,
    threshold: Option[Long],
    updated: SQLMetric,
    removed: SQLMetric) extends KeyState {

  override val sentSchema: StructType =
    new StructType().add("value", stateType).add("timeoutTimestamp", LongType)

  override val updateSchema: StructType = new StructType()
    .add("ordinal", LongType)
    .add("op", ByteType)
    .add("timeoutTimestamp", LongType)
    .add("value", stateType)

  private val stored = UnsafeProjection.create(
    if (storesTimeout) Array[DataType](stateType, LongType) else Array[DataType](stateType))
  private val storedFields = new GenericInternalRow(if (storesTimeout) 2 else 1)
  private val sentFields = new GenericInternalRow(2)
  sentFields.update(1, NO_TIMESTAMP)

  override def read(key: UnsafeRow, expired: Array[Long]): InternalRow = {
    val row = store.get(key)
    if (row != null && storesTimeout) row
    else {
      val hasValue = row != null && !row.isNullAt(0)
      sentFields.update(0, if (hasValue) row.getStruct(0, stateType.length) else null)
      sentFields
    }
  }

  override def update(key: UnsafeRow, update: InternalRow): Unit = {
    val operation = update.getByte(1)
    if (operation == InBandWire.Clear) {
      store.remove(key)
      removed += 1
    } else if (operation != InBandWire.Nothing) {
      storedFields.update(0, if (update.isNullAt(3)) null else update.getStruct(3, stateType.length))
      if (storesTimeout) storedFields.update(1, update.getLong(2))
      store.put(key, stored(storedFields))
      updated += 1
    }
  }

  override def expired(): Iterator[ExpiredKey] = threshold match {
    case Some(before) if storesTimeout =>
      store.iterator().filter { pair =>
        val timeout = pair.value.getLong(1)
        timeout != NO_TIMESTAMP && timeout < before
      }.map(pair => ExpiredKey(pair.key, Array.emptyLongArray))
    case _ => Iterator.empty
  }
}
