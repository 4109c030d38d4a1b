package org.apache.spark.sql.sparkckpt.format

import java.io.{IOException, OutputStream}
import java.nio.charset.StandardCharsets.UTF_8

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FSDataInputStream, FSError, Path}

import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager.CancellableFSDataOutputStream
import org.apache.spark.sql.execution.streaming.state.StateStoreId
import org.apache.spark.sql.sparkckpt.{KeyGroupRange, SparkckptErrors}
import org.apache.spark.sql.types.StructType

/**
 * Where the files of one store lie and how they are named. Everything goes through Spark's
 * CheckpointFileManager, so any storage Spark can checkpoint to will do, and every file appears whole
 * or not at all.
 *
 * @param matching how fields of older files are matched with those the store asks for
 */
final class StateStorage(
    storeId: StateStoreId, hadoopConf: Configuration, matching: FieldMatching.Value) {
  private val root = new Path(storeId.checkpointRootLocation)
  val directory: Path = storeId.storeCheckpointLocation()
  private val relativeDirectory = {
    val prefix = s"${storeId.operatorId}/${storeId.partitionId}"
    if (storeId.storeName == StateStoreId.DEFAULT_STORE_NAME) prefix
    else s"$prefix/${storeId.storeName}"
  }
  private lazy val files = {
    val manager = CheckpointFileManager.create(directory, hadoopConf)
    if (!manager.exists(directory)) manager.mkdirs(directory)
    manager
  }
  /** For reads: must not create the directory of a checkpoint that is only looked at. */
  private lazy val reader = CheckpointFileManager.create(root, hadoopConf)

  def handlePath(version: Long, id: String): String =
    s"$relativeDirectory/${version}_$id.handle"

  def deltaPath(version: Long, id: String, family: String): String =
    s"$relativeDirectory/${version}_$id${familySuffix(family)}.delta.arrow"

  def mergePath(version: Long, id: String, family: String): String =
    s"$relativeDirectory/${version}_$id${familySuffix(family)}.merge.arrow"

  /** The default family has no suffix; any other name is escaped so that it can be read back. */
  private def familySuffix(family: String): String =
    if (family == StateStorage.DefaultFamily) "" else "." + StateStorage.escape(family)

  def resolve(path: String): Path =
    if (path.startsWith("/") || path.contains("://")) new Path(path) else new Path(root, path)

  def create(path: String): StateOutput = {
    val target = resolve(path)
    new StateOutput(target, StateOutput.named(target) {
      files.createAtomic(target, overwriteIfPossible = false)
    })
  }

  def writeHandle(handle: StateHandle, inlined: Array[Byte]): Int = {
    val bytes = StateHandle.serialize(handle, inlined)
    val out = create(handlePath(handle.version, handle.id))
    try {
      out.write(bytes)
      out.close()
    } catch {
      case e: Throwable => out.cancel(); throw e
    }
    bytes.length
  }

  def readHandle(version: Long, id: String): StateHandle = {
    val path = resolve(handlePath(version, id))
    val bytes = try {
      val in = reader.open(path)
      try in.readAllBytes() finally in.close()
    } catch {
      case e: IOException => throw SparkckptErrors.unreadableFile(path.toString, e)
    }
    StateHandle.deserialize(bytes, path.toString)
  }

  def open(
      ref: StateFileRef,
      range: KeyGroupRange,
      keySchema: StructType,
      valueSchema: StructType): StateFileReader = {
    val path = resolve(ref.path)
    val in: FSDataInputStream = try reader.open(path) catch {
      case e: IOException => throw SparkckptErrors.unreadableFile(path.toString, e)
    }
    try new StateFileReader(
      in, path.toString, ref, range, keySchema, valueSchema, matching) catch {
      case e: Throwable => in.close(); throw e
    }
  }

  def delete(path: String): Unit = files.delete(resolve(path))

  /** The store's files. Only for cleaning up: a load never lists. */
  def list(): Seq[StateFileName] =
    files.list(directory).toSeq.filter(_.isFile).map(_.getPath.getName)
      .flatMap(name => StateFileName.parse(s"$relativeDirectory/$name"))
}

/**
 * A file that appears whole on [[close]] or, cancelled, not at all. Failures name the file: the error
 * of a full local disk is an FSError, which says nothing and which Spark takes for a fatal one.
 */
final class StateOutput(path: Path, stream: CancellableFSDataOutputStream) extends OutputStream {
  import StateOutput.named

  override def write(b: Int): Unit = named(path)(stream.write(b))
  override def write(bytes: Array[Byte], offset: Int, length: Int): Unit =
    named(path)(stream.write(bytes, offset, length))
  override def close(): Unit = named(path)(stream.close())
  def cancel(): Unit = stream.cancel()
}

object StateOutput {
  def named[T](path: Path)(body: => T): T = try body catch {
    case e @ (_: IOException | _: FSError) => throw SparkckptErrors.unwritableFile(path.toString, e)
  }
}

/** A file of a store, as its name tells. */
case class StateFileName(path: String, version: Long, id: String, isHandle: Boolean, isMerge: Boolean)

object StateFileName {
  private val Pattern = """(\d+)_([0-9a-f-]{36})(?:\.[^/]*)?\.(handle|delta\.arrow|merge\.arrow)""".r

  def parse(path: String): Option[StateFileName] = path.split('/').last match {
    case Pattern(version, id, kind) =>
      Some(StateFileName(path, version.toLong, id, kind == "handle", kind == "merge.arrow"))
    case _ => None
  }
}

object StateStorage {
  val DefaultFamily = "default"

  private def isPlain(b: Byte): Boolean = {
    val c = b.toChar
    c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-'
  }

  /** Percent-encodes the UTF-8 bytes of all but letters, digits, `_` and `-`. */
  def escape(family: String): String =
    family.getBytes(UTF_8).map(b => if (isPlain(b)) b.toChar.toString else f"%%${b & 0xff}%02X").mkString

  /** Writes nothing to storage until more than `limit` bytes have come: then all of it. */
  final class SpillingOutput(limit: Long, open: () => StateOutput)
    extends OutputStream {
    private var buffer = new java.io.ByteArrayOutputStream()
    private var stream: StateOutput = _

    override def write(b: Int): Unit = write(Array(b.toByte), 0, 1)

    override def write(bytes: Array[Byte], offset: Int, length: Int): Unit = {
      if (stream == null && buffer.size + length > limit) {
        stream = open()
        buffer.writeTo(stream)
        buffer = null
      }
      if (stream != null) stream.write(bytes, offset, length) else buffer.write(bytes, offset, length)
    }

    /** The bytes, if they stayed below the limit. */
    def buffered: Option[Array[Byte]] = Option(buffer).map(_.toByteArray)

    override def close(): Unit = if (stream != null) stream.close()
    def cancel(): Unit = if (stream != null) stream.cancel()
  }
}
