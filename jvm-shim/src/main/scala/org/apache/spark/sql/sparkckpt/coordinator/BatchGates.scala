package org.apache.spark.sql.sparkckpt.coordinator

import java.util.UUID
import java.util.concurrent.ConcurrentHashMap

import scala.jdk.CollectionConverters._

import org.apache.spark.internal.Logging
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution

/**
 * Holds queries between two batches, so that one can be stopped exactly there: to stop a query is to
 * cancel its batch, but while it waits here, before a batch that is planned, no task of it runs.
 *
 * Who wants a query held says so again and again. A gate opens by itself when nobody has for a
 * while: a query must not wait for a coordinator that is gone.
 */
private[coordinator] final class BatchGates(patienceMillis: Long) extends Logging {
  import BatchGates._

  private val gates = new ConcurrentHashMap[UUID, Gate]

  private final class Gate {
    private var closedUntil = 0L
    private var passed = Option.empty[Long]
    private var isWaited = false
    private var idleSince = Option.empty[Long]

    def close(): Unit = synchronized { closedUntil = now + patienceMillis }

    def open(): Unit = synchronized {
      closedUntil = 0L
      notifyAll()
    }

    def isClosed: Boolean = synchronized(now < closedUntil)

    def pass(batchId: Long): Unit = synchronized {
      isWaited = true
      try while (isClosed) wait(closedUntil - now + 1)
      finally isWaited = false
      passed = Some(batchId)
      idleSince = None
    }

    /** Whether a planned batch waits here. */
    def isParked: Boolean = synchronized(isClosed && isWaited)

    /** Takes note of whether the query has been seen idle; true once it has been for a while. */
    def noteIdle(isIdle: Boolean): Boolean = synchronized {
      idleSince = if (isClosed && isIdle) idleSince.orElse(Some(now)) else None
      idleSince.exists(now - _ >= QuietMillis)
    }

    /** The batch that has passed last: as long as the gate is closed, no other does. */
    def lastPassed: Option[Long] = synchronized(passed)

    private def now: Long = System.nanoTime() / 1000000L
  }

  private def gate(runId: UUID): Gate = gates.computeIfAbsent(runId, _ => new Gate)

  /** To be called by a stream before each batch; returns once the batch may run. */
  def pass(runId: UUID, batchId: Long): Unit = gate(runId).pass(batchId)

  /** Lets the run finish its batch and begin no other. */
  def hold(runId: UUID): Unit = query(runId).foreach(_ => gate(runId).close())

  /**
   * Whether the run is held: before a planned batch, or between two with none to plan. Not while one
   * is being planned, for then its sources have taken note of input that the offsets log lacks. To be
   * called again and again, where storage may be waited for.
   */
  def isHeld(runId: UUID): Boolean = Option(gates.get(runId)).exists { gate =>
    gate.isParked ||
      gate.noteIdle(query(runId).exists(query => isIdle(query) && isBetweenBatches(query)))
  }

  private def isBetweenBatches(query: StreamExecution): Boolean =
    gate(query.runId).lastPassed.forall { batchId =>
      query.commitLog.getLatestBatchId().exists(_ >= batchId)
    }

  /** Whether the query is seen waiting for its next trigger, which an idle one polls for. */
  private def isIdle(query: StreamExecution): Boolean =
    Iterator.range(0, IdleLooks).exists { look =>
      if (look > 0) Thread.sleep(IdleLookMillis)
      !query.status.isTriggerActive
    }

  def release(runId: UUID): Unit = Option(gates.get(runId)).foreach(_.open())

  def ended(runId: UUID): Unit = Option(gates.remove(runId)).foreach(_.open())

  /** Stops a run that is held, on a thread of its own; false if it is not held, and may have gone on. */
  def stop(runId: UUID): Boolean = {
    val held = query(runId).filter(query => gate(runId).isClosed && isBetweenBatches(query))
    held.foreach { query =>
      logInfo(s"Query run $runId is stopped at a savepoint")
      val stopping = new Thread(() => query.stop(), "sparkckpt-stop-query")
      stopping.setDaemon(true)
      stopping.start()
    }
    held.isDefined
  }
}

private[coordinator] object BatchGates {
  // Spark polls for input every 10 ms, and plans for longer than an instant at every trigger.
  private val IdleLooks = 250
  private val IdleLookMillis = 2L
  private val QuietMillis = 500L

  def query(runId: UUID): Option[StreamExecution] =
    SparkSession.getDefaultSession.orElse(SparkSession.getActiveSession).flatMap { session =>
      session.sharedState.activeStreamingQueries.values.asScala.find(_.runId == runId)
    }
}
