package org.apache.spark.sql.sparkckpt.state

import scala.collection.mutable

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.sparkckpt.format.{ChangeCursor, ChangeSink, StateOp}

/**
 * Applies several change cursors, oldest first, and yields the net rows: one put per key, or one put
 * and the appends after it. It holds one key group at a time, so its memory is bounded by the largest
 * key group and not by the state. Nothing is assumed of the order of keys within a group.
 */
trait KeyGroupMerge {
  def foreach(emit: ChangeSink): Unit
}

/** Of changes that build on each other: appends. */
private final class HistoryMerge(cursors: Seq[ChangeCursor], complete: Boolean)
  extends KeyGroupMerge {
  import HistoryMerge.Net

  private val live = mutable.ArrayBuffer.from(cursors.filter(_.advance()))
  private val group = new java.util.LinkedHashMap[UnsafeRow, Net]

  override def foreach(emit: ChangeSink): Unit = {
    while (live.nonEmpty) {
      val keyGroup = live.iterator.map(_.keyGroup).min
      live.filterInPlace(drain(_, keyGroup))
      group.forEach((key, net) => net.emit(keyGroup, key, emit))
      group.clear()
    }
  }

  /** Takes the cursor's rows of the group; false if it is exhausted. */
  private def drain(cursor: ChangeCursor, keyGroup: Int): Boolean = {
    while (cursor.keyGroup == keyGroup) {
      val key = cursor.key
      var net = group.get(key)
      if (net == null) {
        net = new Net(complete)
        group.put(key.copy(), net)
      }
      val value = cursor.value
      net.apply(cursor.op, if (value == null) null else value.copy())
      if (!cursor.advance()) return false
    }
    true
  }
}

private object HistoryMerge {
  /** What the changes to one key come to. */
  private final class Net(complete: Boolean) {
    /** Whatever older files say of the key is overridden. */
    private var resets = complete
    private var exists = false
    private var first: UnsafeRow = _
    private var rest: mutable.ArrayBuffer[UnsafeRow] = _

    def apply(op: Byte, value: UnsafeRow): Unit = op match {
      case StateOp.Put => resets = true; exists = true; first = value; rest = null
      case StateOp.Delete => resets = true; exists = false; first = null; rest = null
      case _ =>
        exists = true
        if (first == null) first = value
        else {
          if (rest == null) rest = mutable.ArrayBuffer.empty
          rest += value
        }
    }

    def emit(keyGroup: Int, key: UnsafeRow, to: ChangeSink): Unit = {
      if (!exists) {
        if (!complete) to(keyGroup, StateOp.Delete, key, null)
      } else {
        to(keyGroup, if (resets) StateOp.Put else StateOp.Append, key, first)
        if (rest != null) rest.foreach(to(keyGroup, StateOp.Append, key, _))
      }
    }
  }
}

/**
 * Of puts and deletes, at most one per key and cursor: the newest that has a key decides. Older rows
 * of it are passed over unread, and only the keys of newer cursors are remembered.
 */
private final class NewestMerge(cursors: Seq[ChangeCursor], complete: Boolean)
  extends KeyGroupMerge {
  private val newestFirst = cursors.reverse.filter(_.advance()).toArray
  private val exhausted = new Array[Boolean](newestFirst.length)
  private val seen = new KeySet

  override def foreach(emit: ChangeSink): Unit = {
    var keyGroup = lowest()
    while (keyGroup >= 0) {
      val last = oldestWith(keyGroup)
      var i = 0
      while (i <= last) {
        drain(i, keyGroup, remember = i < last, emit)
        i += 1
      }
      seen.clear()
      keyGroup = lowest()
    }
  }

  private def drain(index: Int, keyGroup: Int, remember: Boolean, emit: ChangeSink): Unit = {
    val cursor = newestFirst(index)
    while (isAt(index, keyGroup)) {
      val key = cursor.key
      val isNewest = if (remember) seen.add(key) else !seen.contains(key)
      if (isNewest) {
        if (cursor.op != StateOp.Delete) emit(keyGroup, StateOp.Put, key, cursor.value)
        else if (!complete) emit(keyGroup, StateOp.Delete, key, null)
      }
      exhausted(index) = !cursor.advance()
    }
  }

  private def isAt(index: Int, keyGroup: Int): Boolean =
    !exhausted(index) && newestFirst(index).keyGroup == keyGroup

  private def oldestWith(keyGroup: Int): Int = {
    var i = newestFirst.length - 1
    while (!isAt(i, keyGroup)) i -= 1
    i
  }

  /** The lowest key group that a cursor is at, -1 if all are exhausted. */
  private def lowest(): Int = {
    var lowest = -1
    var i = 0
    while (i < newestFirst.length) {
      if (!exhausted(i)) {
        val keyGroup = newestFirst(i).keyGroup
        if (lowest < 0 || keyGroup < lowest) lowest = keyGroup
      }
      i += 1
    }
    lowest
  }
}

object KeyGroupMerge {
  /**
   * Of the files of a family.
   *
   * @param complete the oldest file starts from nothing: deletes have nothing left to delete and
   *                 appends nothing to append to
   */
  def ofFiles(
      cursors: Seq[ChangeCursor], multiValued: Boolean, complete: Boolean): KeyGroupMerge =
    if (multiValued) new HistoryMerge(cursors, complete) else new NewestMerge(cursors, complete)
}
