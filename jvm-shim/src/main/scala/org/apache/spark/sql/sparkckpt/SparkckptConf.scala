package org.apache.spark.sql.sparkckpt

import org.apache.spark.network.util.JavaUtils

/**
 * The options a provider and the planner rule read, as `sparkckpt/conf.py` documents them. All names
 * lie under `spark.sql.streaming.stateStore.`: Spark hands a provider no others.
 */
object SparkckptConf {
  val Prefix: String = "spark.sql.streaming.stateStore.sparkckpt."

  /** As text: each is named in places that must not link the class. */
  val PluginClass: String = "org.apache.spark.sql.sparkckpt.SparkckptPlugin"
  val ExtensionsClass: String = "org.apache.spark.sql.sparkckpt.SparkckptExtensions"
  val ProviderClass: String = "org.apache.spark.sql.sparkckpt.state.KeyGroupStateStoreProvider"

  val MaxParallelism: Option_[Int] =
    Option_("maxParallelism", KeyGroups.MaxMaxParallelism, KeyGroups.parseMaxParallelism)
  val Engine: Option_[String] = Option_("engine", "rocksdb", _.trim.toLowerCase)
  val InlineThreshold: Option_[Long] =
    Option_("inlineThreshold", 20L * 1024, JavaUtils.byteStringAsBytes)
  val Codec: Option_[String] = Option_("compression.codec", "zstd", _.trim.toLowerCase)
  val ZstdLevel: Option_[Int] = Option_("compression.zstd.level", 1, _.toInt)
  val RecordBatchRows: Option_[Int] = Option_("recordBatchRows", 16384, _.toInt)
  val MaxDeltas: Option_[Int] = Option_("merge.maxDeltas", 16, _.toInt)
  val MergeRatio: Option_[Double] = Option_("merge.baseRatio", 1.0, _.toDouble)

  /** One option: its name below [[Prefix]], its default and how its text is read. */
  case class Option_[T](shortName: String, default: T, parse: String => T) {
    val key: String = Prefix + shortName

    def from(confs: String => scala.Option[String]): T = confs(key) match {
      case Some(text) =>
        try parse(text) catch {
          case e: Exception => throw SparkckptErrors.invalidConf(key, text, e.getMessage)
        }
      case None => default
    }
  }
}
