package org.apache.spark.sql.sparkckpt.state.memory

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._

/** The part of a store in memory that is particular to Spark 4.3: iterators that can be moved. */
private[memory] trait VersionedMemoryStore extends StateStore with SupportsReusableIterator {
  protected def iteratorFromPrefix(
      prefix: UnsafeRow, family: String): StateStoreIterator[UnsafeRowPair]

  override def reusableIterator(family: String): ReusableIterator[UnsafeRowPair] =
    new ReusableIterator[UnsafeRowPair] {
      private var rows = VersionedMemoryStore.this.iterator(family)

      override def refreshAndSeekToPrefix(prefix: UnsafeRow): Unit = {
        rows.close()
        rows = iteratorFromPrefix(prefix, family)
      }
      override def hasNext: Boolean = rows.hasNext
      override def next(): UnsafeRowPair = rows.next()
      override def close(): Unit = rows.close()
    }
}
