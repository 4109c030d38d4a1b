package org.apache.spark.sql.sparkckpt.format

import java.io.{ByteArrayOutputStream, DataOutputStream}
import java.nio.{ByteBuffer, ByteOrder}
import java.nio.charset.StandardCharsets
import java.util.zip.CRC32

import scala.util.control.NonFatal

import com.github.luben.zstd.Zstd
import org.json4s.{DefaultFormats, Formats}
import org.json4s.jackson.Serialization

import org.apache.spark.sql.sparkckpt.{KeyGroupRange, SparkckptErrors}

/** The files that make up one column family, in the order in which they apply. */
case class FamilyFiles(family: String, multiValued: Boolean, files: Seq[StateFileRef])

/**
 * One version of one store: the commit point of a task, and all that a load needs. It names every
 * file the version consists of, so neither a load nor a coordinator ever lists a directory.
 *
 * @param baseId the id this version was computed from; with it the handles form a chain that leaves
 *               out whatever failed attempts left behind
 * @param changeDigest order-independent digest of the commit's own changes: attempts at the same
 *               batch that differ here betray a nondeterministic query
 */
case class StateHandle(
    operatorId: Long,
    operatorName: String,
    storeName: String,
    partition: Int,
    version: Long,
    id: String,
    baseId: Option[String],
    keyed: Boolean,
    parallelism: Int,
    maxParallelism: Int,
    firstKeyGroup: Int,
    lastKeyGroup: Int,
    changedRows: Long,
    changeDigest: String,
    families: Seq[FamilyFiles]) {

  def range: KeyGroupRange = KeyGroupRange(firstKeyGroup, lastKeyGroup)

  def filesOf(family: String): Seq[StateFileRef] =
    families.find(_.family == family).map(_.files).getOrElse(Nil)

  /** The files this very commit wrote: its change set. */
  def ownFiles(family: String): Seq[StateFileRef] =
    filesOf(family).filter(f => f.level == 0 && f.lastVersion == version)
}

/**
 * The bytes of a handle: magic, format version, the inlined state files, then the description as
 * zstd-compressed JSON, its length, its crc and the magic again. The description comes last so that
 * it can name the offsets of the inlined files.
 */
object StateHandle {
  implicit val formats: Formats = DefaultFormats

  val FormatVersion = 1
  val Magic: Array[Byte] = "SPCKHNDL".getBytes(StandardCharsets.US_ASCII)
  val HeaderLength: Int = Magic.length + 4
  private val TrailerLength = 4 + 4 + Magic.length
  private val ZstdLevel = 3
  private val MaxDescriptionBytes = 256L << 20

  def serialize(handle: StateHandle, inlined: Array[Byte]): Array[Byte] = {
    val description = Zstd.compress(
      Serialization.write(handle).getBytes(StandardCharsets.UTF_8), ZstdLevel)
    val bytes = new ByteArrayOutputStream(HeaderLength + inlined.length + description.length + 32)
    val out = new DataOutputStream(bytes)
    out.write(Magic)
    out.write(littleEndian(FormatVersion))
    out.write(inlined)
    out.write(description)
    out.write(littleEndian(description.length))
    out.write(littleEndian(crcOf(description).toInt))
    out.write(Magic)
    bytes.toByteArray
  }

  def deserialize(bytes: Array[Byte], where: String): StateHandle = {
    def corrupt(why: String, cause: Throwable = null) =
      throw SparkckptErrors.corruptFile(where, why, cause)
    if (bytes.length < HeaderLength + TrailerLength) corrupt("it is truncated")
    val buffer = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN)
    if (!startsWith(bytes, 0, Magic)) corrupt("it does not begin as a handle does")
    val version = buffer.getInt(Magic.length)
    if (version < 1) corrupt(s"its format version is $version")
    if (version > FormatVersion) {
      throw SparkckptErrors.newerFormat("handle", where, version, FormatVersion)
    }
    val trailer = bytes.length - TrailerLength
    if (!startsWith(bytes, trailer + 8, Magic)) corrupt("it is truncated")
    val length = buffer.getInt(trailer)
    if (length < 0 || length > trailer - HeaderLength) corrupt("the length of its description is wrong")
    val description = bytes.slice(trailer - length, trailer)
    if (crcOf(description).toInt != buffer.getInt(trailer + 4)) {
      corrupt("the checksum of its description does not match")
    }
    val size = Zstd.getFrameContentSize(description)
    if (size < 0 || size > MaxDescriptionBytes) corrupt(s"its description would have $size bytes")
    try {
      val json = Zstd.decompress(description, size.toInt)
      Serialization.read[StateHandle](new String(json, StandardCharsets.UTF_8))
    } catch {
      case NonFatal(e) => corrupt(s"its description cannot be read: $e", e)
    }
  }

  private def littleEndian(value: Int): Array[Byte] =
    ByteBuffer.allocate(4).order(ByteOrder.LITTLE_ENDIAN).putInt(value).array()

  private def crcOf(bytes: Array[Byte]): Long = {
    val crc = new CRC32
    crc.update(bytes)
    crc.getValue
  }

  private def startsWith(bytes: Array[Byte], at: Int, expected: Array[Byte]): Boolean =
    java.util.Arrays.equals(bytes, at, at + expected.length, expected, 0, expected.length)
}
