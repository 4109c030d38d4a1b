package org.apache.spark.sql.sparkckpt.state

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.StateStore
import org.apache.spark.sql.sparkckpt.format.StateOp

/** All rows of a family as the operations that make it from nothing: what a base file holds. */
object StateRows {
  def foreach(store: StateStore, family: ColumnFamily)(
      emit: (Byte, UnsafeRow, UnsafeRow) => Unit): Unit = {
    val rows =
      if (family.multiValued) store.iteratorWithMultiValues(family.name) else store.iterator(family.name)
    var last: UnsafeRow = null
    try rows.foreach { pair =>
      if (family.multiValued && pair.key == last) emit(StateOp.Append, pair.key, pair.value)
      else {
        if (family.multiValued) last = pair.key.copy()
        emit(StateOp.Put, pair.key, pair.value)
      }
    } finally rows.close()
  }
}
