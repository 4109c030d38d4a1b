package org.apache.spark.sql.sparkckpt.coordinator

import java.util.concurrent.{CompletableFuture, ExecutionException}
import java.util.concurrent.atomic.AtomicLong

import org.apache.hadoop.fs.Path
import org.json4s.{JBool, JInt, JObject, JString}

import org.apache.spark.sql.sparkckpt.SparkckptErrors

/**
 * What the coordinator has to do to a checkpoint before a query starts on it: restore it from
 * another place, or rescale it.
 *
 * @param source where to restore from; a rescaling has none
 * @param sourceIsIdle whether no query of this application runs on the source; the coordinator may
 *                     not have heard yet that one has ended
 * @param parallelism the number of partitions that the query's session asks for, if that counts
 */
final case class StartRequest(
    kind: String,
    run: QueryRun,
    source: Option[Path],
    sourceIsIdle: Boolean,
    parallelism: Option[Int]) {

  def frame(id: Long): Frame = Frame(kind, Seq(
    "id" -> JInt(id),
    "runId" -> JString(run.runId.toString),
    "checkpointLocation" -> JString(run.checkpointLocation),
    "conf" -> JObject(run.options.toList.sorted.map { case (k, v) => k -> JString(v) })) ++
    source.map(path => "source" -> JString(path.toString)) ++
    source.map(_ => "sourceIsIdle" -> JBool(sourceIsIdle)) ++
    parallelism.map(n => "parallelism" -> JInt(n)): _*)

  override def toString: String =
    source.map(from => s"restore ${run.checkpointLocation} from $from")
      .getOrElse(s"rescale ${run.checkpointLocation}")
}

object StartRequest {
  def restore(
      run: QueryRun, source: Path, sourceIsIdle: Boolean, parallelism: Option[Int]): StartRequest =
    StartRequest("restore", run, Some(source), sourceIsIdle, parallelism)

  def rescale(run: QueryRun, parallelism: Int): StartRequest =
    StartRequest("rescale", run, None, sourceIsIdle = false, Some(parallelism))
}

/**
 * A request on its way. If the process that has it dies, its successor gets it, once: what a killed
 * one has begun can be gone on with, but a request that kills processes must end.
 */
private[coordinator] final class PendingRequest(val request: StartRequest) {
  import PendingRequest._

  val id: Long = Ids.incrementAndGet()
  private val reply = new CompletableFuture[Frame]
  private var processes = Set.empty[Long]
  @volatile private var abandoned = false

  def frame: Frame = request.frame(id)

  def isNewTo(process: CoordinatorProcess): Boolean = {
    val known = processes.contains(process.pid)
    processes += process.pid
    !known
  }

  def mayBeSentAgain: Boolean = processes.size < MaxProcesses && !abandoned

  def answered(frame: Frame): Unit = reply.complete(frame)
  def failed(why: String): Unit =
    reply.completeExceptionally(SparkckptErrors.queryNotPrepared(request.toString, why))

  /** What the coordinator has done, in words, once it has. Who is interrupted asks no more. */
  def await(): String = {
    val frame = try reply.get() catch {
      case e: ExecutionException => throw e.getCause
      case e: InterruptedException =>
        abandoned = true
        throw e
    }
    frame.optionalText("error").foreach { why =>
      throw SparkckptErrors.queryNotPrepared(request.toString, why)
    }
    frame.text("message")
  }
}

private[coordinator] object PendingRequest {
  private val MaxProcesses = 2
  private val Ids = new AtomicLong
}
