package org.apache.spark.sql.sparkckpt.state

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state.{StateStore, StateStoreCustomMetric, StateStoreInstanceMetric}

/**
 * The working state of one store on an executor: what operators read and write during a batch. It
 * knows no files and no versions of Spark's. The provider decides what the working state stands for,
 * fills it from state files, and is the only caller; it never has two stores open at once.
 *
 * A store that is committed leaves its changes in the working state. One that is aborted leaves it as
 * it was, if the engine can take changes back; else the provider opens it empty and fills it again.
 */
trait StateEngine {
  /** Opens the working state as the last commit or release left it, or empty. */
  def open(empty: Boolean, readOnly: Boolean): StateStore

  /**
   * Brings a family's rows into the open store. What `body` puts may be held back, and must not be
   * read in it; it is no change that an abort would take back.
   */
  def fill[T](store: StateStore, family: ColumnFamily)(body: StateFiller => T): T

  /** Turns a store opened for reading into one for writing, without losing its place. */
  def upgrade(store: StateStore): StateStore

  /** Keeps the store's changes as the working state. */
  def commit(store: StateStore): Unit

  /** Ends a store without keeping its changes; whether the working state is what it was before. */
  def abort(store: StateStore): Boolean

  /** Takes back the last commit, if nothing was changed or filled since; whether that was possible. */
  def rollBack(): Boolean

  /**
   * To be kept up to date by whoever changes a store, before it does; fills are counted already. None
   * if the metrics of the engine's stores say how many keys they have.
   */
  def keyCounts: Option[KeyCounts]

  /** Gives memory back that others need more. No store is open, and the next one is opened empty. */
  def giveUp(): Unit

  /** Called from Spark's maintenance threads. */
  def doMaintenance(): Unit

  def close(): Unit
}

/**
 * Takes the rows of a family that has none yet: each key once, and what is appended to it after it. The
 * rows may be reused by the caller.
 */
trait StateFiller {
  /** `value` is null for the empty list. */
  def put(key: UnsafeRow, value: UnsafeRow): Unit
  def append(key: UnsafeRow, value: UnsafeRow): Unit
}

/** The metrics of an engine; Spark asks for them before there is one. */
trait StateEngineMetrics {
  def customMetrics: Seq[StateStoreCustomMetric]
  def instanceMetrics: Seq[StateStoreInstanceMetric]
  /** The one among them for keys of internal column families, which the engine does not count. */
  def internalKeys: StateStoreCustomMetric
}
