package org.apache.spark.sql.sparkckpt.inband

import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.execution.streaming.state.StateStore
import org.apache.spark.sql.sparkckpt.state.OperatorStateStore
import org.apache.spark.util.CompletionIterator

/** The operator state of a partition between the calls of a task; the store's commit carries it. */
final class OperatorStateHolder(store: Option[OperatorStateStore]) {
  private var changed: Option[Array[Byte]] = None

  def get: Option[Array[Byte]] = changed.orElse(store.flatMap(_.operatorState))

  def set(blob: Array[Byte]): Unit = changed = Some(blob)

  /** To be called before the store is committed. */
  def save(): Unit = for (blob <- changed; to <- store) to.setOperatorState(blob)

  /** Saves once the last row has been taken. */
  def savedAfter(rows: Iterator[InternalRow]): Iterator[InternalRow] =
    CompletionIterator[InternalRow, Iterator[InternalRow]](rows, save())
}

object OperatorStateHolder {
  /** A processor that keeps none does not look for it. */
  def of(spec: ProcessorSpec, store: StateStore): OperatorStateHolder =
    new OperatorStateHolder(if (spec.operatorState) OperatorStateStore.of(store) else None)
}
