package org.apache.spark.sql.sparkckpt.format

import java.io.{ByteArrayOutputStream, DataOutputStream}
import java.nio.{ByteBuffer, ByteOrder}
import java.nio.charset.StandardCharsets
import java.util.zip.CRC32

import scala.util.control.NonFatal

import com.github.luben.zstd.Zstd

import org.apache.spark.sql.sparkckpt.SparkckptErrors

/**
 * The frame that handles and checkpoint metadata share: magic, format version, a payload, then the
 * description as zstd-compressed JSON, its length, its crc and the magic again. The description comes
 * last so that it can name the offsets of what the payload holds.
 *
 * @param kind names the file in messages
 */
final class DescriptionFrame(magicText: String, newestVersion: Int, kind: String) {
  private val magic = magicText.getBytes(StandardCharsets.US_ASCII)
  private val trailerLength = 4 + 4 + magic.length
  val headerLength: Int = magic.length + 4

  def pack(formatVersion: Int, description: Array[Byte], payload: Array[Byte]): Array[Byte] = {
    val bytes = new ByteArrayOutputStream(headerLength + payload.length + description.length + 32)
    val out = new DataOutputStream(bytes)
    out.write(magic)
    out.write(littleEndian(formatVersion))
    out.write(payload)
    out.write(description)
    out.write(littleEndian(description.length))
    out.write(littleEndian(crcOf(description).toInt))
    out.write(magic)
    bytes.toByteArray
  }

  /** What `parse` makes of the verified description's JSON, which fits the format version. */
  def unpack[T](bytes: Array[Byte], where: String)(parse: Array[Byte] => T)(
      versionOf: T => Int): T = {
    def corrupt(why: String, cause: Throwable = null) =
      throw SparkckptErrors.corruptFile(where, why, cause)
    if (bytes.length < headerLength + trailerLength) corrupt("it is truncated")
    val buffer = ByteBuffer.wrap(bytes).order(ByteOrder.LITTLE_ENDIAN)
    if (!startsWith(bytes, 0)) corrupt(s"it does not begin as a $kind does")
    val version = buffer.getInt(magic.length)
    if (version < 1) corrupt(s"its format version is $version")
    if (version > newestVersion) throw SparkckptErrors.newerFormat(kind, where, version, newestVersion)
    val trailer = bytes.length - trailerLength
    if (!startsWith(bytes, trailer + 8)) corrupt("it is truncated")
    val length = buffer.getInt(trailer)
    if (length < 0 || length > trailer - headerLength) corrupt("the length of its description is wrong")
    val description = bytes.slice(trailer - length, trailer)
    if (crcOf(description).toInt != buffer.getInt(trailer + 4)) {
      corrupt("the checksum of its description does not match")
    }
    val size = Zstd.getFrameContentSize(description)
    if (size < 0 || size > DescriptionFrame.MaxBytes) corrupt(s"its description would have $size bytes")
    val parsed = try parse(Zstd.decompress(description, size.toInt)) catch {
      case NonFatal(e) => corrupt(s"its description cannot be read: $e", e)
    }
    if (versionOf(parsed) != version) corrupt(s"what it says is not of format version $version")
    parsed
  }

  private def littleEndian(value: Int): Array[Byte] =
    ByteBuffer.allocate(4).order(ByteOrder.LITTLE_ENDIAN).putInt(value).array()

  private def crcOf(bytes: Array[Byte]): Long = {
    val crc = new CRC32
    crc.update(bytes)
    crc.getValue
  }

  private def startsWith(bytes: Array[Byte], at: Int): Boolean =
    java.util.Arrays.equals(bytes, at, at + magic.length, magic, 0, magic.length)
}

object DescriptionFrame {
  private val ZstdLevel = 3
  private val MaxBytes = 256L << 20

  def compress(json: String): Array[Byte] =
    Zstd.compress(json.getBytes(StandardCharsets.UTF_8), ZstdLevel)
}
