package org.apache.spark.sql.sparkckpt.transfer

import java.util.UUID

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.broadcast.Broadcast
import org.apache.spark.sql.catalyst.expressions.{UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqMetadata
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.sparkckpt.{KeyGroups, OperatorLayout, SparkckptConf}
import org.apache.spark.util.SerializableConfiguration

/**
 * The stores of one side of a transfer, opened from tasks, each by a provider of its own that knows
 * of no query: it has no coordinator to report to and no maintenance.
 */
final class StateSide(
    stateRoot: String,
    val parallelism: Int,
    maxParallelism: Option[Int],
    storeConf: StateStoreConf,
    hadoopConf: Broadcast[SerializableConfiguration]) extends Serializable {

  def parallelismOf(shape: StoreShape): Int = if (shape.keyed) parallelism else 1

  def open(shape: StoreShape, partition: Int): StateStoreProvider =
    StateStoreProvider.createAndInit(
      StateStoreProviderId(
        StateStoreId(stateRoot, shape.operatorId, partition, shape.storeName), UUID.randomUUID()),
      shape.default.registeredKeySchema, shape.default.valueSchema, shape.default.keySpec,
      shape.useColumnFamilies, storeConf, new Configuration(hadoopConf.value.value),
      useMultipleValuesPerKey = false, shape.schemaProvider)

  /** Where the rows of a family belong: to a key group's owner, or where Spark's exchange sends them. */
  def partitionOf(shape: StoreShape, family: FamilyShape): UnsafeRow => Int =
    if (!shape.keyed) _ => 0
    else {
      val hash = UnsafeProjection.create(Seq(KeyGroups.hashExpression(family.groupingKey)))
      maxParallelism match {
        case Some(m) =>
          key => KeyGroups.partitionOf(KeyGroups.keyGroupOf(hash(key).getInt(0), m), parallelism, m)
        case None => key => Math.floorMod(hash(key).getInt(0), parallelism)
      }
    }
}

object StateSide {
  def apply(
      side: TransferSide,
      sessionConf: SQLConf,
      shapes: Seq[StoreShape],
      hadoopConf: Broadcast[SerializableConfiguration]): StateSide = {
    val stateRoot = new Path(qualified(side.checkpoint, hadoopConf.value.value), "state").toString
    val conf = sessionConf.clone()
    OffsetSeqMetadata.setSessionConf(OffsetSeqMetadata(conf = side.confs), conf)
    conf.setConf(SQLConf.STATE_STORE_CHECKPOINT_FORMAT_VERSION, side.formatVersion)
    fixed.foreach { case (key, value) => conf.setConfString(key, value) }
    side.maxParallelism.foreach { m =>
      conf.setConfString(SparkckptConf.MaxParallelism.key, m.toString)
      // Only metrics need the number of keys, and each key would have to be looked up.
      conf.setConfString(
        s"${RocksDBConf.ROCKSDB_SQL_CONF_NAME_PREFIX}.trackTotalNumberOfRows", "false")
      shapes.foreach { shape =>
        val parallelism = if (shape.keyed) side.parallelism else 1
        conf.setConfString(OperatorLayout.confKey(shape.operatorId),
          OperatorLayout(stateRoot, shape.operatorName, parallelism, m, shape.keyed, None).json)
      }
    }
    new StateSide(stateRoot, side.parallelism, side.maxParallelism, StateStoreConf(conf), hadoopConf)
  }

  def qualified(location: String, hadoopConf: Configuration): Path = {
    val path = new Path(location)
    path.getFileSystem(hadoopConf).makeQualified(path)
  }

  /** There is no query that a store could report to. */
  private val fixed = Map(
    SparkckptConf.CoordinatorEnabled.key -> "false",
    "spark.sql.streaming.stateStore.commitValidation.enabled" -> "false",
    "spark.sql.streaming.stateStore.coordinatorReportSnapshotUploadLag" -> "false",
    "spark.sql.streaming.stateStore.forceSnapshotUploadOnLag" -> "false")
}
