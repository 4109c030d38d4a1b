package org.apache.spark.sql.sparkckpt.inband

import org.apache.spark.sql.types._

/**
 * The names and flags of what is exchanged with Python; `sparkckpt/processor/wire.py` is the other
 * end. Rows go there sorted by key, the state of a key beside its first row; output and new state
 * come back. Keys are never sent back: they are counted in the order in which they were sent.
 */
object InBandWire {
  val Version: Int = 1
  /** The task's local property that tells Python about its call, as JSON. */
  val ControlProperty: String = "sparkckpt.inband"

  /** Tells the tasks of a batch which checkpoint has been completed since the one before. */
  val CompletedProperty: String = "sparkckpt.completedCheckpointId"

  val FlagField: StructField = StructField("__flag", ByteType, nullable = false)
  val StateName: String = "__state"

  /** The row begins a key: its state is beside it. */
  val First: Int = 1
  /** On the last row of a record batch: its key goes on in the next one. */
  val More: Int = 2
  /** The key has timed out, or has expired timers, and no rows. */
  val Expired: Int = 4

  val InputPhase: String = "input"
  val TimersPhase: String = "timers"

  /** Operations of an update. */
  val Nothing: Byte = 0
  val Put: Byte = 1
  val Clear: Byte = 2
  val Append: Byte = 3
  val ClearAndAppend: Byte = 4

  /** What Python sends: fields of the struct that is the column of a record batch. */
  def replySchema(output: StructType, update: StructType, operatorState: Boolean): StructType = {
    val fields = new StructType()
      .add("done", LongType)
      .add("output", output)
      .add("update", update)
    if (operatorState) fields.add("operatorState", BinaryType) else fields
  }
}
