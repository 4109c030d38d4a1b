package org.apache.spark.sql.sparkckpt.coordinator

import java.io.IOException
import java.util.UUID
import java.util.concurrent.{ConcurrentHashMap, CountDownLatch, LinkedBlockingQueue, TimeUnit}
import java.util.concurrent.atomic.AtomicLong

import scala.collection.mutable
import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.json4s.{JInt, JString}

import org.apache.spark.SparkConf
import org.apache.spark.internal.Logging
import org.apache.spark.sql.sparkckpt.{SparkckptConf, SparkckptErrors}
import org.apache.spark.util.ThreadUtils

/**
 * Keeps the coordinator's process running while there are queries for it, and forwards events to
 * it. A process that dies is replaced, and the new one is told of all runs that the dead one has not
 * said to be done with; what else it must know it finds in the checkpoints.
 *
 * One thread, the forwarder, does all this and owns the state; [[put]], [[request]] and [[stop]] may
 * be called from any thread.
 *
 * @param onStopQuery called with a run and the reason why the coordinator wants it stopped
 * @param onCompleted called with a run and the id of a checkpoint of it that is complete
 * @param gates where queries are held for it
 * @param queuedBytes is lowered by the size of every event that has left the queue
 */
private[coordinator] final class CoordinatorSupervisor(
    conf: SparkConf,
    storage: StorageService,
    onStopQuery: (UUID, String) => Unit,
    onCompleted: (UUID, Long) => Unit,
    gates: BatchGates,
    queuedBytes: AtomicLong) extends Logging {
  import CoordinatorSupervisor._

  private val queue = new LinkedBlockingQueue[Event]
  private val drained = new CountDownLatch(1)
  private val stopping = new CountDownLatch(1)
  @volatile private var forwarder: Option[Thread] = None
  @volatile private var process: Option[CoordinatorProcess] = None

  private val runs = mutable.LinkedHashMap.empty[UUID, Run]
  /** By id; the only part of the state that other threads see, and add to. */
  private val requests = new ConcurrentHashMap[Long, PendingRequest]
  private var quickDeaths = 0
  /** Before this time (of `System.nanoTime`) no process follows one that has died quickly. */
  private var retryAt = Option.empty[Long]
  private var shuttingDown = false
  private lazy val storageThreads =
    ThreadUtils.newDaemonFixedThreadPool(StorageThreads, "sparkckpt-coordinator-storage")

  /** Copies may take long, and must not hold up the coordinators of other queries. */
  private lazy val copyThreads =
    ThreadUtils.newDaemonCachedThreadPool("sparkckpt-coordinator-copy", StorageThreads)

  def processId: Option[Long] = process.filter(_.isAlive).map(_.pid)

  def put(event: Event): Unit = {
    queue.add(event)
    event match {
      case _: Started | _: Requested if forwarder.isEmpty => startForwarder()
      case _ =>
    }
  }

  /** What the coordinator has done about the request; waits for it as long as it takes. */
  def request(request: StartRequest): String = {
    val pending = new PendingRequest(request)
    requests.put(pending.id, pending)
    put(Requested(pending))
    if (stopping.getCount == 0) pending.failed(ApplicationEnds)
    pending.await()
  }

  private def startForwarder(): Unit = synchronized {
    if (forwarder.isEmpty && stopping.getCount > 0) {
      val thread = new Thread(() => forward(), "sparkckpt-coordinator-forwarder")
      thread.setDaemon(true)
      thread.start()
      forwarder = Some(thread)
    }
  }

  private def forward(): Unit = try {
    while (stopping.getCount > 0) handleOrReport(nextEvent())
  } catch {
    case _: InterruptedException =>
  }

  /** While a process is waited to be started, events go on to be handled. */
  private def nextEvent(): Event = retryAt.filter(_ => process.isEmpty && isNeeded && !shuttingDown) match {
    case Some(at) =>
      val patience = at - System.nanoTime()
      if (patience <= 0) Retry
      else Option(queue.poll(patience, TimeUnit.NANOSECONDS)).getOrElse(Retry)
    case None => queue.take()
  }

  /** An event that cannot be handled must not take those behind it along: a query may wait for one. */
  private def handleOrReport(event: Event): Unit = try handle(event) catch {
    case NonFatal(e) =>
      logError(s"The checkpoint coordinator was not told of an event ($event)", e)
      event match {
        case Requested(pending) => fail(pending, e.toString)
        case _ =>
      }
  }

  private def handle(event: Event): Unit = event match {
    case Started(run) =>
      storage.register(run.checkpointLocation, run.hadoopConf)
      runs(run.runId) = Run(run, None)
      process match {
        case Some(child) => announce(child, run.runId)
        case None => launch()
      }
    case Ended(runId, error) => runs.get(runId).foreach { run =>
      val frame = endFrame(runId, error)
      runs(runId) = run.copy(ended = Some(frame))
      tell(frame)
    }
    case Requested(pending) =>
      storage.register(pending.request.run.checkpointLocation, pending.request.run.hadoopConf)
      pending.request.source.foreach(source =>
        storage.registerIfAbsent(source.toString, pending.request.run.hadoopConf))
      process match {
        case Some(child) => sendRequest(child, pending)
        case None => launch()
      }
    case Answered(frame) =>
      // It works: if it is killed now, that is not its fault.
      quickDeaths = 0
      Option(requests.remove(frame.number("id"))).foreach { pending =>
        release(pending.request)
        pending.answered(frame)
      }
    case Closed(runId) => runs.remove(runId).foreach { run => close(run.query) }
    case Passing(frame, size) =>
      queuedBytes.addAndGet(-size)
      process.foreach(send(_, frame))
    case Exited(child) => if (process.contains(child)) replace(child)
    case Retry => launch()
    case Shutdown =>
      shuttingDown = true
      process match {
        case Some(child) => send(child, Frame("shutdown", "timeoutMs" -> JInt(DrainMillis)))
        case None => drained.countDown()
      }
  }

  private def close(query: QueryRun): Unit = release(query.checkpointLocation)

  private def release(request: StartRequest): Unit =
    (request.source.map(_.toString) ++ Some(request.run.checkpointLocation)).foreach(release)

  private def release(location: String): Unit = {
    val used = runs.values.exists(_.query.checkpointLocation == location) ||
      requests.values.asScala.map(_.request).exists { request =>
        request.run.checkpointLocation == location || request.source.exists(_.toString == location)
      }
    if (!used) storage.unregister(location)
  }

  private def fail(pending: PendingRequest, why: String): Unit = {
    requests.remove(pending.id)
    release(pending.request)
    pending.failed(why)
  }

  // The process

  /** What `runs` says already: a process that is launched now learns it from there. */
  private def tell(frame: Frame): Unit = process match {
    case Some(child) => send(child, frame)
    case None => launch()
  }

  /** A frame that the process does not take is not missed: its successor is told of all runs. */
  private def send(child: CoordinatorProcess, frame: Frame): Unit = try child.write(frame) catch {
    case e: IOException =>
      logDebug(s"The checkpoint coordinator (pid ${child.pid}) does not listen any more", e)
  }

  private def announce(child: CoordinatorProcess, runId: UUID): Unit = {
    val run = runs(runId)
    runs(runId) = run.copy(isKnown = true)
    send(child, run.query.startFrame(isResumed = run.isKnown))
    run.ended.foreach(send(child, _))
  }

  private def sendRequest(child: CoordinatorProcess, pending: PendingRequest): Unit =
    if (pending.isNewTo(child)) send(child, pending.frame)

  private def launch(): Unit = if (process.isEmpty && isNeeded && mayLaunch) {
    retryAt = None
    try {
      val child = new CoordinatorProcess(
        CoordinatorPython.command(conf), received, child => queue.add(Exited(child)))
      process = Some(child)
      logInfo(s"The checkpoint coordinator runs as pid ${child.pid}: " +
        CoordinatorPython.describe(conf))
      runs.keys.toSeq.foreach(announce(child, _))
      requests.values.asScala.foreach(sendRequest(child, _))
    } catch {
      case NonFatal(e) =>
        logWarning(s"The checkpoint coordinator cannot be started: ${e.getMessage}")
        requests.values.asScala.foreach(fail(_, CannotStart + e.getMessage))
        diedQuickly()
    }
  }

  private def mayLaunch: Boolean =
    !shuttingDown && stopping.getCount > 0 && retryAt.forall(_ - System.nanoTime() <= 0)

  private def isNeeded: Boolean = runs.nonEmpty || !requests.isEmpty

  private def replace(child: CoordinatorProcess): Unit = {
    process = None
    requests.values.asScala.foreach { pending =>
      if (shuttingDown) fail(pending, ApplicationEnds)
      else if (!pending.mayBeSentAgain) fail(pending, s"$Died ${child.exitCode}. $SetPython")
    }
    if (shuttingDown) drained.countDown()
    else if (isNeeded) {
      logWarning(s"The checkpoint coordinator (pid ${child.pid}) ended with code " +
        s"${child.exitCode} after ${child.aliveSeconds} s; it is restarted. The streams go on.")
      if (child.aliveSeconds >= QuickDeathSeconds) quickDeaths = 0
      diedQuickly()
      launch()
    }
  }

  private def diedQuickly(): Unit = {
    quickDeaths += 1
    val delay = math.min(FirstRetryMillis << math.min(quickDeaths - 1, 20), LastRetryMillis)
    retryAt = Some(System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(delay))
    if (quickDeaths == QuickDeathsToReport) {
      val command = CoordinatorPython.describe(conf)
      logError(SparkckptErrors.coordinatorKeepsDying(command, quickDeaths).getMessage)
    }
  }

  private def received(child: CoordinatorProcess, frame: Frame): Unit = frame.kind match {
    case "storage" =>
      val threads = if (storage.isLong(frame)) copyThreads else storageThreads
      threads.execute(() => send(child, storage.serve(frame)))
    case CheckpointEvent.Completed | CheckpointEvent.Aborted =>
      val event = new CheckpointEvent(frame)
      if (event.isCompleted) {
        event.checkpointId.foreach(onCompleted(UUID.fromString(event.runId), _))
      }
      CheckpointListeners.post(event)
    case "stop_query" => onStopQuery(runIdIn(frame), frame.text("message"))
    case "hold_query" =>
      val runId = runIdIn(frame)
      gates.hold(runId)
      storageThreads.execute(() => if (gates.isHeld(runId)) tellOf("query_held", child, runId))
    case "release_query" => gates.release(runIdIn(frame))
    case "finish_query" =>
      val runId = runIdIn(frame)
      storageThreads.execute(() => if (!gates.stop(runId)) tellOf("query_not_held", child, runId))
    case "answer" => queue.add(Answered(frame))
    case "closed" => queue.add(Closed(runIdIn(frame)))
    case "drained" => drained.countDown()
    case other => logWarning(s"The checkpoint coordinator sent an unknown frame '$other'")
  }

  private def tellOf(kind: String, child: CoordinatorProcess, runId: UUID): Unit =
    send(child, Frame(kind, "runId" -> JString(runId.toString)))

  /** Lets the coordinator finish what has been committed, for a bounded time, and ends it. */
  def stop(): Unit = synchronized {
    if (forwarder.isEmpty) stopping.countDown()
    forwarder
  }.foreach { thread =>
    queue.add(Shutdown)
    val done = drained.await(DrainMillis, TimeUnit.MILLISECONDS)
    stopping.countDown()
    requests.values.asScala.foreach(_.failed(ApplicationEnds))
    if (done) process.foreach(_.close(CloseSeconds))
    else {
      logWarning(s"The checkpoint coordinator was not done after ${DrainMillis / 1000} s. What is " +
        "missing is made up for when the query is started again.")
      process.foreach(_.kill())
    }
    thread.interrupt()
    storageThreads.shutdownNow()
    copyThreads.shutdownNow()
  }
}

