package org.apache.spark.sql.sparkckpt.format

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.ObjectMapper
import com.google.common.cache.{Cache, CacheBuilder}
import org.apache.arrow.vector.types.pojo.Schema
import org.json4s.{DefaultFormats, Formats}
import org.json4s.jackson.Serialization

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.sparkckpt.{KeyGroupRange, SparkckptErrors}
import org.apache.spark.sql.types.{DataType, StructType}

/** What a row of a state file does to its key when the files of a version are applied in order. */
object StateOp {
  /** The key now has exactly this value; a null value is the empty list of a multi-valued family. */
  val Put: Byte = 0
  val Delete: Byte = 1
  /** One more value at the end of the key's list. */
  val Append: Byte = 2
}

/** Rows in ascending key groups, as a state file or a change buffer yields them. */
trait ChangeCursor {
  def advance(): Boolean
  def keyGroup: Int
  def op: Byte
  def key: UnsafeRow
  def value: UnsafeRow
}

/** Takes rows as a cursor shows them: they are valid until it returns. */
trait ChangeSink {
  def apply(keyGroup: Int, op: Byte, key: UnsafeRow, value: UnsafeRow): Unit
}

/** The family of rows a file holds: what is written into its footer besides the rows themselves. */
case class StateFamily(
    operatorId: Long,
    storeName: String,
    family: String,
    multiValued: Boolean,
    maxParallelism: Int,
    keySchema: StructType,
    valueSchema: StructType) {
  lazy val keyColumn: RowColumn = RowColumn("key", keySchema)
  lazy val valueColumn: RowColumn = RowColumn("value", valueSchema)
  lazy val rowSchema: Schema = new Schema(Seq(keyColumn.arrowField, valueColumn.arrowField).asJava)
  lazy val footer: Map[String, String] = StateFileMetadata.describe(this)
}

/** Where a record batch lies in its file, which key groups it spans, and the crc of its bytes. */
case class BatchIndex(
    offset: Long, length: Int, firstKeyGroup: Int, lastKeyGroup: Int, rows: Int, crc32: Long) {
  def range: KeyGroupRange = KeyGroupRange(firstKeyGroup, lastKeyGroup)
}

/**
 * A state file as a handle refers to it. `path` is relative to the state root of the checkpoint, or
 * absolute for a file of another one; `offset` is not 0 where the file is inlined in a handle. Only
 * the rows from `firstKeyGroup` to `lastKeyGroup` count: after a rescaling those are a part of the file.
 *
 * The crc covers the tail (all that follows the last record batch); the tail holds the crc of every
 * batch. So a reader that needs one batch of a large file verifies all it uses, and nothing else.
 *
 * @param level 0 for the change set of one commit, n + 1 for a merge of files up to level n
 * @param base true if the file holds all of the family's state, not only changes
 */
case class StateFileRef(
    path: String,
    offset: Long,
    length: Long,
    tailLength: Int,
    tailCrc32: Long,
    rows: Long,
    firstKeyGroup: Int,
    lastKeyGroup: Int,
    firstVersion: Long,
    lastVersion: Long,
    level: Int,
    base: Boolean) {
  def range: KeyGroupRange = KeyGroupRange(firstKeyGroup, lastKeyGroup)

  /** Whether it belongs to another checkpoint, which may go away. */
  def isForeign: Boolean = StateFileRef.isAbsolute(path)
}

object StateFileRef {
  def isAbsolute(path: String): Boolean = path.startsWith("/") || path.contains("://")
}

/** The custom metadata in the footer of a state file. */
object StateFileMetadata {
  implicit val formats: Formats = DefaultFormats

  val FormatVersion = 1

  private val Version = "sparkckpt.formatVersion"
  private val KeySchema = "sparkckpt.keySchema"
  private val ValueSchema = "sparkckpt.valueSchema"
  private val KeyEncoding = "sparkckpt.keyEncoding"
  private val ValueEncoding = "sparkckpt.valueEncoding"
  private val Batches = "sparkckpt.batches"

  def describe(family: StateFamily): Map[String, String] = Map(
    Version -> FormatVersion.toString,
    "sparkckpt.operator" -> family.operatorId.toString,
    "sparkckpt.store" -> family.storeName,
    "sparkckpt.family" -> family.family,
    "sparkckpt.multiValued" -> family.multiValued.toString,
    "sparkckpt.maxParallelism" -> family.maxParallelism.toString,
    KeySchema -> family.keySchema.json,
    ValueSchema -> family.valueSchema.json,
    KeyEncoding -> family.keyColumn.encoding,
    ValueEncoding -> family.valueColumn.encoding)

  def describeBatches(batches: Seq[BatchIndex]): (String, String) =
    Batches -> Serialization.write(batches.map { b =>
      Seq(b.offset, b.length.toLong, b.firstKeyGroup.toLong, b.lastKeyGroup.toLong, b.rows.toLong,
        b.crc32)
    })

  private val json = new ObjectMapper
  private val schemas: Cache[String, StructType] =
    CacheBuilder.newBuilder().maximumSize(64).softValues().build()

  case class Parsed(
      keySchema: StructType,
      valueSchema: StructType,
      keyEncoding: String,
      valueEncoding: String,
      batches: Seq[BatchIndex])

  def parse(metadata: String => Option[String], where: String): Parsed = {
    def required(key: String): String = metadata(key).getOrElse(
      throw SparkckptErrors.corruptFile(where, s"its footer has no '$key'"))
    val version = required(Version).toInt
    if (version > FormatVersion) {
      throw SparkckptErrors.newerFormat("state file", where, version, FormatVersion)
    }
    Parsed(
      schema(required(KeySchema)),
      schema(required(ValueSchema)),
      required(KeyEncoding),
      required(ValueEncoding),
      json.readValue(required(Batches), classOf[Array[Array[Long]]]).toSeq.map { b =>
        BatchIndex(b(0), b(1).toInt, b(2).toInt, b(3).toInt, b(4).toInt, b(5))
      })
  }

  /** A load opens many files of one family, and reading a schema takes longer than the rest of a footer. */
  private def schema(text: String): StructType = schemas.get(
    text, () => DataType.fromJson(text).asInstanceOf[StructType])
}
