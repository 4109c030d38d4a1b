package org.apache.spark.sql.execution.streaming.state

import java.io.File
import java.lang.reflect.{Field, Method}

import scala.collection.mutable
import scala.util.control.NonFatal

import org.rocksdb.{Options, RocksDB => NativeRocksDB, WriteBatch, WriteOptions}

import org.apache.spark.internal.Logging

/**
 * Writes rows into RocksDB by the thousand: a call for each of them costs more than the insertion. The
 * rows are laid out here as RocksDB's own batch format has them, and handed over in one call.
 *
 * Spark keeps the native database to itself, so it is reached by reflection. Where that fails, rows
 * are put one by one.
 */
private final class BulkWriter(
    db: NativeRocksDB, options: WriteOptions, tables: Options, familyId: String => Short) {
  import BulkWriter._

  private var buffer = new Array[Byte](BatchBytes + BatchBytes / 4)
  private var length = HeaderBytes
  private var count = 0
  private val prefixes = mutable.HashMap.empty[String, Array[Byte]]

  def prefixOf(family: String): Array[Byte] = prefixes.getOrElseUpdate(family,
    RocksDBStateStoreProvider.encodeStateRowWithPrefix(Array.emptyByteArray, familyId(family)))

  def put(key: Array[Byte], value: Array[Byte], prefix: Array[Byte]): Unit =
    add(PutRecord, key, value, prefix)

  /** @param key with the prefix of its family */
  def putRaw(key: Array[Byte], value: Array[Byte]): Unit =
    add(PutRecord, key, value, Array.emptyByteArray)

  def merge(key: Array[Byte], value: Array[Byte], prefix: Array[Byte]): Unit =
    add(MergeRecord, key, value, prefix)

  private def add(
      record: Byte, key: Array[Byte], value: Array[Byte], prefix: Array[Byte]): Unit = {
    reserve(1 + 2 * MaxVarintBytes + prefix.length + key.length + value.length)
    buffer(length) = record
    length += 1
    addVarint(prefix.length + key.length)
    addBytes(prefix)
    addBytes(key)
    addVarint(value.length)
    addBytes(value)
    count += 1
    if (length >= BatchBytes) flush()
  }

  /** For rows of different keys: it writes to the same database, in files of its own. */
  def sorted(directory: File): SortedFill = new SortedFill(db, tables, directory, this)

  def flush(): Unit = if (count > 0) {
    // The first eight bytes are a sequence number, which RocksDB sets itself.
    (0 until 4).foreach(i => buffer(8 + i) = (count >>> (8 * i)).toByte)
    val batch = new WriteBatch(java.util.Arrays.copyOf(buffer, length))
    try db.write(options, batch) finally batch.close()
    length = HeaderBytes
    count = 0
  }

  private def reserve(bytes: Int): Unit = if (length + bytes > buffer.length) {
    buffer = java.util.Arrays.copyOf(buffer, math.max(length + bytes, buffer.length + buffer.length / 2))
  }

  private def addBytes(bytes: Array[Byte]): Unit = {
    System.arraycopy(bytes, 0, buffer, length, bytes.length)
    length += bytes.length
  }

  private def addVarint(value: Int): Unit = {
    var rest = value
    while ((rest & ~0x7f) != 0) {
      buffer(length) = ((rest & 0x7f) | 0x80).toByte
      length += 1
      rest >>>= 7
    }
    buffer(length) = rest.toByte
    length += 1
  }
}

private object BulkWriter extends Logging {
  private val BatchBytes = 1 << 20
  private val HeaderBytes = 12
  private val MaxVarintBytes = 5
  private val PutRecord: Byte = 1
  private val MergeRecord: Byte = 2

  /** None if this Spark hides the native database otherwise than expected. */
  private lazy val access: Option[Access] = try Some(new Access) catch {
    case NonFatal(e) =>
      logWarning("State is loaded into RocksDB row by row, which is slower: the database of Spark's " +
        s"store cannot be reached. $e")
      None
  }

  /** To be asked for once the database is open. */
  def into(store: RocksDB): Option[BulkWriter] = access.map(_.writer(store))

  private final class Access {
    private val db = field(classOf[NativeRocksDB])
    private val options = field(classOf[WriteOptions])
    private val tables = field(classOf[Options])
    private val familyInfo = method("getColumnFamilyInfo")

    def writer(store: RocksDB): BulkWriter = new BulkWriter(
      db.get(store).asInstanceOf[NativeRocksDB],
      options.get(store).asInstanceOf[WriteOptions],
      tables.get(store).asInstanceOf[Options],
      family => familyInfo.invoke(store, family).asInstanceOf[ColumnFamilyInfo].cfId)

    private def field(kind: Class[_]): Field = {
      val found = classOf[RocksDB].getDeclaredFields.filter(_.getType == kind)
      require(found.length == 1, s"${found.length} fields of type ${kind.getName}")
      found.head.setAccessible(true)
      found.head
    }

    private def method(name: String): Method = {
      val found = classOf[RocksDB].getDeclaredMethods.filter(_.getName.endsWith(name))
      require(found.length == 1, s"${found.length} methods $name")
      found.head.setAccessible(true)
      found.head
    }
  }
}
