package org.apache.spark.sql.sparkckpt.coordinator

import java.io.{EOFException, InputStream, IOException, OutputStream}
import java.nio.{ByteBuffer, ByteOrder}
import java.nio.charset.StandardCharsets.UTF_8

import org.json4s._
import org.json4s.jackson.JsonMethods.{compact, parse, render}

/**
 * One message on the pipe between the driver and the coordinator, as `sparkckpt/coordinator/wire.py`
 * reads and writes it: two lengths (uint32, little-endian), a JSON object with a "type", and bytes.
 */
final case class Frame(header: JObject, payload: Array[Byte] = Frame.NoPayload) {
  def kind: String = text("type")

  def text(name: String): String = header \ name match {
    case JString(value) => value
    case other => throw Frame.malformed(s"'$name' is $other")
  }

  def optionalText(name: String): Option[String] = header \ name match {
    case JString(value) => Some(value)
    case _ => None
  }

  def number(name: String): Long = optionalNumber(name).getOrElse(
    throw Frame.malformed(s"'$name' is ${header \ name}"))

  def optionalNumber(name: String): Option[Long] = header \ name match {
    case JInt(value) => Some(value.toLong)
    case _ => None
  }

  def flag(name: String): Boolean = header \ name == JBool(true)
}

object Frame {
  val NoPayload: Array[Byte] = Array.emptyByteArray
  private val MaxHeaderBytes = 16 << 20
  private val MaxPayloadBytes = 1 << 30

  def apply(kind: String, fields: (String, JValue)*): Frame =
    Frame(JObject(("type" -> JString(kind)) +: fields.toList))

  def write(out: OutputStream, frame: Frame): Unit = {
    val header = compact(render(frame.header)).getBytes(UTF_8)
    out.write(ByteBuffer.allocate(8).order(ByteOrder.LITTLE_ENDIAN)
      .putInt(header.length).putInt(frame.payload.length).array())
    out.write(header)
    out.write(frame.payload)
  }

  /** None where the stream ends between two frames. */
  def read(in: InputStream): Option[Frame] = {
    val lengths = in.readNBytes(8)
    if (lengths.isEmpty) return None
    if (lengths.length < 8) throw new EOFException("the stream ends within a frame")
    val buffer = ByteBuffer.wrap(lengths).order(ByteOrder.LITTLE_ENDIAN)
    val header = bytes(in, buffer.getInt(), MaxHeaderBytes)
    val payload = bytes(in, buffer.getInt(), MaxPayloadBytes)
    parse(new String(header, UTF_8)) match {
      case json: JObject => Some(Frame(json, payload))
      case other => throw malformed(s"its header is $other")
    }
  }

  private def bytes(in: InputStream, length: Int, limit: Int): Array[Byte] = {
    if (length < 0 || length > limit) throw malformed(s"a part of it would have $length bytes")
    val bytes = in.readNBytes(length)
    if (bytes.length < length) throw new EOFException("the stream ends within a frame")
    bytes
  }

  private def malformed(why: String): IOException =
    new IOException(s"A frame on the pipe to the coordinator is malformed: $why")
}
