package org.apache.spark.sql.sparkckpt.state

import org.apache.spark.sql.execution.streaming.state._

/** What the backend reports in the progress of a query, besides the engine's own metrics. */
object StateMetrics {
  val DeltaBytes: StateStoreCustomMetric = StateStoreCustomSizeMetric(
    "sparkckptDeltaBytes", "sparkckpt: bytes of the change sets written by commits")
  val HandleBytes: StateStoreCustomMetric = StateStoreCustomSizeMetric(
    "sparkckptHandleBytes", "sparkckpt: bytes of the handles, without inlined change sets")
  val OperatorStateBytes: StateStoreCustomMetric = StateStoreCustomSizeMetric(
    "sparkckptOperatorStateBytes", "sparkckpt: bytes of the operator state written by commits")
  val ChangedRows: StateStoreCustomMetric = StateStoreCustomSumMetric(
    "sparkckptChangedRows", "sparkckpt: rows in the change sets")
  val FilesWritten: StateStoreCustomMetric = StateStoreCustomSumMetric(
    "sparkckptFilesWritten", "sparkckpt: files written by commits and merges")
  val StateFiles: StateStoreCustomMetric = StateStoreCustomSumMetric(
    "sparkckptStateFiles", "sparkckpt: files the state consists of")
  val SpilledBytes: StateStoreCustomMetric = StateStoreCustomSizeMetric(
    "sparkckptSpilledBytes", "sparkckpt: bytes of change sets spilled to local disk")
  val WriteTime: StateStoreCustomMetric = StateStoreCustomTimingMetric(
    "sparkckptWriteTimeMs", "sparkckpt: time to write change sets and handles")
  val LoadTime: StateStoreCustomMetric = StateStoreCustomTimingMetric(
    "sparkckptLoadTimeMs", "sparkckpt: time to load state from files")
  val MergeTime: StateStoreCustomMetric = StateStoreCustomTimingMetric(
    "sparkckptMergeTimeMs", "sparkckpt: time spent merging files since the last commit")
  val MergedBytes: StateStoreCustomMetric = StateStoreCustomSizeMetric(
    "sparkckptMergedBytes", "sparkckpt: bytes written by merges since the last commit")
  val KeyGroupSpan: StateStoreCustomMetric = StateStoreCustomSumMetric(
    "sparkckptKeyGroupSpan", "sparkckpt: key groups owned by the stores")

  val all: Seq[StateStoreCustomMetric] = Seq(DeltaBytes, HandleBytes, OperatorStateBytes, ChangedRows,
    FilesWritten, StateFiles, SpilledBytes, WriteTime, LoadTime, MergeTime, MergedBytes, KeyGroupSpan)
}
