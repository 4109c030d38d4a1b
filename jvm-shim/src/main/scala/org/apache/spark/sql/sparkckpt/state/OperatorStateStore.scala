package org.apache.spark.sql.sparkckpt.state

import org.apache.spark.sql.execution.streaming.state.StateStore

/**
 * Operator state, which belongs to a partition and to no key, beside the keyed state of a store. It is
 * one blob (PROTOCOL.md section 10) of named states with items, and part of the version that is
 * committed.
 *
 * A version that is committed without [[setOperatorState]] has the operator state of the version
 * before. One that is aborted has changed nothing.
 */
trait OperatorStateStore {
  /**
   * The operator state of the version that was opened, None if there is none. After a rescale or a
   * restore it is this partition's share, each state dealt out by its mode.
   */
  def operatorState: Option[Array[Byte]]

  /** Replaces the whole operator state; a blob without states removes it. The last call counts. */
  def setOperatorState(blob: Array[Byte]): Unit
}

object OperatorStateStore {
  /** None if the store is of another provider. Spark hands the provider's own store to operators. */
  def of(store: StateStore): Option[OperatorStateStore] = store match {
    case ours: OperatorStateStore => Some(ours)
    case _ => None
  }
}
