package org.apache.spark.sql.execution.streaming.state

import java.io.File
import java.util.UUID

import org.apache.arrow.memory.{ArrowBuf, BufferAllocator}
import org.rocksdb.{EnvOptions, IngestExternalFileOptions, Options, RocksDB => NativeRocksDB, SstFileWriter}

import org.apache.spark.sql.util.ArrowUtils
import org.apache.spark.unsafe.Platform
import org.apache.spark.unsafe.array.LongArray
import org.apache.spark.unsafe.memory.MemoryBlock
import org.apache.spark.util.collection.unsafe.sort.RadixSort

/**
 * Brings many rows into RocksDB as sorted files that it takes over, which spares each of them the
 * insertion into a memory table. Every key may come once in the life of a fill: rows of one key
 * have no order here. What is too little for a file goes to `small`.
 *
 * @param directory on the disk of the database, for files that it has not taken over yet
 */
private final class SortedFill(
    db: NativeRocksDB, options: Options, directory: File, small: BulkWriter) extends AutoCloseable {
  import SortedFill._

  private val allocator: BufferAllocator =
    ArrowUtils.rootAllocator.newChildAllocator("sparkckpt RocksDB fill", 0, Long.MaxValue)
  private var rows: ArrowBuf = allocator.buffer(FirstBytes)
  private var used = 0
  private var count = 0
  /** Where the keys begin to differ: the bytes from there on are what is sorted by. */
  private var common = 0
  private var firstKey = Array.emptyByteArray
  /** Of what all keys of a column family begin with. */
  private var prefixLength = 0

  def put(key: Array[Byte], value: Array[Byte], prefix: Array[Byte]): Unit = {
    val size = HeaderBytes.toLong + prefix.length + key.length + value.length
    if (size > MostBytes) {
      small.put(key, value, prefix)
    } else {
      if (used + size > rows.capacity) makeRoom(size.toInt)
      if (count == 0) {
        firstKey = key.clone()
        common = key.length
        prefixLength = prefix.length
      } else narrow(key)
      val at = rows.memoryAddress + used
      Platform.putInt(null, at, prefix.length + key.length)
      Platform.putInt(null, at + 4, value.length)
      copy(prefix, at + HeaderBytes)
      copy(key, at + HeaderBytes + prefix.length)
      copy(value, at + HeaderBytes + prefix.length + key.length)
      used += size.toInt
      count += 1
    }
  }

  private def narrow(key: Array[Byte]): Unit = {
    val length = math.min(common, key.length)
    val differs = java.util.Arrays.mismatch(firstKey, 0, length, key, 0, length)
    common = if (differs < 0) length else differs
  }

  private def copy(bytes: Array[Byte], to: Long): Unit =
    Platform.copyMemory(bytes, Platform.BYTE_ARRAY_OFFSET, null, to, bytes.length)

  private def makeRoom(size: Int): Unit = {
    if (used + size > MostBytes) writeFile()
    // The row may be larger than all before it were together.
    if (used + size > rows.capacity) {
      val larger = allocator.buffer(
        math.min(MostBytes, math.max(2L * rows.capacity, used.toLong + size)))
      Platform.copyMemory(null, rows.memoryAddress, null, larger.memoryAddress, used)
      rows.close()
      rows = larger
    }
  }

  def finish(): Unit = {
    if (used >= LeastBytes) writeFile()
    else {
      var at = 0
      while (at < used) {
        val key = keyLength(at)
        small.putRaw(bytes(at + HeaderBytes, key), bytes(at + HeaderBytes + key, valueLength(at)))
        at += HeaderBytes + key + valueLength(at)
      }
    }
    small.flush()
  }

  private def keyLength(at: Long): Int = Platform.getInt(null, rows.memoryAddress + at)
  private def valueLength(at: Long): Int = Platform.getInt(null, rows.memoryAddress + at + 4)

  private def bytes(at: Int, length: Int): Array[Byte] = {
    val copied = new Array[Byte](length)
    Platform.copyMemory(
      null, rows.memoryAddress + at, copied, Platform.BYTE_ARRAY_OFFSET, length)
    copied
  }

  private def writeFile(): Unit = {
    val file = new File(directory, s"fill-${UUID.randomUUID()}.sst")
    try {
      writeSorted(file)
      val taken = new IngestExternalFileOptions().setMoveFiles(true)
      try db.ingestExternalFile(java.util.List.of(file.getPath), taken) finally taken.close()
    } finally file.delete()
    used = 0
    count = 0
  }

  private def writeSorted(file: File): Unit = {
    val environment = new EnvOptions
    val writer = new SstFileWriter(environment, options)
    try {
      writer.open(file.getPath)
      val key = rows.nioBuffer(0, used)
      val value = key.duplicate()
      val order = sorted()
      var i = 0
      while (i < count) {
        val at = order(i).toInt
        val valueAt = at + HeaderBytes + keyLength(at)
        key.limit(valueAt).position(at + HeaderBytes)
        value.limit(valueAt + valueLength(at)).position(valueAt)
        writer.put(key, value)
        i += 1
      }
      writer.finish()
    } finally {
      writer.close()
      environment.close()
    }
  }

  /** The places of all rows, in the order of their keys. */
  private def sorted(): Array[Long] = {
    // Pairs of place and key, and as much room again for the sort to work in.
    val pairs = new Array[Long](4 * count)
    var at = 0L
    var i = 0
    while (i < count) {
      pairs(2 * i) = at
      pairs(2 * i + 1) = sortKey(at)
      at += HeaderBytes + keyLength(at) + valueLength(at)
      i += 1
    }
    val start = RadixSort.sortKeyPrefixArray(
      new LongArray(MemoryBlock.fromLongArray(pairs)), 0, count, 0, 7, false, false)
    val places = new Array[Long](count)
    i = 0
    while (i < count) {
      places(i) = pairs(start + 2 * i)
      i += 1
    }
    i = 0
    while (i < count) {
      var end = i + 1
      while (end < count && pairs(start + 2 * end + 1) == pairs(start + 2 * i + 1)) end += 1
      if (end - i > 1) sortByWholeKeys(places, i, end)
      i = end
    }
    places
  }

  /** The first eight bytes in which keys differ, as a number; what is missing at the end counts as 0. */
  private def sortKey(at: Long): Long = {
    val skipped = prefixLength + common
    val left = keyLength(at) - skipped
    val from = rows.memoryAddress + at + HeaderBytes + skipped
    if (left >= 8) java.lang.Long.reverseBytes(Platform.getLong(null, from))
    else {
      var result = 0L
      var i = 0
      while (i < left) {
        result |= (Platform.getByte(null, from + i) & 0xffL) << (56 - 8 * i)
        i += 1
      }
      result
    }
  }

  private def sortByWholeKeys(places: Array[Long], from: Int, until: Int): Unit = {
    val keys = places.slice(from, until)
      .map(at => (bytes(at.toInt + HeaderBytes, keyLength(at)), at))
      .sortWith((a, b) => java.util.Arrays.compareUnsigned(a._1, b._1) < 0)
    keys.indices.foreach(i => places(from + i) = keys(i)._2)
  }

  override def close(): Unit = {
    rows.close()
    allocator.close()
  }
}

private object SortedFill {
  /** Lengths of key and value. */
  private val HeaderBytes = 8
  private val FirstBytes = 256L << 10
  /** What is held of one store before it is written. */
  private val MostBytes = 32L << 20
  /** A file is not worth it for less. */
  private val LeastBytes = 1 << 20
}
