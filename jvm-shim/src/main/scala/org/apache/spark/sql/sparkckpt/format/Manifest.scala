package org.apache.spark.sql.sparkckpt.format

import java.util.concurrent.ExecutionException

import scala.jdk.CollectionConverters._

import com.fasterxml.jackson.databind.{JsonNode, ObjectMapper}
import com.google.common.cache.{Cache, CacheBuilder}
import com.google.common.util.concurrent.UncheckedExecutionException

import org.apache.spark.sql.sparkckpt.{KeyGroupRange, KeyGroups}

/** One partition's part of a store, as the checkpoint had it. */
case class ManifestHandle(
    storeName: String,
    partition: Int,
    id: String,
    range: KeyGroupRange,
    families: Seq[FamilyFiles],
    operatorState: Option[OperatorStateHandle] = None)

/** The state of an operator as the checkpoint had it; it says nothing of who reads it. */
case class ManifestOperator(
    operatorId: Long,
    operatorName: String,
    keyed: Boolean,
    parallelism: Int,
    maxParallelism: Int,
    handles: Seq[ManifestHandle]) {

  /** None if no partition has operator state in that store. */
  def operatorState(
      storeName: String, partition: Int, newParallelism: Int): Option[OperatorStateRedistribution] = {
    val written = handles.filter(_.storeName == storeName).sortBy(_.partition).map(_.operatorState)
    Option.when(written.exists(_.isDefined))(
      OperatorStateRedistribution(written.toIndexedSeq, partition, newParallelism))
  }

  /**
   * The files that hold a store's rows of these key groups, by column family. A store that is not
   * listed is empty: the operator was added when the checkpoint was restored.
   */
  def slices(storeName: String, range: KeyGroupRange): Seq[FamilyFiles] =
    Slices.of(handles.filter(_.storeName == storeName), range)

  /** The ids that the checkpoint had: by partition, and in the order of Spark's commit log. */
  def ids: Array[Array[String]] =
    (0 until parallelism).toArray.map(p => handles.filter(_.partition == p).map(_.id).toArray)

  /** All files of a store, each with the rows that count. */
  def everything(storeName: String): Seq[FamilyFiles] =
    slices(storeName, KeyGroupRange(0, maxParallelism - 1))
}

/**
 * A whole checkpoint under one id. The partitions that load it work out for themselves what is
 * theirs, so it is right for every parallelism, and rescaling writes no state. Its bytes are those of
 * a checkpoint's metadata.
 */
case class Manifest(operators: Map[Long, ManifestOperator]) {
  def formatVersion: Int =
    if (operators.values.exists(_.handles.exists(_.operatorState.isDefined))) 2 else 1
}

object Manifest {
  private val frame = new DescriptionFrame("SPCKMETA", newestVersion = 2, "manifest")
  private val json = new ObjectMapper
  private val Prefix = "manifest-"

  /** All stores of an executor load the same one, and it may have many thousands of files. */
  private val recent: Cache[String, Manifest] =
    CacheBuilder.newBuilder().maximumSize(4).softValues().build()

  def isManifest(id: String): Boolean = id.startsWith(Prefix)

  /** Relative to the checkpoint directory. */
  def path(id: String): String = s"_sparkckpt/manifests/$id"

  /** Of the file at this absolute path, which never changes. */
  def cached(where: String)(read: => Array[Byte]): Manifest =
    try recent.get(where, () => deserialize(read, where)) catch {
      case e @ (_: ExecutionException | _: UncheckedExecutionException) => throw e.getCause
    }

  def deserialize(bytes: Array[Byte], where: String): Manifest =
    frame.unpack(bytes, where) { description =>
      val operators = json.readTree(description).get("operatorStates")
      Manifest(operators.elements.asScala.map(operator).map(o => o.operatorId -> o).toMap)
    }(_.formatVersion)

  private def operator(node: JsonNode): ManifestOperator = {
    val parallelism = node.get("parallelism").intValue
    val maxParallelism = node.get("maxParallelism").intValue
    val files = new Table(node.get("files"))
    val families = new Table(node.get("families"))
    val handles = new Table(node.get("handles"))
    // Rows belong together by counts: each handle owns the next of its families, and so on.
    val filesInOrder = (0 until files.rows("path")).iterator.map(file(files, _))
    val familiesInOrder = (0 until families.rows("family")).iterator.map { row =>
      FamilyFiles(families.text("family", row), families.flag("multiValued", row),
        take(filesInOrder, families.int("files", row)))
    }
    val operatorStates = node.get("operatorState").elements.asScala.map { state =>
      (state.get("partition").intValue, state.get("storeName").textValue) -> operatorState(state)
    }.toMap
    ManifestOperator(
      node.get("operatorId").longValue,
      node.get("operatorName").textValue,
      node.get("keyed").booleanValue,
      parallelism,
      maxParallelism,
      (0 until handles.rows("storeName")).map { row =>
        val partition = handles.int("partition", row)
        val storeName = handles.text("storeName", row)
        ManifestHandle(
          storeName,
          partition,
          handles.text("id", row),
          KeyGroups.rangeOf(partition, parallelism, maxParallelism),
          take(familiesInOrder, handles.int("families", row)),
          operatorStates.get((partition, storeName)))
      })
  }

  private def operatorState(node: JsonNode): OperatorStateHandle = OperatorStateHandle(
    node.get("path").textValue, node.get("offset").longValue, node.get("length").intValue,
    node.get("crc32").longValue,
    node.get("states").elements.asScala.map { state =>
      OperatorStateInfo(state.get("name").textValue, state.get("mode").textValue,
        state.get("items").intValue, state.get("bytes").longValue,
        Option(state.get("inherited")).map(_.booleanValue))
    }.toSeq)

  private def take[T](rows: Iterator[T], count: Int): Seq[T] = Seq.fill(count)(rows.next())

  private def file(files: Table, row: Int): StateFileRef = StateFileRef(
    files.text("path", row), files.long("offset", row), files.long("length", row),
    files.int("tailLength", row), files.long("tailCrc32", row), files.long("rows", row),
    files.int("firstKeyGroup", row), files.int("lastKeyGroup", row),
    files.long("firstVersion", row), files.long("lastVersion", row), files.int("level", row),
    files.flag("base", row))

  /** An object with an array of equal length for each column. */
  private final class Table(node: JsonNode) {
    private val columns = node.properties.asScala.map(e => e.getKey -> e.getValue).toMap

    def rows(column: String): Int = columns(column).size
    def text(column: String, row: Int): String = columns(column).get(row).textValue
    def int(column: String, row: Int): Int = columns(column).get(row).intValue
    def long(column: String, row: Int): Long = columns(column).get(row).longValue
    def flag(column: String, row: Int): Boolean = columns(column).get(row).booleanValue
  }
}
