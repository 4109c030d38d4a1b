package org.apache.spark.sql.sparkckpt

import java.util.Locale

import org.apache.spark.network.util.JavaUtils

/**
 * Every option, as `sparkckpt/conf.py` documents it. Providers, the planner rule and the coordinator's
 * launcher read some here; the rest is checked at start and read by the coordinator. All names lie
 * under `spark.sql.streaming.stateStore.`: Spark hands a provider no others.
 */
object SparkckptConf {
  val Prefix: String = "spark.sql.streaming.stateStore.sparkckpt."

  /** As text: each is named in places that must not link the class. */
  val PluginClass: String = "org.apache.spark.sql.sparkckpt.SparkckptPlugin"
  val ExtensionsClass: String = "org.apache.spark.sql.sparkckpt.SparkckptExtensions"
  val QueryStartListenerClass: String =
    "org.apache.spark.sql.sparkckpt.recovery.QueryStartListener"
  val CoordinatorListenerClass: String =
    "org.apache.spark.sql.sparkckpt.coordinator.CoordinatorQueryListener"
  val ProviderClass: String = "org.apache.spark.sql.sparkckpt.state.KeyGroupStateStoreProvider"

  val MaxParallelism: ConfOption[Int] =
    ConfOption("maxParallelism", KeyGroups.MaxMaxParallelism, int(1, KeyGroups.MaxMaxParallelism))
  val Engine: ConfOption[String] = ConfOption("engine", "auto", oneOf("auto", "memory", "rocksdb"))
  /** 0: half of the heap. */
  val MemoryLimit: ConfOption[Long] = ConfOption("memory.limit", 0L, JavaUtils.byteStringAsBytes)
  val InlineThreshold: ConfOption[Long] =
    ConfOption("inlineThreshold", 20L * 1024, JavaUtils.byteStringAsBytes)
  val OperatorStateMaxBytes: ConfOption[Long] =
    ConfOption("operatorState.maxBytes", 16L << 20, bytes(1L << 30))
  val Codec: ConfOption[String] =
    ConfOption("compression.codec", "zstd", oneOf("zstd", "lz4", "none"))
  val ZstdLevel: ConfOption[Int] = ConfOption("compression.zstd.level", 3, int(1, 22))
  val RecordBatchRows: ConfOption[Int] = ConfOption("recordBatchRows", 16384, int(1, 1 << 30))
  val MaxDeltas: ConfOption[Int] = ConfOption("merge.maxDeltas", 16, int(2, 1 << 20))
  val MergeRatio: ConfOption[Double] = ConfOption("merge.baseRatio", 1.0, nonNegative)

  val InBandBatchRows: ConfOption[Int] = ConfOption("inband.batchRows", 10000, int(1, 1 << 24))
  val InBandBatchBytes: ConfOption[Long] =
    ConfOption("inband.batchBytes", 16L << 20, JavaUtils.byteStringAsBytes)
  val InBandStateBytes: ConfOption[Long] =
    ConfOption("inband.stateBytes", 64L << 10, JavaUtils.byteStringAsBytes)

  val CoordinatorEnabled: ConfOption[Boolean] = ConfOption("coordinator.enabled", true, boolean)
  val CoordinatorPython: ConfOption[String] = ConfOption("coordinator.python", "", text)
  val CheckpointInterval: ConfOption[Int] = ConfOption("checkpoint.interval", 1, int(1, 1 << 30))
  val CheckpointRetained: ConfOption[Int] = ConfOption("checkpoint.retained", 10, int(1, 1 << 30))
  val CheckpointTimeout: ConfOption[Int] = ConfOption("checkpoint.timeout", 600, int(1, 1 << 30))
  val TolerableFailures: ConfOption[Int] =
    ConfOption("checkpoint.tolerableFailures", -1, int(-1, 1 << 30))
  val OnFailure: ConfOption[String] = ConfOption("checkpoint.onFailure", "warn", oneOf("warn", "stop"))
  val CompletedStore: ConfOption[String] =
    ConfOption("store", "files", oneOf("files", "zookeeper"))
  val ZooKeeperQuorum: ConfOption[String] = ConfOption("zookeeper.quorum", "", text)
  val ZooKeeperRoot: ConfOption[String] = ConfOption("zookeeper.root", "/sparkckpt", text)

