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
  private val gates = new ConcurrentHashMap[UUID, Gate]

  private final class Gate {
    private var closedUntil = 0L
    private var passed = Option.empty[Long]

    def close(): Unit = synchronized { closedUntil = now + patienceMillis }

    def open(): Unit = synchronized {
      closedUntil = 0L
      notifyAll()
    }

    def isClosed: Boolean = synchronized(now < closedUntil)

    def pass(batchId: Long): Unit = synchronized {
      while (isClosed) wait(closedUntil - now + 1)
      passed = Some(batchId)
    }

    /** The batch that has passed last: as long as the gate is closed, no other does. */
    def lastPassed: Option[Long] = synchronized(passed)

    private def now: Long = System.nanoTime() / 1000000L
  }

  private def gate(runId: UUID): Gate = gates.computeIfAbsent(runId, _ => new Gate)

  /** To be called by a stream before each batch; returns once the batch may run. */
  def pass(runId: UUID, batchId: Long): Unit = gate(runId).pass(batchId)

  /** Lets the run finish its batch and begin no other. */
  def hold(runId: UUID): Unit = BatchGates.query(runId).foreach(_ => gate(runId).close())

  /**
   * Whether the run is held between two batches, which Spark's commit log tells: to be called where
   * storage may be waited for.
   */
  def isHeld(runId: UUID): Boolean = Option(gates.get(runId)).exists(_.isClosed) &&
    BatchGates.query(runId).exists(isBetweenBatches)

  private def isBetweenBatches(query: StreamExecution): Boolean =
    gate(query.runId).lastPassed.forall { batchId =>
      query.commitLog.getLatestBatchId().exists(_ >= batchId)
    }

  def release(runId: UUID): Unit = Option(gates.get(runId)).foreach(_.open())

  def ended(runId: UUID): Unit = Option(gates.remove(runId)).foreach(_.open())

  /** Stops a run that is held, on a thread of its own; false if it is not held, and may have gone on. */
  def stop(runId: UUID): Boolean = isHeld(runId) && BatchGates.query(runId).exists { query =>
    logInfo(s"Query run $runId is stopped at a savepoint")
    val stopping = new Thread(() => query.stop(), "sparkckpt-stop-query")
    stopping.setDaemon(true)
    stopping.start()
    true
  }
}

private[coordinator] object BatchGates {
  def query(runId: UUID): Option[StreamExecution] =
    SparkSession.getDefaultSession.orElse(SparkSession.getActiveSession).flatMap { session =>
      session.sharedState.activeStreamingQueries.values.asScala.find(_.runId == runId)
    }
}
