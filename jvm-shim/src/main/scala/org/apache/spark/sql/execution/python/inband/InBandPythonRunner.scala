package org.apache.spark.sql.execution.python.inband

import java.io.DataOutputStream

import org.apache.arrow.vector.VectorSchemaRoot
import org.apache.arrow.vector.ipc.ArrowStreamWriter

import org.apache.spark.TaskContext
import org.apache.spark.api.python.{ChainedPythonFunctions, PythonEvalType}
import org.apache.spark.sql.catalyst.expressions.{Attribute, PythonUDF}
import org.apache.spark.sql.execution.metric.SQLMetric
import org.apache.spark.sql.execution.python.{ArrowPythonRunner, PandasGroupUtils, PythonUDFRunner}
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.types.{StructField, StructType}
import org.apache.spark.sql.vectorized.ColumnarBatch

/** What is written to Python, one record batch a call, on the task's own thread. */
trait RecordBatchSource {
  /** Fills the vectors and says how many rows there are; 0 is the end. */
  def fill(root: VectorSchemaRoot): Int
}

/** What of the session a runner takes along to the executors. */
case class InBandSession(
    timeZoneId: String,
    largeVarTypes: Boolean,
    runnerConf: Map[String, String],
    maxRecordsPerBatch: Int)

object InBandSession {
  def of(conf: SQLConf): InBandSession = InBandSession(
    conf.sessionLocalTimeZone,
    conf.arrowUseLargeVarTypes,
    ArrowPythonRunner.getPythonRunnerConfMap(conf),
    conf.arrowMaxRecordsPerBatch)
}

/** Where in the rows that are sent the columns of the key and of the values lie. */
case class KeyAndValueColumns(sent: Seq[Attribute], keys: Seq[Int], values: Seq[Int])

object KeyAndValueColumns {
  /** As Spark's own operators find them; these come as [length, number of keys, keys, values]. */
  def of(attributes: Seq[Attribute], grouping: Seq[Attribute]): KeyAndValueColumns = {
    val (sent, offsets) = PandasGroupUtils.resolveArgOffsets(attributes, grouping)
    val (keys, values) = offsets.drop(2).toSeq.splitAt(offsets(1))
    KeyAndValueColumns(sent, keys, values)
  }
}

/**
 * Runs a Python function from record batches to record batches, without a word on what they hold:
 * one struct column there, one struct column back.
 */
final class InBandPythonRunner(
    udf: PythonUDF,
    sent: StructType,
    session: InBandSession,
    pythonMetrics: Map[String, SQLMetric],
    jobArtifactUUID: Option[String],
    source: RecordBatchSource)
  extends UnpipelinedArrowRunner(
    Seq((ChainedPythonFunctions(Seq(udf.func)), udf.resultId.id)),
    PythonEvalType.SQL_MAP_ARROW_ITER_UDF,
    Array(Array(0)),
    StructType(Seq(StructField("struct", sent))),
    session.timeZoneId,
    session.largeVarTypes,
    pythonMetrics,
    jobArtifactUUID) {

  override protected def runnerConf: Map[String, String] = super.runnerConf ++ session.runnerConf

  /** A batch must stay whole: its updates are applied before its output is given out. */
  override protected def arrowMaxRecordsPerOutputBatch: Int = 0
  override protected def arrowMaxBytesPerOutputBatch: Int = 0

  override protected def writeUDF(dataOut: DataOutputStream): Unit =
    PythonUDFRunner.writeUDFs(dataOut, funcsWithIds, argOffsets)

  override protected def writeNextBatchToArrowStream(
      root: VectorSchemaRoot,
      writer: ArrowStreamWriter,
      dataOut: DataOutputStream,
      inputIterator: Iterator[Unit]): Boolean = {
    val before = dataOut.size()
    if (source.fill(root) > 0) {
      writer.writeBatch()
      pythonMetrics("pythonDataSent") += dataOut.size() - before
      true
    } else {
      close()
      isClosed = true
      false
    }
  }

  private var isClosed = false

  def run(context: TaskContext): Iterator[ColumnarBatch] = {
    context.addTaskCompletionListener[Unit] { _ =>
      if (!isClosed) {
        root.close()
        allocator.close()
      }
    }
    compute(Iterator.empty, context.partitionId(), context)
  }
}
