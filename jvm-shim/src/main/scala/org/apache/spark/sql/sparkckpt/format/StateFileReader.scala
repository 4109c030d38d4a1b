package org.apache.spark.sql.sparkckpt.format

import java.io.{ByteArrayInputStream, EOFException, IOException}
import java.nio.ByteBuffer
import java.nio.channels.Channels
import java.nio.charset.StandardCharsets
import java.util.zip.CRC32

import scala.util.control.NonFatal

import org.apache.arrow.compression.CommonsCompressionFactory
import org.apache.arrow.flatbuf.Footer
import org.apache.arrow.memory.OutOfMemoryException
import org.apache.arrow.vector.{FieldVector, TinyIntVector, UInt2Vector, VectorLoader, VectorSchemaRoot}
import org.apache.arrow.vector.ipc.ReadChannel
import org.apache.arrow.vector.ipc.message.{ArrowFooter, MessageSerializer}
import org.apache.hadoop.fs.FSDataInputStream

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.sparkckpt.{KeyGroupRange, SparkckptErrors}
import org.apache.spark.sql.types.StructType
import org.apache.spark.sql.util.ArrowUtils
import org.apache.spark.unsafe.Platform

/**
 * A forward cursor over the rows of one state file that fall into a key-group range. It reads only
 * the record batches that overlap the range, one at a time, and checks the crc of all it reads before
 * a row of it is used.
 *
 * The rows a cursor shows are valid until it moves.
 */
final class StateFileReader(
    input: FSDataInputStream,
    where: String,
    ref: StateFileRef,
    range: KeyGroupRange,
    keySchema: StructType,
    valueSchema: StructType,
    matching: FieldMatching.Value) extends ChangeCursor with AutoCloseable {

  private val footer = readFooter()
  private val metadata = StateFileMetadata.parse(
    key => Option(footer.getMetaData.get(key)), where)
  private val keys = new RowColumnReader(
    where, metadata.keySchema, metadata.keyEncoding, keySchema, matching)
  private val values = new RowColumnReader(
    where, metadata.valueSchema, metadata.valueEncoding, valueSchema, matching)
  private val allocator =
    ArrowUtils.rootAllocator.newChildAllocator("sparkckpt state file reader", 0, Long.MaxValue)
  private val root = VectorSchemaRoot.create(footer.getSchema, allocator)
  private val loader = new VectorLoader(root, CommonsCompressionFactory.INSTANCE)
  private val keyGroupVector = root.getVector(0).asInstanceOf[UInt2Vector]
  private val opVector = root.getVector(1).asInstanceOf[TinyIntVector]
  /** Where the values of the loaded record batch lie: the accessors check every one of them. */
  private var keyGroups = 0L
  private var ops = 0L

  private val pending = metadata.batches.iterator.filter(_.range.overlaps(range))
  private var rowCount = 0
  private var row = -1
  private var currentKeyGroup = -1

  override def keyGroup: Int = currentKeyGroup
  override def op: Byte = {
    val op = Platform.getByte(null, ops + row)
    if (op < StateOp.Put || op > StateOp.Append) {
      throw SparkckptErrors.corruptFile(where, s"it holds the unknown operation $op")
    }
    op
  }
  override def key: UnsafeRow = keys.row(row)
  override def value: UnsafeRow = values.row(row)

  /** Moves to the next row of the range; false at the end. */
  override def advance(): Boolean = {
    row += 1
    while (true) {
      if (row >= rowCount) {
        if (!pending.hasNext) return false
        load(pending.next())
        row = 0
      }
      currentKeyGroup = Platform.getShort(null, keyGroups + 2L * row) & 0xffff
      if (range.contains(currentKeyGroup)) return true
      row += 1
    }
    false
  }

  private def load(batch: BatchIndex): Unit = {
    val bytes = readVerified(batch.offset, batch.length, batch.crc32)
    try {
      val message = MessageSerializer.deserializeRecordBatch(
        new ReadChannel(Channels.newChannel(new ByteArrayInputStream(bytes))), allocator)
      try loader.load(message) finally message.close()
    } catch {
      case e: RuntimeException if isForMemory(e) => throw SparkckptErrors.noMemoryToRead(where, e)
      case NonFatal(e) => throw SparkckptErrors.corruptFile(where, e.toString, e)
    }
    rowCount = root.getRowCount
    keyGroups = valuesOf(keyGroupVector, 2)
    ops = valuesOf(opVector, 1)
    keys.reset(root.getVector(2))
    values.reset(root.getVector(3))
  }

  /** Arrow wraps what happens in a column. */
  private def isForMemory(e: Throwable): Boolean =
    Iterator.iterate(e)(_.getCause).takeWhile(_ != null).exists(_.isInstanceOf[OutOfMemoryException])

  private def valuesOf(vector: FieldVector, width: Int): Long = {
    val values = vector.getDataBuffer
    if (values.capacity < width.toLong * rowCount) {
      throw SparkckptErrors.corruptFile(
        where, s"a record batch of $rowCount rows has a column of ${values.capacity} bytes")
    }
    values.memoryAddress
  }

  private def readFooter(): ArrowFooter = {
    val tail = readVerified(ref.length - ref.tailLength, ref.tailLength, ref.tailCrc32)
    try {
      val magicAt = tail.length - StateFileReader.Magic.length
      val length = ByteBuffer.wrap(tail, magicAt - 4, 4)
        .order(java.nio.ByteOrder.LITTLE_ENDIAN).getInt
      val flat = ByteBuffer.wrap(tail.slice(magicAt - 4 - length, magicAt - 4))
      new ArrowFooter(Footer.getRootAsFooter(flat))
    } catch {
      case NonFatal(e) => throw SparkckptErrors.corruptFile(where, e.toString, e)
    }
  }

  private def readVerified(offset: Long, length: Int, expected: Long): Array[Byte] = {
    val bytes = new Array[Byte](length)
    try {
      input.readFully(ref.offset + offset, bytes, 0, length)
    } catch {
      case e: EOFException => throw SparkckptErrors.corruptFile(where, "it is truncated", e)
      case e: IOException => throw SparkckptErrors.unreadableFile(where, e)
    }
    val crc = new CRC32
    crc.update(bytes, 0, length)
    if (crc.getValue != expected) {
      throw SparkckptErrors.corruptFile(where,
        s"the checksum of the $length bytes at ${ref.offset + offset} does not match")
    }
    bytes
  }

  override def close(): Unit = {
    root.close()
    allocator.close()
    input.close()
  }
}

object StateFileReader {
  private val Magic = "ARROW1".getBytes(StandardCharsets.UTF_8)
}
