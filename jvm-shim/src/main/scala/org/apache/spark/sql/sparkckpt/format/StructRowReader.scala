package org.apache.spark.sql.sparkckpt.format

import org.apache.arrow.vector.{BaseFixedWidthVector, BaseVariableWidthVector, FieldVector}
import org.apache.arrow.vector.complex.StructVector

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.types._
import org.apache.spark.unsafe.Platform

/**
 * Lays out the rows of an Arrow struct as UnsafeRows, straight from its buffers. It gives the very bytes
 * that a projection over Arrow's accessors does, in a fraction of the time: a load is little else. It
 * knows the types whose values are the same bytes on both sides.
 */
private[format] final class StructRowReader(schema: StructType) {
  import StructRowReader._

  private val fields = schema.length
  private val widths = schema.map(field => widthOf(field.dataType).get).toArray
  private val bitSetBytes = UnsafeRow.calculateBitSetWidthInBytes(fields)
  private val fixedBytes = bitSetBytes + 8 * fields

  private val values = new Array[Long](fields)
  private val validities = new Array[Long](fields)
  private val offsets = new Array[Long](fields)
  private val nullable = new Array[Boolean](fields)

  private var buffer = new Array[Byte](fixedBytes + 64)
  private val row = new UnsafeRow(fields)

  /** To be called for every record batch: it has buffers of its own. */
  def reset(struct: FieldVector): Unit = {
    val parent = struct.asInstanceOf[StructVector]
    (0 until fields).foreach { i =>
      val child = parent.getChildByOrdinal(i).asInstanceOf[FieldVector]
      nullable(i) = child.getNullCount > 0
      validities(i) = child.getValidityBuffer.memoryAddress()
      values(i) = child.getDataBuffer.memoryAddress()
      child match {
        case variable: BaseVariableWidthVector if widths(i) == Variable =>
          offsets(i) = variable.getOffsetBuffer.memoryAddress()
        case fixed: BaseFixedWidthVector if fixed.getTypeWidth == widths(i) =>
        case other => throw new IllegalArgumentException(
          s"the column ${schema(i).name} of type ${schema(i).dataType.catalogString} is a ${other.getMinorType}")
      }
    }
  }

  /** Valid until the next call. */
  def row(index: Int): UnsafeRow = {
    var i = 0
    while (i < bitSetBytes) {
      Platform.putLong(buffer, Start + i, 0)
      i += 8
    }
    var end = fixedBytes
    i = 0
    while (i < fields) {
      val word = Start + bitSetBytes + 8L * i
      if (nullable(i) && !bit(validities(i), index)) {
        val at = Start + (i >> 6) * 8L
        Platform.putLong(buffer, at, Platform.getLong(buffer, at) | (1L << (i & 63)))
        Platform.putLong(buffer, word, 0)
      } else {
        val from = values(i)
        widths(i) match {
          case 8 => Platform.putLong(buffer, word, Platform.getLong(null, from + 8L * index))
          case 4 =>
            Platform.putLong(buffer, word, Platform.getInt(null, from + 4L * index) & 0xffffffffL)
          case 2 =>
            Platform.putLong(buffer, word, Platform.getShort(null, from + 2L * index) & 0xffffL)
          case 1 => Platform.putLong(buffer, word, Platform.getByte(null, from + index) & 0xffL)
          case Bit => Platform.putLong(buffer, word, if (bit(from, index)) 1 else 0)
          case Variable =>
            val first = Platform.getInt(null, offsets(i) + 4L * index)
            val length = Platform.getInt(null, offsets(i) + 4L * (index + 1)) - first
            end = append(from + first, length, end, i)
        }
      }
      i += 1
    }
    row.pointTo(buffer, end)
    row
  }

  /** Returns where the next value goes. */
  private def append(from: Long, length: Int, at: Int, field: Int): Int = {
    val padded = (length + 7) & ~7
    if (at + padded > buffer.length) {
      buffer = java.util.Arrays.copyOf(buffer, math.max(2 * buffer.length, at + padded))
    }
    if (padded > 0) Platform.putLong(buffer, Start + at + padded - 8, 0)
    Platform.copyMemory(null, from, buffer, Start + at, length)
    Platform.putLong(buffer, Start + bitSetBytes + 8L * field, (at.toLong << 32) | length)
    at + padded
  }

  private def bit(from: Long, index: Int): Boolean =
    ((Platform.getByte(null, from + (index >> 3)) >> (index & 7)) & 1) != 0
}

private[format] object StructRowReader {
  private val Start: Long = Platform.BYTE_ARRAY_OFFSET
  private final val Bit = 0
  private final val Variable = -1

  def supports(schema: StructType): Boolean =
    schema.nonEmpty && schema.forall(field => widthOf(field.dataType).isDefined)

  private def widthOf(dataType: DataType): Option[Int] = dataType match {
    case LongType | DoubleType | TimestampType | TimestampNTZType => Some(8)
    case IntegerType | FloatType | DateType => Some(4)
    case ShortType => Some(2)
    case ByteType => Some(1)
    case BooleanType => Some(Bit)
    case _: StringType | BinaryType => Some(Variable)
    case _ => None
  }
}
