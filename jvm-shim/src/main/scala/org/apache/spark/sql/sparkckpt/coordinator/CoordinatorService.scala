package org.apache.spark.sql.sparkckpt.coordinator

import java.util.UUID
import java.util.concurrent.ConcurrentHashMap
import java.util.concurrent.atomic.AtomicLong

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.json4s.{JInt, JString}

import org.apache.spark.SparkConf
import org.apache.spark.internal.Logging
import org.apache.spark.sql.sparkckpt.{SparkckptConf, SparkckptErrors}

/**
 * The driver's side of the checkpoint coordinator, for streams, tasks and listeners: they hand over
 * events and never wait, except for what must be done before a query starts. While the coordinator is behind, acks are dropped; it then reads the handles
 * from storage. The process is launched with the first query that is known to be on this backend.
 */
final class CoordinatorService(conf: SparkConf, hadoopConf: Configuration) extends Logging {
  import CoordinatorService._

  private val queuedBytes = new AtomicLong
  private val droppedAcks = new AtomicLong
  /** The runs that have been announced and have not ended. */
  private val known = ConcurrentHashMap.newKeySet[UUID]
  /** The runs that the coordinator wants stopped, and why. */
  private val condemned = new ConcurrentHashMap[UUID, String]
  /** Of each run the newest completed checkpoint that its operators have not been told of. */
  private val completed = new ConcurrentHashMap[UUID, java.lang.Long]
  private val restored = new ConcurrentHashMap[Path, String]
  private val gates = new BatchGates(GatePatienceMillis)
  private val supervisor =
    new CoordinatorSupervisor(
      conf, new StorageService(hadoopConf), condemn, complete, gates, queuedBytes)

  /**
   * Waits while the coordinator wants the query held before this batch.
   *
   * @throws SparkckptException if the coordinator wants the query stopped
   */
  def batchPlanned(runId: UUID, batchId: Long, run: => QueryRun): Unit = {
    gates.pass(runId, batchId)
    Option(condemned.get(runId)).foreach(why => throw SparkckptErrors.checkpointsFailed(why))
    queryStarted(runId, run)
  }

  def queryStarted(runId: UUID, run: => QueryRun): Unit =
    if (known.add(runId)) supervisor.put(CoordinatorSupervisor.Started(run))

  /**
   * Has a checkpoint restored or rescaled for a query that starts, and waits for it: the one thing
   * that a stream does wait for. Returns what was done, in words.
   *
   * @throws SparkckptException if it was not done
   */
  def prepare(request: StartRequest): String = supervisor.request(request)

  /** Which query's checkpoint was first to be restored from there, if the name did not decide. */
  def firstRestored(source: Path, checkpointLocation: String): String =
    Option(restored.putIfAbsent(source, checkpointLocation)).getOrElse(checkpointLocation)

  def notRestored(source: Path, checkpointLocation: String): Unit =
    restored.remove(source, checkpointLocation)

  def acknowledge(ack: CheckpointAck): Unit = {
    val frame = ack.frame(System.currentTimeMillis())
    val size = frame.payload.length + FrameOverhead
    if (queuedBytes.addAndGet(size) <= MaxQueuedBytes) {
      supervisor.put(CoordinatorSupervisor.Passing(frame, size))
    } else {
      queuedBytes.addAndGet(-size)
      if (droppedAcks.incrementAndGet() == 1) {
        logWarning("The checkpoint coordinator does not keep up, and acks are being dropped. It " +
          "reads the handles from storage instead; checkpoints complete later.")
      }
    }
  }

  def batchCommitted(runId: UUID, batchId: Long): Unit = if (known.contains(runId)) {
    supervisor.put(CoordinatorSupervisor.Passing(Frame(
      "progress", "runId" -> JString(runId.toString), "batchId" -> JInt(batchId))))
  }

  def queryEnded(runId: UUID, error: Option[String]): Unit = if (known.remove(runId)) {
    condemned.remove(runId)
    completed.remove(runId)
    gates.ended(runId)
    supervisor.put(CoordinatorSupervisor.Ended(runId, error))
  }

  /** Not in the middle of a batch, and with an error on the stream's own thread, as any other. */
  private def condemn(runId: UUID, why: String): Unit = if (known.contains(runId)) {
    logError(s"Query run $runId is stopped before its next batch: $why")
    condemned.put(runId, why)
  }

  private def complete(runId: UUID, checkpointId: Long): Unit =
    if (known.contains(runId)) completed.put(runId, checkpointId)

  /** The newest checkpoint completed since this was last asked for. */
  def takeCompleted(runId: UUID): Option[Long] = Option(completed.remove(runId)).map(_.longValue)

  def droppedAckCount: Long = droppedAcks.get()
  def processId: Option[Long] = supervisor.processId

  def stop(): Unit = {
    supervisor.stop()
    CheckpointListeners.stop()
  }
}

/** The service of the application that runs in this JVM, if it is the driver's. */
object CoordinatorService {
  private val MaxQueuedBytes = 64L << 20
  private val FrameOverhead = 256L
  private val GatePatienceMillis = 60000L

  @volatile private var current: Option[CoordinatorService] = None

  def active: Option[CoordinatorService] = current

  def start(conf: SparkConf, hadoopConf: Configuration): Unit =
    current = Some(new CoordinatorService(conf, hadoopConf))

  def receive(message: AnyRef): Unit = message match {
    case ack: CheckpointAck => current.foreach(_.acknowledge(ack))
    case other => throw new IllegalArgumentException(s"The plugin got a message it does not know: $other")
  }

  def stop(): Unit = {
    current.foreach(_.stop())
    current = None
  }

  def isEnabled(confs: String => Option[String]): Boolean =
    SparkckptConf.CoordinatorEnabled.from(confs)
}
