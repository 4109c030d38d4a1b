package org.apache.spark.sql.sparkckpt

import java.io.{ByteArrayOutputStream, OutputStream}
import java.net.URI
import java.nio.file.Files

import org.apache.hadoop.fs._
import org.apache.hadoop.fs.Abortable.AbortableResult
import org.apache.hadoop.util.Progressable

/** The local disk behind a scheme of its own, which Hadoop knows no file context for. */
abstract class TestFileSystem(scheme: String) extends RawLocalFileSystem {
  override def getUri: URI = URI.create(s"$scheme:///")
}

/** Renames over no file, and says no more of it than false, as many file systems do. */
class UnreplacingFileSystem extends TestFileSystem("unreplacing") {
  override def rename(from: Path, to: Path): Boolean = !exists(to) && super.rename(from, to)
}

/** Fails with what no one should catch, and everyone who is asked must answer for. */
class FailingFileSystem extends TestFileSystem("failing") {
  override def getFileStatus(path: Path): FileStatus = path.getName match {
    case "NoClassDefFoundError" => throw new NoClassDefFoundError("a/Class")
    case "OutOfMemoryError" => throw new OutOfMemoryError("Java heap space")
    case "InterruptedException" => throw new InterruptedException
    case _ => getFileStatus(path)
  }
}

/** Cannot rename, but a file appears when it is closed, as in an object store. */
class PuttingFileSystem extends TestFileSystem("putting") {
  override def rename(from: Path, to: Path): Boolean =
    throw new UnsupportedOperationException("rename")

  override def hasPathCapability(path: Path, capability: String): Boolean =
    capability == CommonPathCapabilities.ABORTABLE_STREAM || super.hasPathCapability(path, capability)

  override def create(
      path: Path,
      overwrite: Boolean,
      bufferSize: Int,
      replication: Short,
      blockSize: Long,
      progress: Progressable): FSDataOutputStream = new FSDataOutputStream(new Upload(path), null)

  private final class Upload(path: Path) extends OutputStream with Abortable {
    private val bytes = new ByteArrayOutputStream
    private var isOpen = true

    override def write(b: Int): Unit = bytes.write(b)

    override def close(): Unit = if (isOpen) {
      isOpen = false
      Files.write(pathToFile(path).toPath, bytes.toByteArray)
    }

    override def abort(): AbortableResult = {
      isOpen = false
      new AbortableResult {
        override def alreadyClosed(): Boolean = false
        override def anyCleanupException(): java.io.IOException = null
      }
    }
  }
}
