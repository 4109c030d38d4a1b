package org.apache.spark.sql.sparkckpt.state

import scala.collection.mutable

import org.apache.spark.sql.sparkckpt.format.{OperatorStateRedistribution, StateHandle}

/**
 * The version whose rows the engine holds, and the families of it that have been filled so far.
 *
 * @param resplit it was loaded from files that no later version may refer to
 * @param operatorState where it comes from, if it was taken over from a manifest
 */
private[state] final class WorkingState(
    val version: Long,
    val id: Option[String],
    val handle: Option[StateHandle],
    val resplit: Boolean,
    val operatorState: Option[OperatorStateRedistribution] = None,
    val operatorStateBlob: KeptBlob = new KeptBlob(None),
    val filled: mutable.Set[String] = mutable.Set.empty) {
  /** The version it was made of, and which the engine can perhaps go back to. */
  private var madeOf: Option[WorkingState] = None
  private val postponed = mutable.LinkedHashSet.empty[String]

  def postpone(family: String): Unit = postponed += family

  /** The families to be filled later, to be tried again now. */
  def takePostponed(): Seq[String] = {
    val taken = postponed.toSeq
    postponed.clear()
    taken
  }

  def previous: Option[WorkingState] = madeOf

  def is(version: Long, id: Option[String]): Boolean = this.version == version && this.id == id

  def advance(handle: StateHandle, operatorStateBlob: KeptBlob): WorkingState = {
    val next = new WorkingState(
      handle.version, Some(handle.id), Some(handle), resplit = false, operatorState = None,
      operatorStateBlob, filled)
    madeOf = None
    next.madeOf = Some(this)
    next
  }
}
