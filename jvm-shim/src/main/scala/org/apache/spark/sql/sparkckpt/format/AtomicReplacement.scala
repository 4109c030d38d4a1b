package org.apache.spark.sql.sparkckpt.format

import java.io.{File, FileOutputStream, IOException, OutputStream}
import java.nio.file.{Files, StandardCopyOption}
import java.util.UUID

import scala.util.Using
import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs._

import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
import org.apache.spark.sql.internal.SQLConf

/**
 * Puts a file in the place of another: whoever looks finds the old content or the new one, whole.
 * Spark's own file managers do not promise that: they replace by Hadoop's rename, which outside of
 * HDFS deletes the old file first, or leaves it and says nothing.
 *
 * A local file is moved over the other. Where a file appears only when it is closed (S3A says so of
 * itself), it is written in place. HDFS renames over a file. A file manager that the user has chosen
 * is trusted to know its storage. On any other the old file is deleted and the new one renamed: one
 * that is interrupted in between leaves the content in a temporary file beside, and no other.
 */
object AtomicReplacement {
  def write(path: Path, conf: Configuration)(fill: OutputStream => Unit): Unit =
    path.getFileSystem(conf) match {
      case local: LocalFileSystem => moveOver(local.pathToFile(path))(fill)
      case fs if fs.hasPathCapability(path, CommonPathCapabilities.ABORTABLE_STREAM) =>
        put(fs, path)(fill)
      case _ if conf.get(SQLConf.STREAMING_CHECKPOINT_FILE_MANAGER_CLASS.parent.key) != null =>
        createWith(CheckpointFileManager.create(path, conf), path)(fill)
      case fs => renameOver(fs, path, conf)(fill)
    }

  private def moveOver(file: File)(fill: OutputStream => Unit): Unit = {
    val temporary = new File(file.getParentFile, temporaryName(file.getName))
    file.getParentFile.mkdirs()
    try {
      Using.resource(new FileOutputStream(temporary)) { out =>
        fill(out)
        out.getFD.sync()
      }
      // Hadoop's checksum of the old content would fail reads of the new one; it may be missing.
      Files.deleteIfExists(new File(file.getParentFile, s".${file.getName}.crc").toPath)
      Files.move(temporary.toPath, file.toPath, StandardCopyOption.ATOMIC_MOVE)
    } finally Files.deleteIfExists(temporary.toPath)
  }

  private def put(fs: FileSystem, path: Path)(fill: OutputStream => Unit): Unit = {
    val out = fs.create(path, true)
    try fill(out) catch {
      case e: Throwable =>
        afterwards(e) {
          out.abort()
          out.close()
        }
        throw e
    }
    out.close()
  }

  private def createWith(files: CheckpointFileManager, path: Path)(fill: OutputStream => Unit): Unit = {
    files.mkdirs(path.getParent)
    val out = files.createAtomic(path, overwriteIfPossible = true)
    try {
      fill(out)
      out.close()
    } catch {
      case e: Throwable => out.cancel(); throw e
    }
  }

  private def renameOver(fs: FileSystem, path: Path, conf: Configuration)(
      fill: OutputStream => Unit): Unit = {
    val temporary = new Path(path.getParent, temporaryName(path.getName))
    try Using.resource(fs.create(temporary, false))(fill) catch {
      case e: Throwable =>
        afterwards(e)(fs.delete(temporary, false))
        throw e
    }
    try rename(fs, temporary, path, conf) catch {
      case e: IOException =>
        if (!fs.exists(path)) {
          throw new IOException(s"$path was not replaced; its new content is in $temporary", e)
        }
        afterwards(e)(fs.delete(temporary, false))
        throw e
    }
  }

  private def rename(fs: FileSystem, from: Path, to: Path, conf: Configuration): Unit =
    contextOf(to, conf) match {
      case Some(context) => context.rename(from, to, Options.Rename.OVERWRITE)
      case None =>
        fs.delete(to, false)
        if (!fs.rename(from, to)) throw new IOException(s"$from could not be renamed to $to")
    }

  /** Not every file system has one, but only there can a rename be asked to overwrite. */
  private def contextOf(path: Path, conf: Configuration): Option[FileContext] =
    try Some(FileContext.getFileContext(path.toUri, conf)) catch {
      case _: UnsupportedFileSystemException => None
    }

  /** Cleans up after a failure, which stays the one to be told. */
  private def afterwards(failure: Throwable)(cleanUp: => Any): Unit = try cleanUp catch {
    case NonFatal(e) => failure.addSuppressed(e)
  }

  /** As Spark's, so that listings leave it out and a lease can be told by it. */
  private def temporaryName(name: String): String = s".$name.${UUID.randomUUID()}.tmp"
}
