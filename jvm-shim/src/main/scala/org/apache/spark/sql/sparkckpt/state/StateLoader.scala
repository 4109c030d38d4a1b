package org.apache.spark.sql.sparkckpt.state

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.StateStore
import org.apache.spark.sql.sparkckpt.KeyGroupRange
import org.apache.spark.sql.sparkckpt.format._

/**
 * Fills a family of the working state from the files of a version: each live key is put once. Returns
 * the number of keys.
 */
object StateLoader {
  def load(
      storage: StateStorage,
      files: Seq[StateFileRef],
      range: KeyGroupRange,
      family: ColumnFamily,
      into: StateStore): Long =
    StateMerger.withCursors(storage, files, range, family) { cursors =>
      var keys = 0L
      def load(op: Byte, key: UnsafeRow, value: UnsafeRow): Unit = {
        if (op == StateOp.Put) keys += 1
        apply(into, family.name, op, key, value)
      }
      if (cursors.length == 1 && files.length == 1 && files.head.base) {
        val cursor = cursors.head
        while (cursor.advance()) load(cursor.op, cursor.key, cursor.value)
      } else {
        new KeyGroupMerge(cursors, complete = true).foreach { (_, op, key, value) =>
          load(op, key, value)
        }
      }
      keys
    }

  private def apply(
      into: StateStore, family: String, op: Byte, key: UnsafeRow, value: UnsafeRow): Unit =
    if (op == StateOp.Append) into.merge(key, value, family)
    else if (value == null) into.putList(key, Array.empty, family)
    else into.put(key, value, family)
}
