package org.apache.spark.sql.sparkckpt.format

import java.io.{EOFException, IOException, OutputStream}
import java.nio.charset.StandardCharsets.UTF_8
import java.util.concurrent.ExecutionException

import com.google.common.cache.{Cache, CacheBuilder}
import com.google.common.util.concurrent.UncheckedExecutionException
import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.{FileSystem, FSDataInputStream, FSError, LocalFileSystem, Path}

import org.apache.spark.internal.Logging
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
import org.apache.spark.sql.execution.streaming.state.StateStoreId
import org.apache.spark.sql.sparkckpt.{KeyGroupRange, SparkckptErrors}
import org.apache.spark.sql.types.StructType

/**
 * Where the files of one store lie and how they are named. Everything goes through Hadoop's file
 * systems, so any storage Spark can checkpoint to will do.
 *
 * Files are written in place, which spares storage a rename and costs no safety: their names are new
 * with every attempt, and no one looks at a file before another names it, a state file a handle, a
 * handle Spark's commit log; either names only what was written to its end.
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
  /** The bare local file system: that around it writes a checksum file beside each file. */
  private lazy val fileSystem: FileSystem = directory.getFileSystem(hadoopConf) match {
    case local: LocalFileSystem => local.getRaw
    case other => other
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
    if (StateFileRef.isAbsolute(path)) new Path(path) else new Path(root, path)

  /** Whether the file lies in this very store's directory. */
  def isOwn(ref: StateFileRef): Boolean =
    ref.path.startsWith(s"$relativeDirectory/") && !ref.path.drop(relativeDirectory.length + 1).contains('/')

  def create(path: String): StateOutput = {
    val target = resolve(path)
    StateOutput.named(target) {
      val stream = fileSystem.create(
        target, false, StateStorage.BufferBytes, fileSystem.getDefaultReplication(target),
        fileSystem.getDefaultBlockSize(target), null)
      new StateOutput(target, stream, () => try stream.close() finally fileSystem.delete(target, false))
    }
  }

  /** @param description of the handle, as [[StateHandle.describe]] gives it */
  def writeHandle(handle: StateHandle, description: Array[Byte], inlined: Array[Byte]): Int = {
    val bytes = StateHandle.serialize(handle, description, inlined)
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
    StateHandle.deserialize(readAll(path), path.toString)
  }

  def readManifest(id: String): Manifest = {
    val path = new Path(root.getParent, Manifest.path(id))
    Manifest.cached(path.toString)(readAll(path))
  }

  /**
   * In how many parts Spark's state reader reads the operator as of a batch: one for every directory
   * of a partition, up to the parallelism in the offset log. A rescaled query that has not run yet may
   * have fewer directories than partitions.
   */
  def readParallelism(batch: Long): Int = {
    val path = new Path(root.getParent, s"offsets/$batch")
    val planned = PlannedParallelism.parse(readAll(path), path.toString)
    val found = reader.list(new Path(root, storeId.operatorId.toString)).toSeq
      .filter(_.isDirectory).flatMap(_.getPath.getName.toIntOption).count(p => 0 <= p && p < planned)
    if (found > 0) found else planned
  }

  private def readAll(path: Path): Array[Byte] = {
    val in = openForReading(path)
    try in.readAllBytes() catch {
      case e: IOException => throw SparkckptErrors.unreadableFile(path.toString, e)
    } finally in.close()
  }

  /** @param foreign the file is another checkpoint's, and may lie on another file system */
  private def openForReading(path: Path, foreign: Boolean = false): FSDataInputStream =
    try {
      if (foreign) path.getFileSystem(hadoopConf).open(path) else reader.open(path)
    } catch {
      case e: IOException => throw SparkckptErrors.unreadableFile(path.toString, e)
    }

  def open(
      ref: StateFileRef,
      range: KeyGroupRange,
      keySchema: StructType,
      valueSchema: StructType): StateFileReader = {
    val path = resolve(ref.path)
    val in = openForReading(path, ref.isForeign)
    val counted = ref.range.intersect(range).getOrElse(KeyGroupRange.Empty)
    try new StateFileReader(
      in, path.toString, ref, counted, keySchema, valueSchema, matching) catch {
      case e: Throwable => in.close(); throw e
    }
  }

  /** The checked blob with the operator states of a partition. */
  def readOperatorState(handle: OperatorStateHandle): Array[Byte] = {
    val path = resolve(handle.path)
    val bytes = new Array[Byte](handle.length)
    val in = openForReading(path, StateFileRef.isAbsolute(handle.path))
    try in.readFully(handle.offset, bytes) catch {
      case e: EOFException => throw SparkckptErrors.corruptFile(path.toString, "it is truncated", e)
      case e: IOException => throw SparkckptErrors.unreadableFile(path.toString, e)
    } finally in.close()
    if (OperatorStateBlob.crcOf(bytes) != handle.crc32) {
      throw SparkckptErrors.corruptFile(
        path.toString, "the checksum of the operator state in it does not match")
    }
    bytes
  }

  /** Its items: after a rescale all partitions of an executor ask for the same ones. */
  def readOperatorStateCached(handle: OperatorStateHandle): Seq[OperatorStateItems] = {
    val path = resolve(handle.path).toString
    val blob = StateStorage.operatorStates((path, handle.offset))(readOperatorState(handle))
    val states = OperatorStateBlob.parse(blob, path)
    val counts = states.map(s => (s.name, s.mode, s.items.length))
    if (counts != handle.states.map(s => (s.name, s.mode, s.items))) {
      throw SparkckptErrors.corruptFile(path, s"its operator states are $counts, not what is said of it")
    }
    states
  }

  def delete(path: String): Unit = files.delete(resolve(path))

  /** Whether other stores, or other checkpoints, may refer to the store's files. */
  def isShared: Boolean = {
    val ours = new Path(root.getParent, "_sparkckpt")
    def holds(name: String): Boolean = {
      val directory = new Path(ours, name)
      reader.exists(directory) && reader.list(directory).nonEmpty
    }
    holds("manifests") || holds("pins") || reader.exists(new Path(ours, "restored.json"))
  }

  /** The store's files. Only for cleaning up: a load never lists. */
  def list(): Seq[StateFileName] =
    files.list(directory).toSeq.filter(_.isFile).map(_.getPath.getName)
      .flatMap(name => StateFileName.parse(s"$relativeDirectory/$name"))
}

