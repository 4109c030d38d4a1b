package org.apache.spark.sql.sparkckpt.format

import java.io.OutputStream
import java.nio.ByteBuffer
import java.nio.channels.WritableByteChannel
import java.util.Optional
import java.util.zip.CRC32

import scala.collection.mutable
import scala.jdk.CollectionConverters._

import org.apache.arrow.compression.CommonsCompressionFactory
import org.apache.arrow.vector.{FieldVector, TinyIntVector, UInt2Vector, VectorSchemaRoot}
import org.apache.arrow.vector.compression.{CompressionUtil, NoCompressionCodec}
import org.apache.arrow.vector.ipc.ArrowFileWriter
import org.apache.arrow.vector.ipc.message.IpcOption
import org.apache.arrow.vector.types.pojo.{ArrowType, Field, FieldType}

import org.apache.spark.sql.catalyst.expressions.{GenericInternalRow, UnsafeRow}
import org.apache.spark.sql.execution.arrow.ArrowWriter
import org.apache.spark.sql.util.ArrowUtils

/** How rows are cut into record batches and compressed. */
case class StateFileOptions(codec: String, zstdLevel: Int, recordBatchRows: Int) {
  val compression: CompressionUtil.CodecType = codec match {
    case "zstd" => CompressionUtil.CodecType.ZSTD
    case "lz4" => CompressionUtil.CodecType.LZ4_FRAME
    case _ => CompressionUtil.CodecType.NO_COMPRESSION
  }
}

/** What a finished file needs for its [[StateFileRef]]. */
case class StateFileSummary(
    length: Long, tailLength: Int, tailCrc32: Long, rows: Long, firstKeyGroup: Int, lastKeyGroup: Int)

/**
 * Writes one state file, an Arrow IPC file, to a stream, in one pass. Rows must come in ascending key
 * groups. Record batches end on key-group borders unless one group outgrows a batch.
 */
final class StateFileWriter(out: OutputStream, family: StateFamily, options: StateFileOptions)
  extends AutoCloseable {
  import StateFileWriter._

  private val keyColumn = family.keyColumn
  private val valueColumn = family.valueColumn
  private val allocator =
    ArrowUtils.rootAllocator.newChildAllocator("sparkckpt state file writer", 0, Long.MaxValue)
  private val rowRoot = VectorSchemaRoot.create(family.rowSchema, allocator)
  private val rowWriter = ArrowWriter.create(rowRoot)
  private val keyGroups = new UInt2Vector(
    new Field("kg", FieldType.notNullable(new ArrowType.Int(16, false)), null), allocator)
  private val ops = new TinyIntVector(
    new Field("op", FieldType.notNullable(new ArrowType.Int(8, true)), null), allocator)
  private val root = new VectorSchemaRoot(
    (Seq[FieldVector](keyGroups, ops) ++ rowRoot.getFieldVectors.asScala).asJava)

  private val description = new java.util.HashMap[String, String](family.footer.asJava)
  private val channel = new ChecksummingChannel(out)
  private val writer = new ArrowFileWriter(root, null, channel, description, IpcOption.DEFAULT,
    if (options.compression == CompressionUtil.CodecType.NO_COMPRESSION) {
      NoCompressionCodec.Factory.INSTANCE
    } else {
      CommonsCompressionFactory.INSTANCE
    }, options.compression, Optional.of(Integer.valueOf(options.zstdLevel)))
  writer.start()

  private val pair = new GenericInternalRow(2)
  private val batches = mutable.ArrayBuffer.empty[BatchIndex]
  private var batchRows = 0
  private var batchBytes = 0L
  private var batchFirst = 0
  private var lastKeyGroup = -1
  private var firstKeyGroup = -1
  private var totalRows = 0L

  /** Adds a row; `value` is null for a delete and for the empty list. */
  def write(keyGroup: Int, op: Byte, key: UnsafeRow, value: UnsafeRow): Unit = {
    if (keyGroup < lastKeyGroup) {
      throw new IllegalStateException(s"key group $keyGroup after $lastKeyGroup in a state file")
    }
    val full = batchRows >= options.recordBatchRows || batchBytes >= SoftBatchBytes
    val overfull = batchRows >= 2 * options.recordBatchRows || batchBytes >= HardBatchBytes
    if (batchRows > 0 && (overfull || full && keyGroup != lastKeyGroup)) flush()
    if (batchRows == 0) batchFirst = keyGroup
    if (firstKeyGroup < 0) firstKeyGroup = keyGroup
    lastKeyGroup = keyGroup
    keyGroups.setSafe(batchRows, keyGroup)
    ops.setSafe(batchRows, op)
    pair.update(0, cell(keyColumn, key))
    pair.update(1, cell(valueColumn, value))
    rowWriter.write(pair)
    batchRows += 1
    totalRows += 1
    batchBytes += key.getSizeInBytes + (if (value == null) 0 else value.getSizeInBytes)
  }

  private def cell(column: RowColumn, row: UnsafeRow): Any =
    if (row == null || column.typed) row else row.getBytes

  private def flush(): Unit = {
    rowWriter.finish()
    keyGroups.setValueCount(batchRows)
    ops.setValueCount(batchRows)
    root.setRowCount(batchRows)
    channel.restartChecksum()
    val offset = channel.position
    writer.writeBatch()
    batches += BatchIndex(offset, (channel.position - offset).toInt, batchFirst, lastKeyGroup,
      batchRows, channel.checksum)
    rowWriter.reset()
    keyGroups.reset()
    ops.reset()
    batchRows = 0
    batchBytes = 0
  }

  def finish(): StateFileSummary = {
    if (batchRows > 0) flush()
    val (name, index) = StateFileMetadata.describeBatches(batches.toSeq)
    description.put(name, index)
    channel.restartChecksum()
    val tailStart = channel.position
    writer.end()
    StateFileSummary(channel.position, (channel.position - tailStart).toInt, channel.checksum,
      totalRows, firstKeyGroup, lastKeyGroup)
  }

  def rows: Long = totalRows

  /** Frees the buffers; the stream belongs to the caller. */
  override def close(): Unit = {
    root.close()
    rowRoot.close()
    allocator.close()
  }
}

object StateFileWriter {
  private val SoftBatchBytes = 16L << 20
  private val HardBatchBytes = 64L << 20

  /** Counts and checksums what goes to the stream; does not close it. */
  private final class ChecksummingChannel(out: OutputStream) extends WritableByteChannel {
    private val crc = new CRC32
    private var chunk = new Array[Byte](64 * 1024)
    private var written = 0L

    def position: Long = written
    def restartChecksum(): Unit = crc.reset()
    def checksum: Long = crc.getValue

    override def write(source: ByteBuffer): Int = {
      val length = source.remaining()
      var left = length
      while (left > 0) {
        val n = math.min(left, chunk.length)
        source.get(chunk, 0, n)
        crc.update(chunk, 0, n)
        out.write(chunk, 0, n)
        left -= n
      }
      written += length
      length
    }
    override def isOpen: Boolean = chunk != null
    override def close(): Unit = chunk = null
  }
}
