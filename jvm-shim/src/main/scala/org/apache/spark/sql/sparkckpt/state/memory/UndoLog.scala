package org.apache.spark.sql.sparkckpt.state.memory

/**
 * The changes of one version to the records of a family, in their order: the record that a key had and
 * the one it has, 0 for none. Whoever keeps the log can go back; once it is dropped, the records that
 * were replaced are dead.
 */
private[memory] final class UndoLog {
  private var entries = new Array[Long](16)
  private var length = 0

  def isEmpty: Boolean = length == 0

  def add(before: Long, after: Long): Unit = {
    if (length == entries.length) entries = java.util.Arrays.copyOf(entries, 2 * length)
    entries(length) = before
    entries(length + 1) = after
    length += 2
  }

  def foreach(visit: (Long, Long) => Unit): Unit = {
    var i = 0
    while (i < length) {
      visit(entries(i), entries(i + 1))
      i += 2
    }
  }

  def foreachBackwards(visit: (Long, Long) => Unit): Unit = {
    var i = length - 2
    while (i >= 0) {
      visit(entries(i), entries(i + 1))
      i -= 2
    }
  }
}
