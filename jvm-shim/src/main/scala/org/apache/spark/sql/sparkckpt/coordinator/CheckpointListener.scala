package org.apache.spark.sql.sparkckpt.coordinator

import java.util.concurrent.{CopyOnWriteArrayList, ExecutorService, TimeUnit}

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.json4s.jackson.JsonMethods.{compact, render}

import org.apache.spark.internal.Logging
import org.apache.spark.util.ThreadUtils

/**
 * Is told of the checkpoints of all queries of the application, in the order in which they were
 * completed or aborted, on a thread that no query waits for. Register it with
 * [[CheckpointListeners]].
 */
trait CheckpointListener {
  def onCheckpointCompleted(event: CheckpointEvent): Unit
  def onCheckpointAborted(event: CheckpointEvent): Unit
}

trait CheckpointSubscription {
  def remove(): Unit
}

/** What the coordinator reports: the fields of its frame, named in `sparkckpt/notify.py`. */
final class CheckpointEvent(frame: Frame) {
  def isCompleted: Boolean = frame.kind == CheckpointEvent.Completed
  def runId: String = frame.text("runId")
  def queryId: String = frame.text("queryId")
  def batchId: Long = frame.number("batchId")
  /** Only a completed checkpoint has an id for certain. */
  def checkpointId: Option[Long] = frame.optionalNumber("checkpointId")
  def json: String = compact(render(frame.header))
  override def toString: String = json
}

object CheckpointEvent {
  val Completed = "checkpoint_completed"
  val Aborted = "checkpoint_aborted"
}

object CheckpointListeners extends Logging {
  private val DrainSeconds = 2L
  private val listeners = new CopyOnWriteArrayList[CheckpointListener]
  private var delivery: Option[ExecutorService] = None

  def add(listener: CheckpointListener): CheckpointSubscription = {
    listeners.add(listener)
    () => listeners.removeIf(_ eq listener)
  }

  private[coordinator] def post(event: CheckpointEvent): Unit = if (!listeners.isEmpty) {
    thread.execute(() => listeners.asScala.foreach(tell(_, event)))
  }

  /** Delivers what was posted, for a bounded time, and forgets the listeners of the application. */
  private[coordinator] def stop(): Unit = synchronized {
    delivery.foreach { thread =>
      thread.shutdown()
      thread.awaitTermination(DrainSeconds, TimeUnit.SECONDS)
    }
    delivery = None
    listeners.clear()
  }

  private def thread: ExecutorService = synchronized {
    delivery.getOrElse {
      val created = ThreadUtils.newDaemonSingleThreadExecutor("sparkckpt-checkpoint-listeners")
      delivery = Some(created)
      created
    }
  }

  private def tell(listener: CheckpointListener, event: CheckpointEvent): Unit = try {
    if (event.isCompleted) listener.onCheckpointCompleted(event)
    else listener.onCheckpointAborted(event)
  } catch {
    case NonFatal(e) => logWarning(s"The checkpoint listener $listener failed on $event", e)
  }
}
