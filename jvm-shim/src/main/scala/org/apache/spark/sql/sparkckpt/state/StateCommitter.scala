package org.apache.spark.sql.sparkckpt.state

import java.io.ByteArrayOutputStream
import java.util.UUID

import org.apache.spark.sql.execution.streaming.state.{StateStoreCustomMetric, StateStoreId}
import org.apache.spark.sql.sparkckpt.OperatorLayout
import org.apache.spark.sql.sparkckpt.format._

/**
 * Writes a version of a store: a file for each changed family, then the handle, whose appearance is
 * the commit. Small change sets go into the handle itself, so that a small batch costs one object.
 */
final class StateCommitter(
    storeId: StateStoreId, storage: StateStorage, options: StateFileOptions, inlineThreshold: Long) {

  /** @param carried the files of the version before that still count */
  def commit(
      store: KeyGroupStateStore,
      layout: OperatorLayout,
      changes: Option[ChangeSet],
      carried: Seq[FamilyFiles]): CommitResult = {
    val start = System.nanoTime()
    val version = store.version + 1
    val id = UUID.randomUUID().toString
    val inlined = new ByteArrayOutputStream()
    val written = changes.toSeq.flatMap { set =>
      set.families.map(f => f -> write(set, f, layout, version, id, inlined)).toSeq
    }
    val deltaBytes = written.map(_._2.length).sum
    val inlinedDeltaBytes = inlined.size
    val operatorState = store.operatorStates.next match {
      case Left(state) => Some(inline(state, version, id, inlined))
      case Right(unchanged) => unchanged
    }
    val handle = StateHandle(
      storeId.operatorId, layout.operatorName, storeId.storeName, storeId.partitionId, version, id,
      store.checkpointId, layout.keyed, layout.parallelism, layout.maxParallelism,
      layout.rangeOf(storeId.partitionId).first, layout.rangeOf(storeId.partitionId).last,
      changes.map(_.changedRows).getOrElse(0L), changes.map(_.changeDigest).getOrElse("0" * 16),
      StateCommitter.append(carried, written), operatorState)
    val description = StateHandle.describe(handle)
    val handleBytes = storage.writeHandle(handle, description, inlined.toByteArray)
    val ownFiles = written.count(!_._2.path.endsWith(".handle"))
    CommitResult(handle, description, Map[StateStoreCustomMetric, Long](
      StateMetrics.DeltaBytes -> deltaBytes,
      StateMetrics.HandleBytes -> (handleBytes - inlined.size),
      StateMetrics.OperatorStateBytes -> (inlined.size - inlinedDeltaBytes),
      StateMetrics.ChangedRows -> handle.changedRows,
      StateMetrics.FilesWritten -> (1 + ownFiles),
      StateMetrics.StateFiles -> handle.families.map(_.files.length).sum,
      StateMetrics.SpilledBytes -> changes.map(_.spilledBytes).getOrElse(0L),
      StateMetrics.WriteTime -> (System.nanoTime() - start) / 1000000,
      StateMetrics.KeyGroupSpan -> (handle.lastKeyGroup - handle.firstKeyGroup + 1)))
  }

  private def inline(
      state: NewOperatorState,
      version: Long,
      id: String,
      inlined: ByteArrayOutputStream): OperatorStateHandle = {
    val offset = StateHandle.HeaderLength.toLong + inlined.size
    inlined.write(state.blob)
    OperatorStateHandle(storage.handlePath(version, id), offset, state.blob.length,
      OperatorStateBlob.crcOf(state.blob), state.states)
  }

  private def write(
      set: ChangeSet,
      family: ColumnFamily,
      layout: OperatorLayout,
      version: Long,
      id: String,
      inlined: ByteArrayOutputStream): StateFileRef = {
    val path = storage.deltaPath(version, id, family.name)
    val out = new StateStorage.SpillingOutput(
      inlineThreshold - inlined.size, () => storage.create(path))
    val summary = try {
      val writer = new StateFileWriter(
        out, family.describe(storeId.operatorId, storeId.storeName, layout.maxParallelism), options)
      val finished = try {
        set.write(family, writer)
        writer.finish()
      } finally writer.close()
      out.close()
      finished
    } catch {
      case e: Throwable => out.cancel(); throw e
    }
    val (where, offset) = out.buffered match {
      case Some(bytes) =>
        val at = StateHandle.HeaderLength + inlined.size
        inlined.write(bytes)
        (storage.handlePath(version, id), at.toLong)
      case None => (path, 0L)
    }
    StateFileRef(where, offset, summary.length, summary.tailLength, summary.tailCrc32, summary.rows,
      summary.firstKeyGroup, summary.lastKeyGroup, version, version, level = 0, base = false)
  }
}

/** The pure part: how a commit's file lists come from those of the version before. */
object StateCommitter {
  def adopt(families: Seq[FamilyFiles], merged: Seq[MergedFile]): Seq[FamilyFiles] =
    families.map { f =>
      merged.find(_.family == f.family).flatMap(_.replaceIn(f.files))
        .map(files => f.copy(files = files)).getOrElse(f)
    }

  def append(
      families: Seq[FamilyFiles], written: Seq[(ColumnFamily, StateFileRef)]): Seq[FamilyFiles] = {
    val extended = families.map { f =>
      f.copy(files = f.files ++ written.collect { case (w, file) if w.name == f.family => file })
    }
    val known = families.map(_.family).toSet
    extended ++ written.collect {
      case (w, file) if !known.contains(w.name) => FamilyFiles(w.name, w.multiValued, Seq(file))
    }
  }
}
