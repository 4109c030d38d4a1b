package org.apache.spark.sql.sparkckpt.transfer

import org.apache.spark.TaskContext
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.sparkckpt.SparkckptErrors
import org.apache.spark.sql.sparkckpt.state.KeyGroupStateStore
import org.apache.spark.util.CompletionIterator

/** Reads every row of a store's partition, and says to which partition of the target it belongs. */
final class StateReader(source: StateSide, target: StateSide, version: Long) extends Serializable {

  /** The source is only read: the store is opened so that it cannot be written. */
  def read(
      shape: StoreShape, partition: Int, id: Option[String]): Iterator[(Int, Array[Byte])] = {
    val provider = source.open(shape, partition)
    // Before the store adds listeners of its own, which run first and need the provider.
    TaskContext.get().addTaskCompletionListener[Unit](_ => provider.close())
    val store = provider.getReadStore(version, id)
    if (shape.useColumnFamilies) {
      val writable = store.asInstanceOf[StateStore]
      requireKnown(writable, shape)
      shape.families.filterNot(_.isDefault).foreach(_.createIn(writable))
    }
    val rows = shape.families.iterator.zipWithIndex.flatMap { case (family, index) =>
      rowsOf(store, family, index, target.partitionOf(shape, family))
    }
    // A store that is still open when its task ends is taken for one whose task has failed.
    CompletionIterator[(Int, Array[Byte]), Iterator[(Int, Array[Byte])]](rows, store.abort())
  }

  private def rowsOf(
      store: ReadStateStore,
      family: FamilyShape,
      index: Int,
      partitionOf: UnsafeRow => Int): Iterator[(Int, Array[Byte])] =
    if (!family.multiValued) {
      store.iterator(family.name).map { pair =>
        partitionOf(pair.key) -> StateRecord.pack(index, 0, pair.key, pair.value)
      }
    } else {
      var last: UnsafeRow = null
      var position = 0L
      store.iteratorWithMultiValues(family.name).map { pair =>
        if (pair.key == last) position += 1
        else {
          last = pair.key.copy()
          position = 0
        }
        partitionOf(pair.key) -> StateRecord.pack(index, position, pair.key, pair.value)
      }
    }

  private def requireKnown(store: StateStore, shape: StoreShape): Unit = {
    val present = store match {
      case ours: KeyGroupStateStore => ours.base.toSeq.flatMap(_.families.map(_.family)).toSet
      case other => other.allColumnFamilyNames
    }
    val unknown = present - StateStore.DEFAULT_COL_FAMILY_NAME -- shape.families.map(_.name)
    if (unknown.nonEmpty) throw SparkckptErrors.unknownFamilies(store.id.toString, unknown.toSeq.sorted)
  }
}
