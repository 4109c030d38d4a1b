package org.apache.spark.sql.execution.python.inband

import org.apache.spark.api.python.ChainedPythonFunctions
import org.apache.spark.sql.execution.metric.SQLMetric
import org.apache.spark.sql.execution.python.{BaseArrowPythonRunner, BasicPythonArrowOutput}
import org.apache.spark.sql.types.StructType
import org.apache.spark.sql.vectorized.ColumnarBatch

/**
 * Writes and reads on the task's thread, as this Spark always does.
 */
abstract class UnpipelinedArrowRunner(
    protected val funcsWithIds: Seq[(ChainedPythonFunctions, Long)],
    evalType: Int,
    argOffsets: Array[Array[Int]],
    schema: StructType,
    timeZoneId: String,
    largeVarTypes: Boolean,
    pythonMetrics: Map[String, SQLMetric],
    jobArtifactUUID: Option[String])
  extends BaseArrowPythonRunner[Unit, ColumnarBatch](
    funcsWithIds, evalType, argOffsets, schema, timeZoneId, largeVarTypes, pythonMetrics,
    jobArtifactUUID, None)
  with BasicPythonArrowOutput {

}
