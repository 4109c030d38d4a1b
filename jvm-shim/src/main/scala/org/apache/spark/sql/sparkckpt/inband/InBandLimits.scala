package org.apache.spark.sql.sparkckpt.inband

import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.sparkckpt.SparkckptConf

/**
 * @param batchRows rows of a record batch, after which it ends with the next key
 * @param batchBytes bytes of one, after which it ends
 * @param stateBytes bytes of a list or map of one key that are sent beside its rows; more is fetched
 */
case class InBandLimits(batchRows: Int, batchBytes: Long, stateBytes: Long)

object InBandLimits {
  def of(conf: SQLConf): InBandLimits = {
    val confs: String => Option[String] = key => Option(conf.getConfString(key, null))
    InBandLimits(
      SparkckptConf.InBandBatchRows.from(confs),
      SparkckptConf.InBandBatchBytes.from(confs),
      SparkckptConf.InBandStateBytes.from(confs))
  }
}
