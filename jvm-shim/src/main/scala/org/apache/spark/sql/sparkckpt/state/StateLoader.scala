package org.apache.spark.sql.sparkckpt.state

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.sparkckpt.KeyGroupRange
import org.apache.spark.sql.sparkckpt.format._

/** Fills a family of the working state from the files of a version: each live key is put once. */
object StateLoader {
  /** Loads the rows of these key groups. */
  def load(
      storage: StateStorage,
      files: Seq[StateFileRef],
      range: KeyGroupRange,
      family: ColumnFamily,
      into: StateFiller): Unit = load(storage, files, range, family, into, _ => true)

  /**
   * Loads what belongs into this range of another number of key groups than the files are cut by: all
   * are read, and each key is asked for its place.
   */
  def resplit(
      storage: StateStorage,
      files: Seq[StateFileRef],
      range: KeyGroupRange,
      family: ColumnFamily,
      extractor: KeyGroupExtractor,
      into: StateFiller): Unit =
    load(storage, files, KeyGroupRange.Everything, family, into,
      key => range.contains(extractor.keyGroupOf(key)))

  private def load(
      storage: StateStorage,
      files: Seq[StateFileRef],
      range: KeyGroupRange,
      family: ColumnFamily,
      into: StateFiller,
      isWanted: UnsafeRow => Boolean): Unit = {
    val sink: ChangeSink = (_, op, key, value) => if (isWanted(key)) {
      if (op == StateOp.Append) into.append(key, value) else into.put(key, value)
    }
    val baseAlone = files.length == 1 && files.head.base
    StateMerger.foreachCursors(storage, files, range, family) { cursors =>
      if (baseAlone) {
        val cursor = cursors.head
        while (cursor.advance()) sink(cursor.keyGroup, cursor.op, cursor.key, cursor.value)
      } else {
        KeyGroupMerge.ofFiles(cursors, family.multiValued, complete = true).foreach(sink)
      }
    }
  }
}
