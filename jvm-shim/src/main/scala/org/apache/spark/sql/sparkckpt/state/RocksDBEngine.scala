package org.apache.spark.sql.sparkckpt.state

import org.apache.hadoop.conf.Configuration

import org.apache.spark.SparkEnv
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types.StructType
import org.apache.spark.util.Utils

/**
 * The working state in Spark's own RocksDB store, on executor-local disk. The delegate counts its own
 * versions from 0; it is asked for the version it has or for version 0, never for one it would have
 * to look for.
 */
final class RocksDBEngine(
    storeId: StateStoreId,
    keySchema: StructType,
    valueSchema: StructType,
    keyEncoderSpec: KeyStateEncoderSpec,
    useColumnFamilies: Boolean,
    storeConf: StateStoreConf,
    hadoopConf: Configuration,
    multiValued: Boolean,
    schemaProvider: Option[StateSchemaProvider]) extends StateEngine {

  private val localRoot = Utils.createExecutorLocalTempDir(SparkEnv.get.conf, "sparkckpt-rocksdb")
  private val delegate = new LocalRocksDBStateStoreProvider
  delegate.init(
    storeId.copy(checkpointRootLocation = localRoot.toURI.toString), keySchema, valueSchema,
    keyEncoderSpec, useColumnFamilies, RocksDBEngine.delegateConf(storeConf), hadoopConf, multiValued,
    schemaProvider)

  private var version = 0L
  private var opened = false
  private val counts = new KeyCounts

  override def open(empty: Boolean, readOnly: Boolean): StateStore = {
    if (empty && opened) {
      // An aborted store invalidates what RocksDB has loaded; version 0 is then opened afresh.
      delegate.getStore(0, None, forceSnapshotOnCommit = false, loadEmpty = true).abort()
      version = 0
    }
    if (empty) counts.clear()
    opened = true
    if (readOnly) delegate.getReadStore(version, None) else delegate.getStore(version, None)
  }

  override def fill[T](store: StateStore, family: ColumnFamily)(body: StateFiller => T): T = {
    var keys = 0L
    val result = delegate.fill(keysAreUnique = !family.multiValued) {
      body(new StateFiller {
        override def put(key: UnsafeRow, value: UnsafeRow): Unit = {
          keys += 1
          if (value == null) store.putList(key, Array.empty, family.name)
          else store.put(key, value, family.name)
        }
        override def append(key: UnsafeRow, value: UnsafeRow): Unit =
          store.merge(key, value, family.name)
      })
    }
    counts.add(family, keys)
    result
  }

  override def upgrade(store: StateStore): StateStore =
    delegate.upgradeReadStoreToWriteStore(store, version, None)

  override def commit(store: StateStore): Unit = version = store.commit()

  override def abort(store: StateStore): Boolean = {
    store.abort()
    false
  }

  override def rollBack(): Boolean = false

  /** It would have to look up every key it is given, also those of a load, which are known to be new. */
  override val keyCounts: Option[KeyCounts] = Some(counts)

  /** What it has is on disk. */
  override def giveUp(): Unit = ()

  /** RocksDB's own maintenance only uploads and cleans what a local store does not have. */
  override def doMaintenance(): Unit = ()

  override def close(): Unit = {
    try delegate.close() finally Utils.deleteRecursively(localRoot)
  }
}

object RocksDBEngine extends StateEngineMetrics {
  private val spark = new RocksDBStateStoreProvider

  override def customMetrics: Seq[StateStoreCustomMetric] = spark.supportedCustomMetrics
  override def instanceMetrics: Seq[StateStoreInstanceMetric] = Nil
  override def internalKeys: StateStoreCustomMetric =
    RocksDBStateStoreProvider.CUSTOM_METRIC_NUM_INTERNAL_COL_FAMILIES_KEYS

  /** The user's RocksDB tuning stays; what concerns checkpoints is switched off in the delegate. */
  private def delegateConf(storeConf: StateStoreConf): StateStoreConf = {
    val conf = new SQLConf
    storeConf.sqlConfs.foreach { case (key, value) => conf.setConfString(key, value) }
    conf.setConf(SQLConf.STATE_STORE_PROVIDER_CLASS, classOf[RocksDBStateStoreProvider].getName)
    conf.setConf(SQLConf.STATE_STORE_CHECKPOINT_FORMAT_VERSION, 1)
    conf.setConf(SQLConf.STATE_STORE_MIN_DELTAS_FOR_SNAPSHOT, Int.MaxValue)
    conf.setConfString(s"${RocksDBConf.ROCKSDB_SQL_CONF_NAME_PREFIX}.trackTotalNumberOfRows", "false")
    conf.setConfString("spark.sql.streaming.stateStore.commitValidation.enabled", "false")
    conf.setConfString(
      s"${RocksDBConf.ROCKSDB_SQL_CONF_NAME_PREFIX}.changelogCheckpointing.enabled", "true")
    new StateStoreConf(conf, storeConf.extraOptions)
  }
}
