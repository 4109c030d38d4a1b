package org.apache.spark.sql.sparkckpt.format

import java.io.ByteArrayOutputStream
import java.nio.{ByteBuffer, ByteOrder}
import java.util.zip.CRC32

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}

import org.apache.spark.sql.sparkckpt.SparkckptErrors

/** One operator state with its items, whose bytes mean nothing here. */
case class OperatorStateItems(name: String, mode: String, items: IndexedSeq[Array[Byte]]) {
  def info: OperatorStateInfo =
    OperatorStateInfo(name, mode, items.length, items.iterator.map(_.length.toLong).sum)

  /** Whether it is the other one: of the same name and mode, item by item. */
  def hasSameItems(other: OperatorStateItems): Boolean =
    name == other.name && mode == other.mode && items.length == other.items.length &&
      items.lazyZip(other.items).forall(java.util.Arrays.equals(_, _))
}

/**
 * The bytes of a partition's operator states: format version, length of a JSON header that names the
 * states and the lengths of their items, the header, and the items one after the other.
 */
object OperatorStateBlob {
  private val json = new ObjectMapper

  private val FormatVersion = 1
  private val HeaderStart = 8
  /** Names stand in the metadata of every checkpoint. */
  private val MaxNameLength = 1024

  def serialize(states: Seq[OperatorStateItems]): Array[Byte] = {
    val header = json.writeValueAsBytes(describe(states))
    val length = HeaderStart + header.length.toLong + states.iterator.map(_.info.bytes).sum
    if (length > Int.MaxValue - 64) throw SparkckptErrors.operatorStateUnwieldy(length)
    val bytes = new ByteArrayOutputStream(length.toInt)
    bytes.write(ByteBuffer.allocate(HeaderStart).order(ByteOrder.LITTLE_ENDIAN)
      .putInt(FormatVersion).putInt(header.length).array())
    bytes.write(header)
    states.foreach(_.items.foreach(item => bytes.write(item)))
    bytes.toByteArray
  }

  /** @param where names the blob in messages */
  def parse(blob: Array[Byte], where: String): Seq[OperatorStateItems] = {
    def corrupt(why: String, cause: Throwable = null) =
      throw SparkckptErrors.corruptOperatorState(where, why, cause)
    if (blob.length < HeaderStart) corrupt("it is truncated")
    val buffer = ByteBuffer.wrap(blob).order(ByteOrder.LITTLE_ENDIAN)
    val version = buffer.getInt()
    if (version < 1) corrupt(s"its format version is $version")
    if (version > FormatVersion) {
      throw SparkckptErrors.newerFormat("operator state", where, version, FormatVersion)
    }
    val headerLength = buffer.getInt()
    if (headerLength < 0 || headerLength > blob.length - HeaderStart) {
      corrupt(s"its header cannot have $headerLength bytes")
    }
    val header = try json.readTree(blob, HeaderStart, headerLength) catch {
      case NonFatal(e) => corrupt(s"its header cannot be read: ${e.getMessage}", e)
    }
    def field(node: JsonNode, name: String, is: JsonNode => Boolean): JsonNode =
      Option(node.get(name)).filter(is).getOrElse(corrupt(s"in its header '$name' is ${node.get(name)}"))
    var position = HeaderStart + headerLength
    val states = field(header, "states", _.isArray).elements.asScala.map { state =>
      val name = field(state, "name", _.isTextual).textValue
      val mode = field(state, "mode", _.isTextual).textValue
      if (name.isEmpty || name.codePoints.count > MaxNameLength) {
        corrupt(s"a state is named '${name.take(80)}'")
      }
      if (!OperatorStateMode.all.contains(mode)) corrupt(s"the state '$name' has the mode '$mode'")
      OperatorStateItems(name, mode, field(state, "lengths", _.isArray).elements.asScala.map { item =>
        val length = item.intValue
        if (!item.isInt || length < 0 || length > blob.length - position) {
          corrupt(s"an item of the state '$name' cannot have $item bytes")
        }
        position += length
        java.util.Arrays.copyOfRange(blob, position - length, position)
      }.toIndexedSeq)
    }.toIndexedSeq
    if (position != blob.length) corrupt(s"it has ${blob.length - position} bytes too many")
    val names = states.map(_.name)
    names.diff(names.distinct).headOption.foreach(name => corrupt(s"the state '$name' occurs twice"))
    states
  }

  private def describe(states: Seq[OperatorStateItems]): JsonNode = {
    val header = json.createObjectNode()
    val array = header.putArray("states")
    states.foreach { state =>
      val lengths = array.addObject().put("name", state.name).put("mode", state.mode).putArray("lengths")
      state.items.foreach(item => lengths.add(item.length))
    }
    header
  }

  def crcOf(blob: Array[Byte]): Long = {
    val crc = new CRC32
    crc.update(blob)
    crc.getValue
  }
}
