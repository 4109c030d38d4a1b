package org.apache.spark.sql.sparkckpt.state.memory

/**
 * The current record of each key. Keys are bytes: two keys are the same if their bytes are.
 *
 * A scan shows what was there when it was opened, whatever is changed meanwhile: operators remove
 * what they iterate over. As long as one is open, a change leaves alone what it looks at.
 */
private[memory] trait RecordIndex {
  def size: Long

  /** The address of the key's record, 0 if it has none. */
  def find(hash: Int, key: AnyRef, offset: Long, length: Int): Long

  /** The record that the key of this one has now, 0 if it has none. */
  def current(address: Long): Long

  /** Makes this the record of its key, and returns the one it had before, or 0. */
  def put(address: Long): Long

  /** Removes the key that this record has, and returns the record that it had, or 0. */
  def remove(address: Long): Long

  /** All records. */
  def scan(): RecordScan

  /** Scans that are still open fail from now on: nothing is kept for them. */
  def endScans(): Unit

  /**
   * Fills the empty index with all records there are, each the only one of its key. That is faster than
   * to put them one by one: what one of them waits for in memory does not hold up the next.
   */
  def build(keys: Long): Unit

  def close(): Unit
}

/** Records one after the other; `address` is valid after `advance` has returned true. */
private[memory] trait RecordScan {
  def advance(): Boolean
  def address: Long

  /** Called at the end or when it is not needed any more; more than once is allowed. */
  def close(): Unit
}

private[memory] object RecordScan {
  def ended: IllegalStateException =
    new IllegalStateException("The store that was iterated over is closed")
}
