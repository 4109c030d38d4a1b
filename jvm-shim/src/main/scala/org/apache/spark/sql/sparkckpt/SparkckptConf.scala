package org.apache.spark.sql.sparkckpt

import java.util.Locale

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

  val MaxParallelism: ConfOption[Int] =
    ConfOption("maxParallelism", KeyGroups.MaxMaxParallelism, int(1, KeyGroups.MaxMaxParallelism))
  val Engine: ConfOption[String] = ConfOption("engine", "rocksdb", oneOf("rocksdb"))
  val InlineThreshold: ConfOption[Long] =
    ConfOption("inlineThreshold", 20L * 1024, JavaUtils.byteStringAsBytes)
  val Codec: ConfOption[String] =
    ConfOption("compression.codec", "zstd", oneOf("zstd", "lz4", "none"))
  val ZstdLevel: ConfOption[Int] = ConfOption("compression.zstd.level", 3, int(1, 22))
  val RecordBatchRows: ConfOption[Int] = ConfOption("recordBatchRows", 16384, int(1, 1 << 30))
  val MaxDeltas: ConfOption[Int] = ConfOption("merge.maxDeltas", 16, int(2, 1 << 20))
  val MergeRatio: ConfOption[Double] = ConfOption("merge.baseRatio", 1.0, nonNegative)

  /** For a check when the application starts, before there is a query to fail. */
  def validateAll(confs: String => Option[String]): Unit =
    Seq(MaxParallelism, Engine, InlineThreshold, Codec, ZstdLevel, RecordBatchRows, MaxDeltas,
      MergeRatio).foreach(_.from(confs))

  private def int(least: Int, most: Int)(text: String): Int =
    text.toIntOption.filter(n => least <= n && n <= most).getOrElse(
      throw new IllegalArgumentException(s"it must be a whole number from $least to $most"))

  private def nonNegative(text: String): Double =
    text.toDoubleOption.filter(_ >= 0).getOrElse(
      throw new IllegalArgumentException("it must be a number not below 0"))

  private def oneOf(choices: String*)(text: String): String = {
    val choice = text.toLowerCase(Locale.ROOT)
    if (!choices.contains(choice)) {
      throw new IllegalArgumentException(s"it must be one of ${choices.mkString(", ")}")
    }
    choice
  }

  /** One option: its name below [[Prefix]], its default and how its text is read. */
  case class ConfOption[T](shortName: String, default: T, parse: String => T) {
    val key: String = Prefix + shortName

    def from(confs: String => Option[String]): T = confs(key) match {
      case Some(text) =>
        try parse(text.trim) catch {
          case e: Exception => throw SparkckptErrors.invalidConf(key, text, e.getMessage)
        }
      case None => default
    }
  }
}
