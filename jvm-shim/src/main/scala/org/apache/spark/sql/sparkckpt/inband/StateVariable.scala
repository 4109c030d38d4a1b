package org.apache.spark.sql.sparkckpt.inband

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.catalyst.util.GenericArrayData
import org.apache.spark.sql.types.{DataType, StructType}

/** Catalyst's array with what its rows take, for a record batch to know when it is full. */
final class SizedArray(values: Array[Any], val bytes: Long) extends GenericArrayData(values)

/** A state variable of a StatefulProcessor, by rows instead of objects, in Spark's own layout. */
trait StateVariable {
  /** Of its field in the struct beside the first row of a key. */
  def sentType: DataType

  /** Of its value field in an update. */
  def updateType: DataType

  /** What is sent; null if nothing is, which for a list or map means that Python fetches it. */
  def read(key: UnsafeRow): Any

  /** Applies an operation, whose value is that field of the update. */
  def update(key: UnsafeRow, operation: Byte, update: InternalRow, value: Int): Unit
}

/** A list or a map: it is sent only if it is small and asked for. */
trait FetchableVariable extends StateVariable {
  def fetchSchema: StructType

  def fetch(key: UnsafeRow): Iterator[InternalRow]
}

/**
 * Whether a variable is sent, which costs a read per key, or fetched, which costs a round trip per
 * use: what is asked for is sent. It is remembered for the run of the query in this executor.
 */
final class SendingPolicy(run: String, maxBytes: Long) {
  private var fetches = 0

  def isSent: Boolean = SendingPolicy.isSent(run)

  def fetched(): Unit = {
    fetches += 1
    if (fetches >= SendingPolicy.FetchesToSend) SendingPolicy.send(run)
  }

  /** The rows if they are few enough, else null. The iterator need not be read to its end. */
  def collect(rows: Iterator[InternalRow]): SizedArray = {
    val kept = Array.newBuilder[Any]
    var bytes = 0L
    while (rows.hasNext && bytes <= maxBytes) {
      val row = rows.next()
      bytes += SendingPolicy.sizeOf(row)
      kept += row.copy()
    }
    if (bytes <= maxBytes) new SizedArray(kept.result(), bytes) else null
  }
}

private object SendingPolicy {
  private val FetchesToSend = 8
  private val MaxRuns = 1000
  private val sent = new java.util.LinkedHashMap[String, java.lang.Boolean]() {
    override def removeEldestEntry(eldest: java.util.Map.Entry[String, java.lang.Boolean]): Boolean =
      size > MaxRuns
  }

  def isSent(run: String): Boolean = synchronized(sent.containsKey(run))

  def send(run: String): Unit = synchronized(sent.put(run, true))

  def sizeOf(row: InternalRow): Long = row match {
    case unsafe: UnsafeRow => unsafe.getSizeInBytes
    case fields =>
      (0 until fields.numFields).map { i =>
        if (fields.isNullAt(i)) 8L
        else fields.getStruct(i, 0) match {
          case unsafe: UnsafeRow => unsafe.getSizeInBytes.toLong
          case _ => 8L
        }
      }.sum
  }
}
