package org.apache.spark.sql.sparkckpt.transfer

import org.json4s.{DefaultFormats, Formats}
import org.json4s.jackson.Serialization

/**
 * What to move from where to where, as Python has decided it.
 *
 * @param batchId the committed batch whose state it is
 */
case class TransferRequest(
    batchId: Long,
    source: TransferSide,
    target: TransferSide,
    operators: Seq[TransferOperator])

/**
 * A checkpoint that is read or written.
 *
 * @param checkpoint the checkpointLocation
 * @param confs what its offset log says, or will say
 * @param formatVersion of its state: with 2, stores have checkpoint ids
 * @param maxParallelism number of its key groups; none if its keys lie where Spark's exchange puts them
 */
case class TransferSide(
    checkpoint: String,
    parallelism: Int,
    confs: Map[String, String],
    formatVersion: Int,
    maxParallelism: Option[Int])

/**
 * A stateful operator of the source.
 *
 * @param metadata path of its metadata, relative to the checkpointLocation
 * @param schemas by store, the paths of its schemas, oldest first, relative to the checkpointLocation
 * @param ids of its partitions, one for each store; empty in format version 1
 */
case class TransferOperator(
    operatorId: Long,
    metadata: String,
    schemas: Seq[Seq[String]],
    ids: Seq[Seq[String]])

/** What was moved; `ids` as in [[TransferOperator]], empty in format version 1. */
case class TransferredOperator(
    operatorId: Long,
    operatorName: String,
    keyed: Boolean,
    parallelism: Int,
    stores: Seq[String],
    rows: Long,
    ids: Seq[Seq[String]])

object TransferRequest {
  private implicit val formats: Formats = DefaultFormats

  def fromJson(json: String): TransferRequest = Serialization.read[TransferRequest](json)

  def resultJson(operators: Seq[TransferredOperator]): String = Serialization.write(operators)
}