private[coordinator] object CoordinatorSupervisor {
  private val StorageThreads = 8
  private val DrainMillis = 10000L
  private val CloseSeconds = 2L
  private val FirstRetryMillis = 250L
  private val LastRetryMillis = 60000L
  private val QuickDeathSeconds = 10L
  private val QuickDeathsToReport = 5

  private val ApplicationEnds = "the application ends."
  private val SetPython =
    s"Set ${SparkckptConf.CoordinatorPython.key} to a Python that has sparkckpt installed."
  private val CannotStart = s"its process cannot be started. $SetPython The cause: "
  private val Died = "its process has ended twice; the last words of both stand in Spark's log. The " +
    "exit code was"

  sealed trait Event
  final case class Started(run: QueryRun) extends Event
  final case class Ended(runId: UUID, error: Option[String]) extends Event
  /** The coordinator is done with a run that has ended. */
  final case class Closed(runId: UUID) extends Event
  /** A frame whose loss does no harm. */
  final case class Passing(frame: Frame, size: Long = 0) extends Event
  final case class Requested(pending: PendingRequest) extends Event
  final case class Answered(frame: Frame) extends Event
  final case class Exited(child: CoordinatorProcess) extends Event
  /** The time has come for another process. */
  case object Retry extends Event
  case object Shutdown extends Event

  /** @param isKnown whether a process has been told of it */
  private final case class Run(query: QueryRun, ended: Option[Frame], isKnown: Boolean = false)

  private def runIdIn(frame: Frame): UUID = UUID.fromString(frame.text("runId"))

  private def endFrame(runId: UUID, error: Option[String]): Frame =
    Frame("query_ended", Seq("runId" -> JString(runId.toString)) ++
      error.map(e => "error" -> JString(e)): _*)
}
