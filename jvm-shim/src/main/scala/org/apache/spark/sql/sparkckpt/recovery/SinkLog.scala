package org.apache.spark.sql.sparkckpt.recovery

import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.execution.streaming.sinks.{FileStreamSink, FileStreamSinkLog}

/** The log that Spark's file sink keeps beside its files: no other sink of Spark's skips a batch. */
object SinkLog {
  /** The last batch that the query's sink has; None if it has none, or keeps no log. */
  def latest(query: StreamExecution): Option[Long] = query.sink match {
    case sink: FileStreamSink =>
      // It is private to the sink.
      val field = classOf[FileStreamSink].getDeclaredField("fileLog")
      field.setAccessible(true)
      field.get(sink).asInstanceOf[FileStreamSinkLog].getLatestBatchId()
    case _ => None
  }
}