  val RestorePath: ConfOption[String] = ConfOption("restore.path", "", text)
  val RestoreQuery: ConfOption[String] = ConfOption("restore.query", "", text)
  val RestoreMode: ConfOption[String] =
    ConfOption("restore.mode", "no-claim", oneOf("no-claim", "claim", "copy"))
  val RestoreCheckpointId: ConfOption[String] =
    ConfOption("restore.checkpointId", "", optional(long(1, Long.MaxValue)))
  val RestoreParallelism: ConfOption[String] =
    ConfOption("restore.parallelism", "", optional(int(1, KeyGroups.MaxMaxParallelism)))
  val RestoreMaxParallelism: ConfOption[String] =
    ConfOption("restore.maxParallelism", "", optional(int(1, KeyGroups.MaxMaxParallelism)))
  val AllowNonRestoredState: ConfOption[Boolean] =
    ConfOption("restore.allowNonRestoredState", false, boolean)
  val MapOperators: ConfOption[String] = ConfOption("restore.mapOperators", "",
    optional(items("\\d+\\s*=\\s*\\d+", "OLD=NEW,OLD=NEW with operator ids")))
  val DropOperators: ConfOption[String] = ConfOption("restore.dropOperators", "",
    optional(items("\\d+", "operator ids, as ID,ID")))
  val AddOperators: ConfOption[String] = ConfOption("restore.addOperators", "",
    optional(items("\\d+\\s*=\\s*[\\w:]+", "ID=NAME,ID=NAME with ids and names of operators")))
  val AllowSinkAhead: ConfOption[Boolean] =
    ConfOption("restore.allowSinkAhead", false, boolean)
  val RescaleOnRestart: ConfOption[Boolean] = ConfOption("rescaleOnRestart", false, boolean)

  /** What says how a query is restored, and not whether. */
  val RestoreOptions: Seq[ConfOption[_]] = Seq(RestorePath, RestoreMode, RestoreCheckpointId,
    RestoreParallelism, RestoreMaxParallelism, AllowNonRestoredState, MapOperators, DropOperators,
    AddOperators)

  /** For a check when the application starts, before there is a query to fail, and when one does. */
  def validateAll(confs: String => Option[String]): Unit =
    (Seq(MaxParallelism, Engine, MemoryLimit, InlineThreshold, OperatorStateMaxBytes, Codec, ZstdLevel,
      RecordBatchRows, MaxDeltas, MergeRatio, InBandBatchRows, InBandBatchBytes, InBandStateBytes,
      CoordinatorEnabled, CoordinatorPython, CheckpointInterval, CheckpointRetained,
      CheckpointTimeout, TolerableFailures, OnFailure, CompletedStore, ZooKeeperQuorum,
      ZooKeeperRoot, RestoreQuery, AllowSinkAhead, RescaleOnRestart) ++ RestoreOptions)
      .foreach(_.from(confs))

  private def int(least: Int, most: Int)(text: String): Int =
    text.toIntOption.filter(n => least <= n && n <= most).getOrElse(
      throw new IllegalArgumentException(s"it must be a whole number from $least to $most"))

  private def bytes(most: Long)(text: String): Long = {
    val bytes = JavaUtils.byteStringAsBytes(text)
    if (bytes > most) throw new IllegalArgumentException(s"it must be at most ${most >> 20}m")
    bytes
  }

  private def long(least: Long, most: Long)(text: String): Long =
    text.toLongOption.filter(n => least <= n && n <= most).getOrElse(
      throw new IllegalArgumentException(s"it must be a whole number from $least to $most"))

  /** Text that is empty or as another option's: who uses it knows how to read it. */
  private def optional(parse: String => Any)(text: String): String =
    if (text.isEmpty || text.toLowerCase(Locale.ROOT) == "none") "" else parse(text).toString

  private def items(item: String, what: String)(text: String): String = {
    val items = text.split(",", -1).map(_.trim)
    if (!items.forall(_.matches(item))) throw new IllegalArgumentException(s"it must be $what")
    items.mkString(",")
  }

  private def boolean(text: String): Boolean =
    text.toBooleanOption.getOrElse(throw new IllegalArgumentException("it must be true or false"))

  /** The word "none" is how an empty value is written where nothing cannot be. */
  private def text(text: String): String = if (text.toLowerCase(Locale.ROOT) == "none") "" else text

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
