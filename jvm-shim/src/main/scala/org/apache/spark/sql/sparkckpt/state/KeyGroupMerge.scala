package org.apache.spark.sql.sparkckpt.state

import scala.collection.mutable

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.sparkckpt.format.{ChangeCursor, StateOp}

/**
 * Applies several change cursors, oldest first, and yields the net rows: one put per key, or one put
 * and the appends after it. It holds one key group at a time, so its memory is bounded by the largest
 * key group and not by the state. Nothing is assumed of the order of keys within a group.
 *
 * @param complete the oldest cursor starts from nothing: deletes have nothing left to delete and
 *                 appends nothing to append to
 */
final class KeyGroupMerge(cursors: Seq[ChangeCursor], complete: Boolean) {
  import KeyGroupMerge.Net

  private val live = mutable.ArrayBuffer.from(cursors.filter(_.advance()))
  private val group = new java.util.LinkedHashMap[UnsafeRow, Net]

  def foreach(emit: (Int, Byte, UnsafeRow, UnsafeRow) => Unit): Unit = {
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

object KeyGroupMerge {
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

    def emit(
        keyGroup: Int, key: UnsafeRow, to: (Int, Byte, UnsafeRow, UnsafeRow) => Unit): Unit = {
      if (!exists) {
        if (!complete) to(keyGroup, StateOp.Delete, key, null)
      } else {
        to(keyGroup, if (resets) StateOp.Put else StateOp.Append, key, first)
        if (rest != null) rest.foreach(to(keyGroup, StateOp.Append, key, _))
      }
    }
  }
}
