package org.apache.spark.sql.sparkckpt.coordinator

import java.io.{FileNotFoundException, IOException, OutputStream}
import java.net.URI
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{FileAlreadyExistsException => NioFileAlreadyExistsException, NoSuchFileException}
import java.util.concurrent.ConcurrentHashMap

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs._
import org.json4s._
import org.json4s.jackson.JsonMethods.{compact, parse, render}

import org.apache.spark.internal.Logging
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
import org.apache.spark.sql.sparkckpt.format.AtomicReplacement

/**
 * Serves the coordinator's storage requests with the file systems, credentials and settings that
 * Spark writes the checkpoint with, so that whatever Spark can checkpoint to, the coordinator can
 * too. Listings are relative to the directory asked for.
 */
private[coordinator] final class StorageService(default: Configuration) extends Logging {
  private val configurations = new ConcurrentHashMap[String, Configuration]
  private val managers = new ConcurrentHashMap[(Configuration, URI), CheckpointFileManager]

  /** The conf of the query that owns a checkpoint: sessions may differ in their credentials. */
  def register(location: String, conf: Configuration): Unit = configurations.put(location, conf)

  /** For what another query may own. */
  def registerIfAbsent(location: String, conf: Configuration): Unit =
    configurations.putIfAbsent(location, conf)

  def unregister(location: String): Unit = Option(configurations.remove(location)).foreach { conf =>
    managers.keySet.removeIf(_._1 eq conf)
  }

  /**
   * The reply to a request. Whatever fails is a reply too, be it a class that is missing or memory
   * that is short: whoever asked waits for one as long as this process lives.
   */
  def serve(request: Frame): Frame = {
    val id = "id" -> JInt(request.number("id"))
    try Frame("storage_reply", id).copy(payload = answer(request)) catch {
      case e: Throwable => Frame("storage_reply", id, "error" -> JObject(
        "kind" -> JString(kindOf(e)), "message" -> JString(messageOf(e))))
    }
  }

  /** The message of an error of the JVM says little without its name. */
  private def messageOf(error: Throwable): String = error match {
    case e @ (_: Exception | _: FSError) if e.getMessage != null => e.getMessage
    case e =>
      logWarning("A request of the checkpoint coordinator failed", e)
      e.toString
  }

  def isLong(request: Frame): Boolean = request.text("op") == "copy"

  private def answer(request: Frame): Array[Byte] = {
    val path = new Path(request.text("path"))
    request.text("op") match {
      case "read" => read(path, request.optionalNumber("start"), request.optionalNumber("end"))
      case "create" =>
        if (request.flag("overwrite")) replace(path)(_.write(request.payload))
        else create(path, request.payload)
        Frame.NoPayload
      case "copy" => copy(path, new Path(request.text("to"))); Frame.NoPayload
      case "info" => json(describe(fileSystem(path).getFileStatus(path), path.getName))
      case "list" => json(JArray(fileSystem(path).listStatus(path).toList
        .map(status => describe(status, status.getPath.getName))))
      case "find" => json(JArray(find(path)))
      case "delete" => json(delete(request))
      case other => throw new IOException(s"The storage operation '$other' is unknown")
    }
  }

  private def read(path: Path, start: Option[Long], end: Option[Long]): Array[Byte] = {
    val in = manager(path).open(path)
    try {
      start.filter(_ > 0).foreach(in.seek)
      end.map(e => in.readNBytes((e - start.getOrElse(0L)).toInt)).getOrElse(in.readAllBytes())
    } finally in.close()
  }

  private def copy(from: Path, to: Path): Unit = {
    val in = manager(from).open(from)
    try replace(to)(out => in.transferTo(out)) finally in.close()
  }

  private def replace(path: Path)(fill: OutputStream => Unit): Unit =
    AtomicReplacement.write(path, configurationOf(path))(fill)

  private def create(path: Path, data: Array[Byte]): Unit = {
    val files = manager(path)
    // Spark's file manager notices an existing file only at the end, and leaves its temporary one.
    if (files.exists(path)) throw new FileAlreadyExistsException(path.toString)
    val out = try files.createAtomic(path, overwriteIfPossible = false) catch {
      case _: FileNotFoundException =>
        files.mkdirs(path.getParent)
        files.createAtomic(path, overwriteIfPossible = false)
    }
    try {
      out.write(data)
      out.close()
    } catch {
      case e: Throwable => out.cancel(); throw e
    }
  }

  private def find(directory: Path): List[JValue] = {
    val fs = fileSystem(directory)
    val root = fs.makeQualified(directory).toUri.getPath.stripSuffix("/") + "/"
    val files = fs.listFiles(directory, true)
    Iterator.continually(files).takeWhile(_.hasNext).map(_.next()).map { status =>
      describe(status, status.getPath.toUri.getPath.stripPrefix(root))
    }.toList
  }

  /** Deletes the paths in the payload, and says which failed; one that is not there did not. */
  private def delete(request: Frame): JValue = {
    val paths = parse(new String(request.payload, UTF_8)).asInstanceOf[JArray].arr
    JObject(paths.collect { case JString(path) => path }.flatMap { path =>
      try {
        val target = new Path(path)
        fileSystem(target).delete(target, request.flag("recursive"))
        None
      } catch {
        case _: FileNotFoundException => None
        case NonFatal(e) => Some(path -> JString(e.toString))
      }
    })
  }

  private def describe(status: FileStatus, name: String): JObject = JObject(
    "name" -> JString(name),
    "type" -> JString(if (status.isDirectory) "directory" else "file"),
    "size" -> JInt(status.getLen),
    "modifiedMs" -> JInt(status.getModificationTime))

  private def json(value: JValue): Array[Byte] = compact(render(value)).getBytes(UTF_8)

  private def fileSystem(path: Path): FileSystem = path.getFileSystem(configurationOf(path))

  private def manager(path: Path): CheckpointFileManager = {
    val conf = configurationOf(path)
    val uri = path.toUri
    managers.computeIfAbsent((conf, new URI(uri.getScheme, uri.getAuthority, "/", null, null)),
      _ => CheckpointFileManager.create(path, conf))
  }

  private def configurationOf(path: Path): Configuration = {
    val text = path.toString
    configurations.asScala.filter { case (location, _) => text.startsWith(location) }
      .maxByOption(_._1.length).map(_._2).getOrElse(default)
  }

  private def kindOf(error: Throwable): String = error match {
    case _: FileNotFoundException | _: NoSuchFileException => "not_found"
    case _: FileAlreadyExistsException | _: NioFileAlreadyExistsException => "exists"
    case _ => "io"
  }
}
