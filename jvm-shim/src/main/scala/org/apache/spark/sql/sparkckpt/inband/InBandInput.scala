package org.apache.spark.sql.sparkckpt.inband

import scala.jdk.CollectionConverters._

import org.apache.arrow.vector.{TinyIntVector, VectorSchemaRoot}
import org.apache.arrow.vector.complex.StructVector

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{GenericInternalRow, UnsafeRow}
import org.apache.spark.sql.execution.arrow.{ArrowFieldWriter, ArrowWriter}
import org.apache.spark.sql.execution.python.inband.RecordBatchSource

/** The rows of one key, in the columns that are sent. */
case class SentKey(key: UnsafeRow, rows: Iterator[UnsafeRow], expired: Array[Long])

/** How large a record batch gets: it ends with a key after `rows`, and within one at twice that. */
case class BatchLimits(rows: Int, bytes: Long)

/**
 * Writes keys with their rows and state to Python. Each batch is written when Python can take it, so
 * that little more than two are under way, however many keys there are.
 */
final class InBandInput(
    keys: Iterator[SentKey], state: KeyState, inFlight: InFlightKeys, limits: BatchLimits, lock: Object)
  extends RecordBatchSource {
  private var writer: BatchWriter = _
  private var current: SentKey = _

  override def fill(root: VectorSchemaRoot): Int = {
    if (writer == null) writer = new BatchWriter(root)
    writer.reset()
    if (current != null) writeRows()
    while (current == null && writer.rows < limits.rows && !isFull && keys.hasNext) {
      begin(keys.next())
      writeRows()
    }
    if (current != null) writer.markMore()
    writer.finish()
    writer.rows
  }

  private def isFull: Boolean = writer.bytes >= limits.bytes

  private def begin(next: SentKey): Unit = {
    current = next
    val key = next.key.copy()
    val flags = InBandWire.First | (if (next.expired != null) InBandWire.Expired else 0)
    val row = next.rows.next()
    lock.synchronized {
      writer.write(row, flags, state.read(key, next.expired))
      inFlight.add(key)
    }
  }

  /** The rows of the current key, or as many as fit. */
  private def writeRows(): Unit = {
    while (writer.rows < 2 * limits.rows && !isFull && current.rows.hasNext) {
      writer.write(current.rows.next(), 0, null)
    }
    if (!current.rows.hasNext) current = null
  }
}

/** The vectors of a record batch: the columns of the data, the flag and the state. */
private final class BatchWriter(root: VectorSchemaRoot) {
  private val struct = root.getVector(0).asInstanceOf[StructVector]
  private val vectors = struct.getChildrenFromFields.asScala.toArray
  private val data: Array[ArrowFieldWriter] = vectors.dropRight(2).map { vector =>
    vector.allocateNew()
    ArrowWriter.createFieldWriter(vector)
  }
  private val flags = vectors(vectors.length - 2).asInstanceOf[TinyIntVector]
  private val states = {
    vectors.last.allocateNew()
    ArrowWriter.createFieldWriter(vectors.last)
  }
  private val stateHolder = new GenericInternalRow(1)
  private var lastFlag = 0

  var rows: Int = 0
  var bytes: Long = 0

  def write(row: UnsafeRow, flag: Int, state: InternalRow): Unit = {
    var i = 0
    while (i < data.length) {
      data(i).write(row, i)
      i += 1
    }
    flags.setSafe(rows, flag)
    lastFlag = flag
    stateHolder.update(0, state)
    states.write(stateHolder, 0)
    struct.setIndexDefined(rows)
    bytes += row.getSizeInBytes + BatchWriter.sizeOf(state)
    rows += 1
  }

  def markMore(): Unit = flags.setSafe(rows - 1, lastFlag | InBandWire.More)

  def finish(): Unit = {
    data.foreach(_.finish())
    flags.setValueCount(rows)
    states.finish()
    struct.setValueCount(rows)
    root.setRowCount(rows)
  }

  def reset(): Unit = {
    data.foreach(_.reset())
    flags.reset()
    states.reset()
    struct.reset()
    root.setRowCount(0)
    rows = 0
    bytes = 0
  }
}

private object BatchWriter {
  /** Of the variable parts only; what a row of a state's struct takes is known roughly at best. */
  def sizeOf(state: InternalRow): Long = state match {
    case null => 0
    case row: UnsafeRow => row.getSizeInBytes
    case row: GenericInternalRow => row.values.iterator.map {
      case field: UnsafeRow => field.getSizeInBytes.toLong
      case list: SizedArray => list.bytes
      case _ => 8L
    }.sum
    case _ => 0
  }
}
