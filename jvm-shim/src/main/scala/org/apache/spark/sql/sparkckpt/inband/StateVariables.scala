package org.apache.spark.sql.sparkckpt.inband

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{GenericInternalRow, UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.execution.metric.SQLMetric
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.statevariables.ListStateImpl
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.ttl.{OneToManyTTLState, OneToOneTTLState}
import org.apache.spark.sql.execution.streaming.state.StateStore
import org.apache.spark.sql.types._

/** How values lie in the store: alone, or as (value, time at which it expires). */
private[inband] final class ValueRows(schema: StructType, expires: Option[() => Long], nowMs: Long) {
  private val plain = UnsafeProjection.create(schema)
  private val expiring = UnsafeProjection.create(Array[DataType](schema, LongType))
  private val pair = new GenericInternalRow(2)

  /** Valid until the next call. */
  def stored(value: InternalRow): UnsafeRow = expires match {
    case None => plain(value)
    case Some(at) =>
      pair.update(0, value)
      pair.update(1, at())
      expiring(pair)
  }

  /** Null for a row that is null or has expired. */
  def value(stored: UnsafeRow): UnsafeRow =
    if (stored == null || expires.isEmpty) stored
    else if (isExpired(stored.getLong(1))) null
    else stored.getStruct(0, schema.length)

  private def isExpired(atMs: Long): Boolean =
    atMs != ValueRows.Never && atMs <= nowMs
}

private object ValueRows {
  /** As Spark writes it. */
  val Never: Long = -1
}

/** What Spark's own state variables and timers count in the metrics of their operator. */
private[inband] final class ProcessorCounts(metric: String => SQLMetric) {
  private val updated = metric("numUpdatedStateRows")
  private val removed = metric("numRemovedStateRows")
  private val registered = metric("numRegisteredTimers")
  private val deleted = metric("numDeletedTimers")

  def put(rows: Long = 1): Unit = updated += rows
  def remove(rows: Long = 1): Unit = removed += rows
  def register(): Unit = registered += 1
  def delete(): Unit = deleted += 1
}

private[inband] final class ValueVariable(
    store: StateStore,
    name: String,
    schema: StructType,
    rows: ValueRows,
    ttl: Option[OneToOneTTLState],
    counts: ProcessorCounts) extends StateVariable {

  override val sentType: DataType = schema
  override val updateType: DataType = schema

  override def read(key: UnsafeRow): Any = rows.value(store.get(key, name))

  override def update(key: UnsafeRow, operation: Byte, update: InternalRow, value: Int): Unit =
    operation match {
      case InBandWire.Put =>
        val row = rows.stored(update.getStruct(value, schema.length))
        ttl match {
          case Some(state) => state.updatePrimaryAndSecondaryIndices(key, row, state.ttlExpirationMs)
          case None =>
            store.put(key, row, name)
            counts.put()
        }
      case _ =>
        ttl match {
          case Some(state) => state.clearAllStateForElementKey(key)
          case None =>
            store.remove(key, name)
            counts.remove()
        }
    }
}

private[inband] final class ListVariable(
    store: StateStore,
    name: String,
    schema: StructType,
    rows: ValueRows,
    list: Either[ListStateImpl[_], OneToManyTTLState],
    counts: ProcessorCounts,
    policy: SendingPolicy) extends FetchableVariable {

  override val sentType: DataType = ArrayType(schema)
  override val updateType: DataType = ArrayType(schema)
  override val fetchSchema: StructType = schema

  override def fetch(key: UnsafeRow): Iterator[InternalRow] = {
    policy.fetched()
    // The store may give the same row again with other content.
    values(key).map(_.copy())
  }

  override def read(key: UnsafeRow): Any = if (policy.isSent) policy.collect(values(key)) else null

  private def values(key: UnsafeRow): Iterator[InternalRow] =
    store.valuesIterator(key, name).map(rows.value).filter(_ != null)

  override def update(key: UnsafeRow, operation: Byte, update: InternalRow, value: Int): Unit =
    operation match {
      case InBandWire.Clear => clear(key)
      case _ => write(key, encoded(update, value), replace = operation == InBandWire.Put)
    }

  private def encoded(update: InternalRow, value: Int): Array[UnsafeRow] = {
    val array = update.getArray(value)
    Array.tabulate(array.numElements()) { i =>
      rows.stored(array.getStruct(i, schema.length)).copy()
    }
  }

  private def write(key: UnsafeRow, values: Array[UnsafeRow], replace: Boolean): Unit = list match {
    case Right(state) =>
      state.updatePrimaryAndSecondaryIndices(replace, key, values.iterator, state.ttlExpirationMs)
    case Left(state) =>
      val before = if (replace) 0 else state.getEntryCount(key)
      if (replace) store.putList(key, values, name) else store.mergeList(key, values, name)
      state.updateEntryCount(key, before + values.length)
      counts.put(values.length)
  }

  private def clear(key: UnsafeRow): Unit = list match {
    case Right(state) => state.clearAllStateForElementKey(key)
    case Left(state) =>
      store.remove(key, name)
      counts.remove(state.getEntryCount(key))
      state.removeEntryCount(key)
  }
}

private[inband] final class MapVariable(
    store: StateStore,
    name: String,
    keySchema: StructType,
    userKeySchema: StructType,
    schema: StructType,
    rows: ValueRows,
    ttl: Option[OneToOneTTLState],
    counts: ProcessorCounts,
    policy: SendingPolicy) extends FetchableVariable {

  override val fetchSchema: StructType =
    new StructType().add("key", userKeySchema).add("value", schema)
  override val sentType: DataType = ArrayType(fetchSchema)
  override val updateType: DataType = ArrayType(fetchSchema)

  private val prefix = UnsafeProjection.create(Array[DataType](keySchema))
  private val prefixFields = new GenericInternalRow(1)
  private val composite = UnsafeProjection.create(Array[DataType](keySchema, userKeySchema))
  private val compositeFields = new GenericInternalRow(2)
  private val entry = new GenericInternalRow(2)

  override def fetch(key: UnsafeRow): Iterator[InternalRow] = {
    policy.fetched()
    val pairs = scan(key)
    val all = try entries(pairs).map(_.copy()).toArray finally pairs.close()
    all.iterator
  }

  override def read(key: UnsafeRow): Any = if (policy.isSent) {
    val pairs = scan(key)
    try policy.collect(entries(pairs)) finally pairs.close()
  } else null

  private def scan(key: UnsafeRow) = {
    prefixFields.update(0, key)
    store.prefixScan(prefix(prefixFields), name)
  }

  private def entries(
      pairs: Iterator[org.apache.spark.sql.execution.streaming.state.UnsafeRowPair]): Iterator[InternalRow] =
    pairs.flatMap { pair =>
      val value = rows.value(pair.value)
      if (value == null) None
      else {
        entry.update(0, pair.key.getStruct(1, userKeySchema.length))
        entry.update(1, value)
        Some(entry)
      }
    }

  override def update(key: UnsafeRow, operation: Byte, update: InternalRow, value: Int): Unit = {
    if (operation == InBandWire.Clear || operation == InBandWire.ClearAndAppend) clear(key)
    if (operation != InBandWire.Clear && operation != InBandWire.Nothing) {
      val changes = update.getArray(value)
      var i = 0
      while (i < changes.numElements()) {
        val change = changes.getStruct(i, 2)
        compositeFields.update(0, key)
        compositeFields.update(1, change.getStruct(0, userKeySchema.length))
        val elementKey = composite(compositeFields)
        if (change.isNullAt(1)) {
          store.remove(elementKey, name)
          counts.remove()
        } else put(elementKey, rows.stored(change.getStruct(1, schema.length)))
        i += 1
      }
    }
  }

  private def put(elementKey: UnsafeRow, row: UnsafeRow): Unit = ttl match {
    case Some(state) => state.updatePrimaryAndSecondaryIndices(elementKey, row, state.ttlExpirationMs)
    case None =>
      store.put(elementKey, row, name)
      counts.put()
  }

  private def clear(key: UnsafeRow): Unit = {
    val pairs = scan(key)
    val elementKeys = try pairs.map(_.key.copy()).toArray finally pairs.close()
    elementKeys.foreach { elementKey =>
      ttl match {
        case Some(state) => state.clearAllStateForElementKey(elementKey)
        case None =>
          store.remove(elementKey, name)
          counts.remove()
      }
    }
  }
}
