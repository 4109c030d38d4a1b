package org.apache.spark.sql.sparkckpt.format

import java.nio.charset.StandardCharsets

import org.json4s.{DefaultFormats, Formats}
import org.json4s.jackson.Serialization

import org.apache.spark.sql.sparkckpt.KeyGroupRange

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
    families: Seq[FamilyFiles],
    operatorState: Option[OperatorStateHandle] = None) {

  def range: KeyGroupRange = KeyGroupRange(firstKeyGroup, lastKeyGroup)

  def filesOf(family: String): Seq[StateFileRef] =
    families.find(_.family == family).map(_.files).getOrElse(Nil)

  /** All files it refers to, in which case a handle is a data file. */
  def paths: Seq[String] = families.flatMap(_.files.map(_.path)) ++ operatorState.map(_.path)

  /** Readers that know no operator state must not take the handle for one that has none. */
  def formatVersion: Int = if (operatorState.isDefined) 2 else 1

  /** The files this very commit wrote: its change set. */
  def ownFiles(family: String): Seq[StateFileRef] =
    filesOf(family).filter(f => f.level == 0 && f.lastVersion == version)
}

/** The bytes of a handle; what is inlined in it precedes its description. */
object StateHandle {
  implicit val formats: Formats = DefaultFormats

  private val frame = new DescriptionFrame("SPCKHNDL", newestVersion = 2, "handle")
  val HeaderLength: Int = frame.headerLength

  /** The description as it stands in the handle; also what an ack carries. */
  def describe(handle: StateHandle): Array[Byte] =
    DescriptionFrame.compress(Serialization.write(handle))

  /** @param description of the handle, as [[describe]] gives it */
  def serialize(
      handle: StateHandle, description: Array[Byte], inlined: Array[Byte]): Array[Byte] =
    frame.pack(handle.formatVersion, description, inlined)

  def deserialize(bytes: Array[Byte], where: String): StateHandle =
    frame.unpack(bytes, where) { json =>
      Serialization.read[StateHandle](new String(json, StandardCharsets.UTF_8))
    }(_.formatVersion)
}
