package org.apache.spark.sql.execution.streaming.state

import java.io.{File, OutputStream}

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileStatus, FSDataInputStream, Path, PathFilter}

import org.apache.spark.io.CompressionCodec
import org.apache.spark.SparkConf
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.CancellableFSDataOutputStream

/**
 * Spark's RocksDB state store as a purely local working store: it writes no changelog and uploads no
 * snapshot, since sparkckpt's own files are the checkpoint. It stands in Spark's package because the
 * hooks it overrides take types that are private to it.
 */
private[sql] class LocalRocksDBStateStoreProvider extends RocksDBStateStoreProvider {
  private var local: Option[LocalRocksDB] = None

  /**
   * Rows put while `body` runs reach RocksDB many at a time; they must not be read in it.
   *
   * @param keysAreUnique no key is put twice, or merged into
   */
  def fill[T](keysAreUnique: Boolean)(body: => T): T =
    local.fold(body)(_.fill(keysAreUnique)(body))

  override protected def createRocksDB(
      dfsRootDir: String,
      conf: RocksDBConf,
      localRootDir: File,
      hadoopConf: Configuration,
      loggingId: String,
      useColumnFamilies: Boolean,
      enableStateStoreCheckpointIds: Boolean,
      partitionId: Int,
      eventForwarder: Option[RocksDBEventForwarder],
      uniqueId: Option[String]): RocksDB = {
    val created = new LocalRocksDB(dfsRootDir, conf, localRootDir, hadoopConf, loggingId,
      useColumnFamilies, partitionId, uniqueId)
    local = Some(created)
    created
  }
}

private class LocalRocksDB(
    dfsRootDir: String,
    conf: RocksDBConf,
    localRootDir: File,
    hadoopConf: Configuration,
    loggingId: String,
    useColumnFamilies: Boolean,
    partitionId: Int,
    uniqueId: Option[String])
  extends RocksDB(dfsRootDir, conf, localRootDir, hadoopConf, loggingId, useColumnFamilies,
    enableStateStoreCheckpointIds = false, partitionId, eventForwarder = None, uniqueId) {

  override protected def createFileManager(
      dfsRootDir: String,
      localTempDir: File,
      hadoopConf: Configuration,
      codecName: String,
      loggingId: String,
      storeConf: StateStoreConf): RocksDBFileManager =
    new RocksDBFileManager(dfsRootDir, localTempDir, hadoopConf, codecName, loggingId, storeConf) {
      override def getChangeLogWriter(
          version: Long,
          useColumnFamilies: Boolean,
          checkpointUniqueId: Option[String],
          lineage: Option[Array[LineageItem]]): StateStoreChangelogWriter = NoChangelog.writer()
    }

  private var bulk: Option[BulkWriter] = None

  private var sorted: Option[SortedFill] = None

  def fill[T](keysAreUnique: Boolean)(body: => T): T = {
    bulk = if (conf.rowChecksumEnabled || conf.trackTotalNumberOfRows) None else BulkWriter.into(this)
    try {
      if (keysAreUnique) sorted = bulk.map(_.sorted(localRootDir))
      val result = body
      sorted.foreach(_.finish())
      bulk.foreach(_.flush())
      result
    } finally {
      bulk = None
      sorted.foreach(_.close())
      sorted = None
    }
  }

  override def put(
      key: Array[Byte],
      value: Array[Byte],
      cfName: String,
      includesPrefix: Boolean,
      deriveCfName: Boolean,
      includesChecksum: Boolean): Unit = bulk match {
    case Some(writer) if sorted.nonEmpty =>
      sorted.foreach(_.put(key, value, prefixOf(writer, cfName)))
    case Some(writer) => writer.put(key, value, prefixOf(writer, cfName))
    case None => super.put(key, value, cfName, includesPrefix, deriveCfName, includesChecksum)
  }

  override def merge(
      key: Array[Byte],
      value: Array[Byte],
      cfName: String,
      includesPrefix: Boolean,
      deriveCfName: Boolean,
      includesChecksum: Boolean): Unit = bulk match {
    case Some(writer) => writer.merge(key, value, prefixOf(writer, cfName))
    case None => super.merge(key, value, cfName, includesPrefix, deriveCfName, includesChecksum)
  }

  /** What precedes the keys of a column family: Spark keeps them all in one of RocksDB's. */
  private def prefixOf(writer: BulkWriter, family: String): Array[Byte] =
    if (useColumnFamilies) writer.prefixOf(family) else Array.emptyByteArray

  /** A new column family makes Spark force a snapshot; it is of no use here. */
  override private[sql] def uploadSnapshot(snapshot: RocksDB.RocksDBSnapshot): Unit =
    snapshot.close()
}

/** A changelog that keeps nothing: every change is captured before it reaches RocksDB. */
private object NoChangelog {
  private val nowhere = new Path("file:///")
  private val codec = CompressionCodec.createCodec(new SparkConf(false), CompressionCodec.LZ4)

  def writer(): StateStoreChangelogWriter = new StateStoreChangelogWriter(Nowhere, nowhere, codec) {
    override def version: Short = 2
    override def put(key: Array[Byte], value: Array[Byte]): Unit = ()
    override def delete(key: Array[Byte]): Unit = ()
    override def merge(key: Array[Byte], value: Array[Byte]): Unit = ()
    override def deleteRange(beginKey: Array[Byte], endKey: Array[Byte]): Unit = ()
    override def commit(): Unit = ()
  }

  private object Nowhere extends CheckpointFileManager {
    override def createAtomic(path: Path, overwrite: Boolean): CancellableFSDataOutputStream =
      new CancellableFSDataOutputStream(OutputStream.nullOutputStream()) {
        override def cancel(): Unit = ()
      }
    private def none = throw new UnsupportedOperationException("a working store has no files")
    override def open(path: Path): FSDataInputStream = none
    override def list(path: Path, filter: PathFilter): Array[FileStatus] = none
    override def mkdirs(path: Path): Unit = none
    override def exists(path: Path): Boolean = none
    override def delete(path: Path): Unit = none
    override def isLocal: Boolean = true
    override def createCheckpointDirectory(): Path = none
  }
}
