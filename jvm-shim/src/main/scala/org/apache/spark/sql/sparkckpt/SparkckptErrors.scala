package org.apache.spark.sql.sparkckpt

/** The one exception type of the JVM side. The message names what is wrong, where, and what to do. */
class SparkckptException(val condition: String, message: String, cause: Throwable = null)
  extends RuntimeException(s"[$condition] $message", cause)

object SparkckptErrors {
  def invalidConf(key: String, value: String, why: String): SparkckptException =
    new SparkckptException("SPARKCKPT_INVALID_CONF",
      s"The option $key has the value '$value', which is not valid: $why. " +
        "Correct it or remove it to use the default.")

  def corruptFile(where: String, why: String, cause: Throwable = null): SparkckptException =
    new SparkckptException("SPARKCKPT_CORRUPT_FILE",
      s"The state file $where is damaged: $why. No row of the damaged part was used. Restore the " +
        "file from a copy, or go back to a checkpoint that does not refer to it.", cause)

  def unreadableFile(where: String, cause: Throwable): SparkckptException =
    new SparkckptException("SPARKCKPT_UNREADABLE_FILE",
      s"The state file $where cannot be read: ${cause.getMessage}. Check that it exists, that its " +
        "storage is reachable and that this user may read it; then restart the query.", cause)

  def newerFormat(what: String, where: String, found: Int, known: Int): SparkckptException =
    new SparkckptException("SPARKCKPT_NEWER_FORMAT",
      s"The $what $where has format version $found; this sparkckpt reads versions up to $known. " +
        "Use the sparkckpt release that wrote it, or a newer one.")

  def noTask(): SparkckptException =
    new SparkckptException("SPARKCKPT_NO_TASK",
      "State can only be changed inside a Spark task: its changes are kept in the task's memory.")

  def foreignKeyGroup(store: String, keyGroup: Int, range: KeyGroupRange): SparkckptException =
    new SparkckptException("SPARKCKPT_FOREIGN_KEY_GROUP",
      s"A key of key group $keyGroup reached the store $store, which owns $range. The rows were not " +
        "shuffled by key group, so nothing of this batch was committed. Check that " +
        "org.apache.spark.sql.sparkckpt.SparkckptExtensions is in spark.sql.extensions (the plugin " +
        "puts it there) and that no other extension replaces the exchanges of streaming plans.")

  def noLayout(store: String): SparkckptException =
    new SparkckptException("SPARKCKPT_NO_LAYOUT",
      s"The store $store was opened for writing by an operator that sparkckpt's planner rule did not " +
        "see. Set spark.plugins=org.apache.spark.sql.sparkckpt.SparkckptPlugin when the application " +
        "starts; setting only the state store provider is not enough.")

  def noCheckpointId(store: String, version: Long): SparkckptException =
    new SparkckptException("SPARKCKPT_NO_CHECKPOINT_ID",
      s"Version $version of the store $store was asked for without a checkpoint id. sparkckpt needs " +
        "spark.sql.streaming.stateStore.checkpointFormatVersion=2; a checkpoint begun with version 1 " +
        "cannot be continued.")

  def otherMaxParallelism(where: String, pinned: Int, wanted: Int): SparkckptException =
    new SparkckptException("SPARKCKPT_OTHER_MAX_PARALLELISM",
      s"The checkpoint $where was written with maxParallelism $pinned, and this query asks for " +
        s"$wanted. The number of key groups is fixed for the life of a checkpoint: set " +
        s"${SparkckptConf.MaxParallelism.key}=$pinned or remove the option.")

  def otherParallelism(where: String, written: Int, wanted: Int): SparkckptException =
    new SparkckptException("SPARKCKPT_OTHER_PARALLELISM",
      s"The state $where was written by $written partitions, and this query runs the operator with " +
        s"$wanted. Rescale the checkpoint first; changing spark.sql.shuffle.partitions is not enough.")

  def busy(store: String, millis: Long): SparkckptException =
    new SparkckptException("SPARKCKPT_STORE_BUSY",
      s"Another task still uses the store $store after ${millis / 1000} s. It is probably a task " +
        "attempt that is being killed; the retry of this task will succeed once it has ended.")

