package org.apache.spark.sql.sparkckpt.state.memory

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._

/** The part of a store in memory that is particular to Spark 4.2: nothing. */
private[memory] trait VersionedMemoryStore extends StateStore {
  protected def iteratorFromPrefix(
      prefix: UnsafeRow, family: String): StateStoreIterator[UnsafeRowPair]
}
