package org.apache.spark.sql.sparkckpt.inband

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.{Attribute, UnsafeProjection}
import org.apache.spark.sql.sparkckpt.SparkckptErrors
import org.apache.spark.sql.types._
import org.apache.spark.sql.vectorized.{ArrowColumnVector, ColumnarBatch, ColumnVector}

/**
 * What comes back from Python: the updates of a record batch are applied to the store before a row
 * of its output is given out. Who has taken the last row knows that all is applied.
 */
final class InBandOutput(
    batches: Iterator[ColumnarBatch],
    output: Seq[Attribute],
    state: KeyState,
    inFlight: InFlightKeys,
    keepsOperatorState: Boolean,
    lock: Object) extends Iterator[InternalRow] {
  private val schema = InBandWire.replySchema(
    StructType(output.map(a => StructField(a.name, a.dataType))), state.updateSchema, keepsOperatorState)
  private val projection = UnsafeProjection.create(output, output)
  private var isChecked = false
  private var column: ColumnVector = _
  private var rows = 0
  private var row = 0

  /** The last one that Python sent, if it sent any. */
  var operatorState: Option[Array[Byte]] = None

  override def hasNext: Boolean = {
    skipToRow()
    while (row >= rows && batches.hasNext) {
      take(batches.next())
      skipToRow()
    }
    if (row >= rows && !inFlight.isEmpty) {
      throw SparkckptErrors.wireBroken("it ended before all keys were finished")
    }
    row < rows
  }

  override def next(): InternalRow = {
    if (!hasNext) throw new NoSuchElementException
    row += 1
    projection(column.getStruct(row - 1))
  }

  private def skipToRow(): Unit = while (row < rows && column.isNullAt(row)) row += 1

  private def take(batch: ColumnarBatch): Unit = {
    val reply = batch.column(0).asInstanceOf[ArrowColumnVector]
    check(reply)
    lock.synchronized(applyUpdates(reply.getChild(2), batch.numRows()))
    finish(reply.getChild(0), batch.numRows())
    if (keepsOperatorState) takeOperatorState(reply.getChild(3), batch.numRows())
    column = reply.getChild(1)
    rows = batch.numRows()
    row = 0
  }

  private def applyUpdates(updates: ColumnVector, count: Int): Unit = {
    var i = 0
    while (i < count) {
      if (!updates.isNullAt(i)) {
        val update = updates.getStruct(i)
        val number = update.getLong(0)
        val key = inFlight.get(number).getOrElse {
          throw SparkckptErrors.wireBroken(s"it updates key $number, which is not under way")
        }
        state.update(key, update)
      }
      i += 1
    }
  }

  private def finish(done: ColumnVector, count: Int): Unit =
    if (count > 0 && !done.isNullAt(0) && !inFlight.finishBefore(done.getLong(0))) {
      throw SparkckptErrors.wireBroken(s"it has finished ${done.getLong(0)} keys, more than it was sent")
    }

  private def takeOperatorState(blobs: ColumnVector, count: Int): Unit =
    if (count > 0 && !blobs.isNullAt(0)) operatorState = Some(blobs.getBinary(0))

  private def check(reply: ArrowColumnVector): Unit = if (!isChecked) {
    isChecked = true
    if (!InBandOutput.fits(reply.dataType(), schema)) {
      throw SparkckptErrors.wireBroken(
        s"it sends ${reply.dataType().catalogString} where ${schema.catalogString} is expected")
    }
  }
}

object InBandOutput {
  /** Arrow knows no collations, character lengths or metadata; names of the user's must not matter. */
  private[inband] def fits(sent: DataType, wanted: DataType): Boolean = (sent, wanted) match {
    case (StructType(a), StructType(b)) =>
      a.length == b.length && a.zip(b).forall { case (x, y) => fits(x.dataType, y.dataType) }
    case (ArrayType(a, _), ArrayType(b, _)) => fits(a, b)
    case (MapType(k, v, _), MapType(l, w, _)) => fits(k, l) && fits(v, w)
    case (_: StringType, _: StringType) => true
    case (_: YearMonthIntervalType, _: YearMonthIntervalType) => true
    case (_: DayTimeIntervalType, _: DayTimeIntervalType) => true
    case (a, b) => a == b
  }
}
