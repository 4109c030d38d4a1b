package org.apache.spark.sql.sparkckpt.planner

import java.nio.charset.StandardCharsets.UTF_8

import scala.util.Using
import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileAlreadyExistsException, Path}
import org.json4s.{DefaultFormats, Formats}
import org.json4s.jackson.JsonMethods.parse
import org.json4s.jackson.Serialization

import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
import org.apache.spark.sql.sparkckpt.{SparkckptErrors, SparkckptException}

/**
 * `<checkpointLocation>/_sparkckpt/backend.json`: the number of key groups of a checkpoint. Every
 * state file of the checkpoint is cut by it, so it is written once, by the first run, and never
 * changed; a lost file is written again, and the providers compare it with the handles they load.
 */
case class BackendFile(formatVersion: Int, maxParallelism: Int)

object BackendFile {
  val FormatVersion: Int = 1
  private implicit val formats: Formats = DefaultFormats

  def pathIn(checkpoint: Path): Path = new Path(new Path(checkpoint, "_sparkckpt"), "backend.json")

  /** What the checkpoint is pinned to: what the file says; `maxParallelism` if there is none. */
  def pin(checkpoint: Path, maxParallelism: Int, hadoopConf: Configuration): BackendFile = {
    val path = pathIn(checkpoint)
    val files = CheckpointFileManager.create(path.getParent, hadoopConf)
    if (files.exists(path)) read(files, path)
    else {
      val backend = BackendFile(FormatVersion, maxParallelism)
      try {
        create(files, path, backend)
        backend
      } catch {
        case _: FileAlreadyExistsException => read(files, path)
      }
    }
  }

  private def create(files: CheckpointFileManager, path: Path, backend: BackendFile): Unit = {
    files.mkdirs(path.getParent)
    val out = files.createAtomic(path, overwriteIfPossible = false)
    try {
      out.write(Serialization.write(backend).getBytes(UTF_8))
      out.close()
    } catch {
      case NonFatal(e) =>
        out.cancel()
        throw e
    }
  }

  private def read(files: CheckpointFileManager, path: Path): BackendFile =
    try {
      val text = Using.resource(files.open(path))(in => new String(in.readAllBytes(), UTF_8))
      val json = parse(text)
      val formatVersion = (json \ "formatVersion").extract[Int]
      if (formatVersion > FormatVersion) {
        throw SparkckptErrors.newerFormat(
          "backend file", path.toString, formatVersion, FormatVersion)
      }
      BackendFile(formatVersion, (json \ "maxParallelism").extract[Int])
    } catch {
      case e: SparkckptException => throw e
      case NonFatal(e) => throw SparkckptErrors.unreadableBackendFile(path.toString, e)
    }
}
