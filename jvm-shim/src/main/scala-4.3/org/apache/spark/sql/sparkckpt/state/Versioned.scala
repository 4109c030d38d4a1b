package org.apache.spark.sql.sparkckpt.state

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.types.StructType

/** The part of a state store that is particular to Spark 4.3. */
trait VersionedStateStore extends StateStore with SupportsReusableIterator {
  protected[state] def engineStore: StateStore

  override def reusableIterator(family: String): ReusableIterator[UnsafeRowPair] =
    new ReusableIterator[UnsafeRowPair] {
      private var over = engineStore
      private var rows = opened()

      private def opened(): ReusableIterator[UnsafeRowPair] =
        over.asInstanceOf[SupportsReusableIterator].reusableIterator(family)

      /** The engine may have another store by now. */
      override def refreshAndSeekToPrefix(prefix: UnsafeRow): Unit = {
        if (over ne engineStore) {
          rows.close()
          over = engineStore
          rows = opened()
        }
        rows.refreshAndSeekToPrefix(prefix)
      }
      override def hasNext: Boolean = rows.hasNext
      override def next(): UnsafeRowPair = rows.next()
      override def close(): Unit = rows.close()
    }

  override def registerColFamily(
      name: String,
      keySchema: StructType,
      valueSchema: StructType,
      keySpec: KeyStateEncoderSpec,
      multiValued: Boolean,
      isInternal: Boolean): Unit =
    createColFamilyIfAbsent(name, keySchema, valueSchema, keySpec, multiValued, isInternal)
}

/** The part of a provider that is particular to Spark 4.3: maintenance comes in two halves. */
trait VersionedStateStoreProvider extends StateStoreProvider {
  protected def mergeFiles(): Unit
  protected def cleanUp(): Unit

  override def doMaintenance(): Unit = {
    doSnapshotMaintenance()
    doCleanupMaintenance()
  }
  override def doSnapshotMaintenance(): Unit = mergeFiles()
  override def doCleanupMaintenance(): Unit = cleanUp()
}