  def contradictingConf(key: String, value: String, needed: String): SparkckptException =
    new SparkckptException("SPARKCKPT_CONTRADICTING_CONF",
      s"$key is set to '$value', but sparkckpt needs '$needed' and sets it itself. Remove the " +
        s"setting, or remove ${SparkckptConf.PluginClass} from spark.plugins to run without " +
        "sparkckpt.")

  def otherSparkMinor(running: String, compiledFor: String): SparkckptException =
    new SparkckptException("SPARKCKPT_OTHER_SPARK",
      s"This sparkckpt jar was compiled for Spark $compiledFor, and Spark $running is running. " +
        s"Use the jar for Spark $running (sparkckpt.configure picks it), or a release of " +
        s"sparkckpt that supports Spark $running.")

  def parallelismAboveMaximum(
      operator: String, parallelism: Int, maximum: Int): SparkckptException =
    new SparkckptException("SPARKCKPT_PARALLELISM_ABOVE_MAXIMUM",
      s"$operator is to run in $parallelism partitions, but there are only $maximum key groups, " +
        "and a partition needs at least one. Lower spark.sql.shuffle.partitions; for a new " +
        s"checkpoint, ${SparkckptConf.MaxParallelism.key} can be raised to " +
        s"${KeyGroups.MaxMaxParallelism}.")

  def exchangeNotReplaced(operator: String, why: String): SparkckptException =
    new SparkckptException("SPARKCKPT_EXCHANGE_NOT_REPLACED",
      s"The rows of $operator cannot be shuffled by key group: $why. The query was not started. " +
        "Check that no other extension in spark.sql.extensions replaces the exchanges of " +
        "streaming plans, and that spark.sql.adaptive.enabled was not switched on for the " +
        "stream's session.")

  def checkpointFormatVersion(version: Int, key: String): SparkckptException =
    new SparkckptException("SPARKCKPT_CHECKPOINT_FORMAT_VERSION",
      s"$key is $version in the session of this query, and sparkckpt needs 2. Unset it in the " +
        "session; a checkpoint begun with version 1 must be continued with the state store " +
        "provider that wrote it.")

  def foreignProviderNeedsFormat1(provider: String, key: String): SparkckptException =
    new SparkckptException("SPARKCKPT_FOREIGN_PROVIDER_FORMAT",
      s"The state of this query is kept by $provider in checkpoint format version 1, and " +
        s"sparkckpt has set $key=2 for the application. Set $key=1 in the session that starts " +
        "this query, or start it in an application without sparkckpt.")

  def unreadableBackendFile(path: String, cause: Throwable): SparkckptException =
    new SparkckptException("SPARKCKPT_UNREADABLE_BACKEND_FILE",
      s"The file $path, which holds the number of key groups of the checkpoint, cannot be read: " +
        s"${cause.getMessage}. If it is damaged, delete it: the next run writes it again with " +
        s"${SparkckptConf.MaxParallelism.key}, and refuses state that was cut otherwise.", cause)

  def unwritableFile(where: String, cause: Throwable): SparkckptException =
    new SparkckptException("SPARKCKPT_UNWRITABLE_FILE",
      s"The state file $where cannot be written: ${cause.getMessage}. Nothing of this batch was " +
        "committed. Check that there is room on its storage and that this user may write there; then " +
        "restart the query.", cause)

  def foreignHandle(where: String, found: String, wanted: String): SparkckptException =
    new SparkckptException("SPARKCKPT_FOREIGN_HANDLE",
      s"The handle $where is not that of the store and version its name says. Its (operator, " +
        s"partition, store, version, id) are $found instead of $wanted. It was copied or renamed by " +
        "hand: put the right file back.")

  def incompatibleSchemas(where: String, written: String, wanted: String): SparkckptException =
    new SparkckptException("SPARKCKPT_INCOMPATIBLE_SCHEMAS",
      s"The state in $where has the schema $written, and the query now asks for $wanted, which it " +
        "cannot be read as. Go back to the query as it was, or start it with a new checkpointLocation.")
}
