package org.apache.spark.sql.sparkckpt.state

import org.apache.spark.sql.execution.streaming.state.StateStoreId
import org.apache.spark.sql.sparkckpt.{KeyGroups, OperatorLayout, SparkckptErrors}
import org.apache.spark.sql.sparkckpt.format._

/**
 * A version of a store to be loaded.
 *
 * @param resplit its files are cut by another number of key groups than the handle says: they can be
 *                loaded, but no later version may refer to them
 * @param operatorState where it comes from, if it was taken over from a manifest
 */
case class StateVersion(
    handle: StateHandle,
    resplit: Boolean,
    operatorState: Option[OperatorStateRedistribution] = None)

/**
 * Finds what Spark means by a checkpoint id of one store. It is the store's own handle, or, after a
 * rescaling or a restore, a manifest of the whole checkpoint, of which the store takes its part.
 *
 * @param layout None if the store is only read
 */
final class StateVersions(
    storeId: StateStoreId, storage: StateStorage, layout: Option[OperatorLayout]) {

  /** @param parallelism of the reader, if it is known and there is no layout */
  def read(version: Long, id: String, parallelism: Option[Int] = None): StateVersion =
    if (Manifest.isManifest(id)) ofManifest(version, id, parallelism)
    else StateVersion(checked(readHandle(version, id)), resplit = false)

  /** The handle of a version of this very store: one that was put there by hand is no state of it. */
  private def readHandle(version: Long, id: String): StateHandle = {
    val handle = storage.readHandle(version, id)
    val is = (handle.operatorId, handle.partition, handle.storeName, handle.version, handle.id)
    val wanted = (storeId.operatorId, storeId.partitionId, storeId.storeName, version, id)
    if (is != wanted) {
      throw SparkckptErrors.foreignHandle(storage.handlePath(version, id), is.toString, wanted.toString)
    }
    handle
  }

  private def checked(handle: StateHandle): StateHandle = {
    layout.foreach { l =>
      if (handle.maxParallelism != l.maxParallelism) {
        throw SparkckptErrors.otherMaxParallelism(
          storage.directory.toString, handle.maxParallelism, l.maxParallelism)
      }
      if (handle.parallelism != l.parallelism) {
        throw SparkckptErrors.otherParallelism(
          storage.directory.toString, handle.parallelism, l.parallelism)
      }
    }
    handle
  }

  private def ofManifest(version: Long, id: String, known: Option[Int]): StateVersion = {
    val manifest = storage.readManifest(id)
    val operator = manifest.operators.getOrElse(storeId.operatorId,
      throw SparkckptErrors.notInManifest(storeId.toString, id, manifest.operators.values.toSeq
        .sortBy(_.operatorId).map(o => s"${o.operatorId} (${o.operatorName})")))
    val parallelism = layout.map(_.parallelism).orElse(known).getOrElse(
      if (operator.keyed) storage.readParallelism(version - 1) else 1)
    val maxParallelism = layout.map(_.maxParallelism).getOrElse(operator.maxParallelism)
    val range = KeyGroups.rangeOf(storeId.partitionId, parallelism, maxParallelism)
    val resplit = maxParallelism != operator.maxParallelism
    val families =
      if (resplit) operator.everything(storeId.storeName)
      else operator.slices(storeId.storeName, range)
    StateVersion(StateHandle(
      storeId.operatorId, operator.operatorName, storeId.storeName, storeId.partitionId, version, id,
      baseId = None, operator.keyed, parallelism, maxParallelism, range.first, range.last,
      changedRows = 0, changeDigest = "0" * 16, families), resplit,
      operator.operatorState(storeId.storeName, storeId.partitionId, parallelism))
  }
}
