package org.apache.spark.sql.sparkckpt.inband

import scala.collection.mutable

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.encoders.ExpressionEncoder
import org.apache.spark.sql.catalyst.expressions.{GenericInternalRow, UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.timers.{TimerStateImpl, TimerStateUtils}
import org.apache.spark.sql.execution.streaming.state.StateStore
import org.apache.spark.sql.streaming.TimeMode
import org.apache.spark.sql.types._

/** The timers of a StatefulProcessor, by rows, in the two column families in which Spark keeps them. */
private[inband] final class ProcessorTimers(
    store: StateStore,
    keyEncoder: ExpressionEncoder[Any],
    keySchema: StructType,
    timeMode: TimeMode,
    nowMs: Long) {
  // It makes sure that the column families exist.
  new TimerStateImpl(store, timeMode, keyEncoder)
  private val (byKey, byTime) = TimerStateUtils.getTimerStateVarNames(timeMode.toString)

  private val keyThenTime = UnsafeProjection.create(Array[DataType](keySchema, LongType))
  private val timeThenKey = UnsafeProjection.create(Array[DataType](LongType, keySchema))
  private val prefix = UnsafeProjection.create(Array[DataType](keySchema))
  private val one = new GenericInternalRow(1)
  private val two = new GenericInternalRow(2)
  private val noValue = UnsafeProjection.create(Array[DataType](NullType)).apply(InternalRow(null))

  def register(key: UnsafeRow, timestampMs: Long): Unit = {
    store.put(rowByKey(key, timestampMs), noValue, byKey)
    store.put(rowByTime(key, timestampMs), noValue, byTime)
  }

  def delete(key: UnsafeRow, timestampMs: Long): Unit = {
    store.remove(rowByKey(key, timestampMs), byKey)
    store.remove(rowByTime(key, timestampMs), byTime)
  }

  /** Ascending. */
  def of(key: UnsafeRow): Array[Long] = {
    one.update(0, key)
    val pairs = store.prefixScan(prefix(one), byKey)
    try pairs.map(_.key.getLong(1)).toArray.sorted finally pairs.close()
  }

  /**
   * Keys in the order of their first expired timer, each with all that have expired: what the
   * processor does at one timer must be seen at the next of the same key.
   */
  def expired(): Iterator[ExpiredKey] = {
    val pairs = store.iterator(byTime)
    val told = mutable.Map.empty[UnsafeRow, Int]
    pairs.takeWhile { pair =>
      val isExpired = pair.key.getLong(0) <= nowMs
      if (!isExpired) pairs.close()
      isExpired
    }.flatMap { pair =>
      val key = pair.key.getStruct(1, keySchema.length)
      told.get(key) match {
        case Some(1) => told.remove(key); None
        case Some(more) => told.update(key.copy(), more - 1); None
        case None =>
          val timers = of(key).filter(_ <= nowMs)
          val copy = key.copy()
          if (timers.length > 1) told.update(copy, timers.length - 1)
          Some(ExpiredKey(copy, timers))
      }
    }
  }

  private def rowByKey(key: UnsafeRow, timestampMs: Long): UnsafeRow = {
    two.update(0, key)
    two.update(1, timestampMs)
    keyThenTime(two)
  }

  private def rowByTime(key: UnsafeRow, timestampMs: Long): UnsafeRow = {
    two.update(0, timestampMs)
    two.update(1, key)
    timeThenKey(two)
  }
}
