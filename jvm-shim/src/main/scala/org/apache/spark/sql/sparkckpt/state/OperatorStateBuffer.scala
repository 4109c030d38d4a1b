package org.apache.spark.sql.sparkckpt.state

import java.lang.ref.SoftReference
import java.util.Arrays

import org.apache.spark.sql.sparkckpt.{SparkckptConf, SparkckptErrors}
import org.apache.spark.sql.sparkckpt.format._

/** The operator state that a commit writes. */
case class NewOperatorState(blob: Array[Byte], states: Seq[OperatorStateInfo])

/** The blob of a version, kept for the next batch as long as there is memory for it. */
private[state] final class KeptBlob(blob: Option[Array[Byte]]) {
  private val kept = blob.map(new SoftReference(_))
  def get: Option[Array[Byte]] = kept.flatMap(k => Option(k.get))
}

/**
 * The operator state of one open store: what the version has that it was opened at, read when it is
 * first asked for, and what replaces it.
 *
 * @param own           where that version's own lies
 * @param redistributed or where it comes from, if it was taken over from a manifest
 * @param kept          its bytes, if they are still there
 * @param maxBytes      what a partition may set
 * @param where         names the store in messages
 */
private[state] final class OperatorStateBuffer(
    storage: StateStorage,
    own: Option[OperatorStateHandle],
    redistributed: Option[OperatorStateRedistribution],
    kept: KeptBlob,
    maxBytes: Long,
    where: String) {

  private var replacement: Option[NewOperatorState] = None
  private var known: Option[Array[Byte]] = kept.get

  private lazy val taken: Seq[OperatorStateItems] =
    redistributed.toSeq.flatMap(_.states(where)(storage.readOperatorStateCached))

  def current: Option[Array[Byte]] = {
    if (known.isEmpty) {
      known = own.map(storage.readOperatorState).orElse(
        Option.when(taken.nonEmpty)(OperatorStateBlob.serialize(taken)))
    }
    known
  }

  def set(blob: Array[Byte]): Unit = {
    if (blob.length > maxBytes) {
      throw SparkckptErrors.operatorStateTooLarge(
        where, blob.length, maxBytes, SparkckptConf.OperatorStateMaxBytes.key)
    }
    val states = OperatorStateBlob.parse(blob, s"operator state for $where")
    replacement = Some(NewOperatorState(blob.clone(), states.map(_.info)))
  }

  /**
   * What the next version has: a blob to be written, or where it lies already, or nothing. State that
   * was taken over is written anew in any case: no version depends on another checkpoint for it.
   */
  lazy val next: Either[NewOperatorState, Option[OperatorStateHandle]] = replacement match {
    case Some(state) if state.states.isEmpty => Right(None)
    case Some(state) if own.isDefined && known.exists(Arrays.equals(_, state.blob)) => Right(own)
    case Some(state) => Left(withInherited(state))
    case None if redistributed.isDefined && taken.nonEmpty =>
      Left(withInherited(NewOperatorState(current.get, taken.map(_.info))))
    case None => Right(own)
  }

  /** Marks the union states that hold the very items that the partition was given. */
  private def withInherited(state: NewOperatorState): NewOperatorState = {
    val received = if (state.states.exists(_.mode == OperatorStateMode.Union)) inherited else Nil
    if (received.isEmpty) state
    else {
      val untouched = OperatorStateBlob.parse(state.blob, where)
        .filter(s => received.exists(_.hasSameItems(s))).map(_.name).toSet
      state.copy(states = state.states.map { info =>
        if (untouched.contains(info.name)) info.copy(inherited = Some(true)) else info
      })
    }
  }

  private def inherited: Seq[OperatorStateItems] =
    if (redistributed.isDefined) taken.filter(_.mode == OperatorStateMode.Union)
    else {
      val names = own.toSeq.flatMap(_.states).filter(_.isInherited).map(_.name)
      if (names.isEmpty) Nil
      else OperatorStateBlob.parse(current.get, where).filter(s => names.contains(s.name))
    }

  /** The bytes of [[next]]; nothing can be set any more. */
  def afterCommit: KeptBlob = new KeptBlob(next match {
    case Left(state) => Some(state.blob)
    case Right(carried) => known.filter(_ => carried.isDefined)
  })
}
