package org.apache.spark.sql.sparkckpt.format

/** How the items of an operator state are dealt out when partitions change. */
object OperatorStateMode {
  /** Each item goes to one partition. */
  val Split = "split"
  /** Every partition gets the items of all. */
  val Union = "union"
  /** All partitions have the same items. */
  val Broadcast = "broadcast"

  val all: Set[String] = Set(Split, Union, Broadcast)
}

/**
 * One operator state of a partition, without its items.
 *
 * @param inherited the partition was given the items of all in a redistribution, and still has just
 *                  those: every other one was given the same. Only for union.
 */
case class OperatorStateInfo(
    name: String, mode: String, items: Int, bytes: Long, inherited: Option[Boolean] = None) {
  def isInherited: Boolean = inherited.contains(true)
}

/**
 * Where the operator states of one partition lie, all in one blob: inlined in the handle of the
 * version that wrote them, to which later versions refer, or in a file of their own at offset 0.
 */
case class OperatorStateHandle(
    path: String, offset: Long, length: Int, crc32: Long, states: Seq[OperatorStateInfo])
