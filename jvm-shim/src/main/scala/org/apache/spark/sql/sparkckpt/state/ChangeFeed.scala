package org.apache.spark.sql.sparkckpt.state

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.{RecordType, StateStoreChangeDataReader, StateStoreConf, StateStoreId}
import org.apache.spark.sql.sparkckpt.{KeyGroupRange, SparkckptErrors}
import org.apache.spark.sql.sparkckpt.format._

/** The changes of a family from one version to another, along the chain of ids that ends in `endId`. */
final class ChangeFeed(
    storeId: StateStoreId,
    storage: StateStorage,
    versions: StateVersions,
    storeConf: StateStoreConf,
    startVersion: Long,
    endVersion: Long,
    endId: String,
    family: ColumnFamily)
  extends StateStoreChangeDataReader(storeId, null, storage.directory, math.max(startVersion, 1L),
    endVersion, null, storeConf, Some(family.name)) {

  /** Spark's changelogs, which there are none of. */
  override protected val changelogSuffix: String = ""

  private val files =
    handles(endVersion, Some(endId), None, Nil).iterator.flatMap(_.ownFiles(family.name))
  private var current: StateFileReader = _
  private var currentVersion = 0L

  /** Oldest first. The part of a manifest is that of the handle which was made from it. */
  private def handles(
      version: Long,
      id: Option[String],
      parallelism: Option[Int],
      newer: List[StateHandle]): List[StateHandle] =
    if (version < startVersion || version < 1) newer
    else {
      val handle = versions.read(version, id.getOrElse(
        throw SparkckptErrors.changesUnknown(storage.directory.toString, version)), parallelism).handle
      handles(version - 1, handle.baseId, Some(handle.parallelism), handle :: newer)
    }

  override def getNext(): (RecordType.Value, UnsafeRow, UnsafeRow, Long) = {
    while (current == null || !current.advance()) {
      close()
      if (!files.hasNext) {
        finished = true
        return null
      }
      val file = files.next()
      currentVersion = file.lastVersion
      current = storage.open(file, KeyGroupRange.Everything, family.keySchema, family.valueSchema)
    }
    val record = current.op match {
      case StateOp.Put => RecordType.PUT_RECORD
      case StateOp.Delete => RecordType.DELETE_RECORD
      case _ => RecordType.MERGE_RECORD
    }
    (record, current.key, current.value, currentVersion - 1)
  }

  override def close(): Unit = if (current != null) {
    current.close()
    current = null
  }
}