/**
 * A file being written. Failures name the file: the error of a full local disk is an FSError, which
 * says nothing and which Spark takes for a fatal one.
 */
final class StateOutput(path: Path, stream: OutputStream, discard: () => Unit)
  extends OutputStream with Logging {
  import StateOutput.named

  override def write(b: Int): Unit = named(path)(stream.write(b))
  override def write(bytes: Array[Byte], offset: Int, length: Int): Unit =
    named(path)(stream.write(bytes, offset, length))
  override def close(): Unit = named(path)(stream.close())

  /** Does not throw: what led here is the failure to be told. */
  def cancel(): Unit = try discard() catch {
    case e @ (_: IOException | _: FSError) => logWarning(s"$path was given up and may be left", e)
  }
}

object StateOutput {
  def named[T](path: Path)(body: => T): T = try body catch {
    case e @ (_: IOException | _: FSError) => throw SparkckptErrors.unwritableFile(path.toString, e)
  }
}

/** A file of a store, as its name tells. */
case class StateFileName(path: String, version: Long, id: String, isHandle: Boolean, isMerge: Boolean)

object StateFileName {
  private val Pattern =
    """(\d+)_([0-9a-f-]{36})(?:\.[^/]*)?\.(handle|operator-state|delta\.arrow|merge\.arrow)""".r

  def parse(path: String): Option[StateFileName] = path.split('/').last match {
    case Pattern(version, id, kind) =>
      Some(StateFileName(path, version.toLong, id, kind == "handle", kind == "merge.arrow"))
    case _ => None
  }
}

object StateStorage {
  val DefaultFamily = "default"
  private val BufferBytes = 64 * 1024

  private val CachedOperatorStateBytes = 64L << 20

  /** Files never change; what is kept is given up when memory is short. */
  private val recentOperatorStates: Cache[(String, Long), Array[Byte]] = CacheBuilder.newBuilder()
    .maximumWeight(CachedOperatorStateBytes).concurrencyLevel(1).softValues()
    .weigher[(String, Long), Array[Byte]]((_, bytes) => bytes.length)
    .build[(String, Long), Array[Byte]]()

  private def operatorStates(key: (String, Long))(read: => Array[Byte]): Array[Byte] =
    try recentOperatorStates.get(key, () => read) catch {
      case e @ (_: ExecutionException | _: UncheckedExecutionException) => throw e.getCause
    }

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
