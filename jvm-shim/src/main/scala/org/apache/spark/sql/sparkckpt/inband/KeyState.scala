package org.apache.spark.sql.sparkckpt.inband

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.types.StructType

/** A key whose time has come; `timers` are those that have expired, if it has timers. */
case class ExpiredKey(key: UnsafeRow, timers: Array[Long])

/**
 * The state that goes in-band with the rows of an operator: how that of a key is read from the store
 * when the key is sent, and how what came back for it is written. It keeps Spark's own layout in the
 * store, so that a query may go on without it.
 */
trait KeyState {
  /** Of the struct beside the first row of a key. */
  def sentSchema: StructType

  /** Of the struct that comes back; its first field is the number of the key. */
  def updateSchema: StructType

  /** What is sent for a key; valid until the next call. */
  def read(key: UnsafeRow, expired: Array[Long]): InternalRow

  def update(key: UnsafeRow, update: InternalRow): Unit

  /** Once all input has been processed; each key once. */
  def expired(): Iterator[ExpiredKey]
}

/** State that was too large to be sent, or is rarely asked for: Python fetches it. */
trait FetchableState {
  /** Whether there is anything to fetch; without, no server is started. */
  def canBeFetched: Boolean

  def fetchSchema(variable: Int): StructType

  /** Rows are valid until the next one. */
  def fetch(key: UnsafeRow, variable: Int): Iterator[InternalRow]
}
