package org.apache.spark.sql.sparkckpt.coordinator

import java.io.{BufferedInputStream, BufferedOutputStream, IOException}
import java.nio.charset.StandardCharsets.UTF_8
import java.util.concurrent.TimeUnit

import scala.io.Source
import scala.util.control.NonFatal

import org.apache.spark.internal.Logging

/**
 * One run of the coordinator's process. It ends by itself when its standard input does: also when
 * this JVM is killed. What it says on standard error goes into Spark's log.
 *
 * @param onFrame called for every frame, on one thread
 * @param onExit called once, after the last frame
 */
private[coordinator] final class CoordinatorProcess(
    command: ProcessBuilder,
    onFrame: (CoordinatorProcess, Frame) => Unit,
    onExit: CoordinatorProcess => Unit) extends Logging {

  private val process = command.start()
  private val out = new BufferedOutputStream(process.getOutputStream, 1 << 16)
  private val startedNs = System.nanoTime()

  daemon("sparkckpt-coordinator-log")(readLog())
  daemon("sparkckpt-coordinator-frames")(readFrames())

  def pid: Long = process.pid()
  def isAlive: Boolean = process.isAlive
  def aliveSeconds: Long = TimeUnit.NANOSECONDS.toSeconds(System.nanoTime() - startedNs)

  /** Blocks while the process does not read: only threads that serve it may call this. */
  def write(frame: Frame): Unit = out.synchronized {
    Frame.write(out, frame)
    out.flush()
  }

  def close(graceSeconds: Long): Unit = {
    // Not under the lock of a writer, who may be stuck in a full pipe.
    try process.getOutputStream.close() catch { case _: IOException => }
    if (!process.waitFor(graceSeconds, TimeUnit.SECONDS)) kill()
  }

  def kill(): Unit = process.destroyForcibly()

  private def readFrames(): Unit = try {
    val in = new BufferedInputStream(process.getInputStream, 1 << 16)
    Iterator.continually(Frame.read(in)).takeWhile(_.isDefined).flatten
      .foreach(onFrame(this, _))
  } catch {
    case NonFatal(e) if process.isAlive =>
      logWarning(s"Reading from the checkpoint coordinator (pid $pid) failed; it is restarted", e)
    case NonFatal(e) => logDebug("The pipe from the checkpoint coordinator is closed", e)
  } finally {
    kill()
    process.waitFor()
    onExit(this)
  }

  def exitCode: Int = process.exitValue()

  /** Python's levels lead the lines; what has none is a stack trace or an interpreter's last words. */
  private def readLog(): Unit = try {
    Source.fromInputStream(process.getErrorStream, UTF_8.name).getLines().foreach { line =>
      line.split(" ", 2) match {
        case Array("DEBUG", text) => logDebug(text)
        case Array("INFO", text) => logInfo(text)
        case Array("ERROR" | "CRITICAL", text) => logError(text)
        case Array("WARNING", text) => logWarning(text)
        case _ => logWarning(line)
      }
    }
  } catch {
    case NonFatal(e) => logDebug("The log of the checkpoint coordinator is closed", e)
  }

  private def daemon(name: String)(body: => Unit): Unit = {
    val thread = new Thread(() => body, name)
    thread.setDaemon(true)
    thread.start()
  }
}
