package org.apache.spark.sql.sparkckpt.coordinator

import scala.util.control.NonFatal

import org.json4s.{JInt, JString}

import org.apache.spark.internal.Logging
import org.apache.spark.sql.sparkckpt.SparkckptExecutor

/**
 * What a store tells the coordinator once its handle lies on storage.
 *
 * @param syncMs time the task spent in the commit on anything but writing
 * @param writeMs time it spent writing the change set and the handle
 * @param description the handle's description, as it stands in the handle file
 */
case class CheckpointAck(
    runId: String,
    syncMs: Long,
    writeMs: Long,
    bytesWritten: Long,
    taskAttempt: Long,
    description: Array[Byte]) {

  def frame(receivedMs: Long): Frame = Frame("ack",
    "runId" -> JString(runId),
    "receivedMs" -> JInt(receivedMs),
    "syncMs" -> JInt(syncMs),
    "writeMs" -> JInt(writeMs),
    "bytesWritten" -> JInt(bytesWritten),
    "taskAttempt" -> JInt(taskAttempt)).copy(payload = description)
}

object CheckpointAck extends Logging {
  /**
   * One way and without waiting. An ack that is lost costs the coordinator one read of the handle;
   * it must never cost a task.
   */
  def send(ack: CheckpointAck): Unit = SparkckptExecutor.context.foreach { context =>
    try context.send(ack) catch {
      case NonFatal(e) => logDebug(s"An ack of run ${ack.runId} could not be sent", e)
    }
  }
}
