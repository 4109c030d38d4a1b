package org.apache.spark.sql.sparkckpt.format

import java.nio.charset.StandardCharsets.UTF_8

import scala.util.control.NonFatal

import org.json4s.{DefaultFormats, Formats}
import org.json4s.jackson.JsonMethods

import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.sparkckpt.SparkckptErrors

/**
 * The parallelism that an entry of Spark's offset log says. Whoever only reads a checkpoint has no
 * operator to ask, and a manifest fits any parallelism.
 */
object PlannedParallelism {
  private implicit val formats: Formats = DefaultFormats

  def parse(entry: Array[Byte], where: String): Int =
    try {
      val metadata = JsonMethods.parse(new String(entry, UTF_8).linesIterator.drop(1).next())
      (metadata \ "conf" \ SQLConf.SHUFFLE_PARTITIONS.key).extract[String].toInt
    } catch {
      case NonFatal(e) => throw SparkckptErrors.corruptFile(
        where, s"it does not say ${SQLConf.SHUFFLE_PARTITIONS.key}: $e", e)
    }
}
