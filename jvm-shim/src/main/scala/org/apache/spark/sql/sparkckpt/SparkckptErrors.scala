package org.apache.spark.sql.sparkckpt

/** The one exception type of the JVM side. The message names what is wrong, where, and what to do. */
class SparkckptException(val condition: String, message: String, cause: Throwable = null)
  extends RuntimeException(s"[$condition] $message", cause)

/** The one that sparkckpt itself has an answer to. */
class MemoryExceededException(message: String)
  extends SparkckptException("SPARKCKPT_MEMORY_EXCEEDED", message)

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

  def noMemoryToRead(where: String, cause: Throwable): SparkckptException =
    new SparkckptException("SPARKCKPT_NO_MEMORY_TO_READ",
      s"There was no memory outside of the heap for a record batch of the state file $where. The file is " +
        "not at fault, and no state is lost. Give executors more of that memory " +
        "(spark.executor.memoryOverhead, and -XX:MaxDirectMemorySize if it is set) or fewer cores. Batches " +
        s"are smaller in files that are written with a lower ${SparkckptConf.RecordBatchRows.key}.", cause)

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

  def changesUnknown(store: String, version: Long): SparkckptException =
    new SparkckptException("SPARKCKPT_CHANGES_UNKNOWN",
      s"The changes of version $version of the store $store are not known: the state of the version " +
        "after it was taken over by a rescaling or a restore. Read changes from that batch on, or the " +
        "state as of a batch.")

  def notInManifest(store: String, manifest: String, operators: Seq[String]): SparkckptException =
    new SparkckptException("SPARKCKPT_NOT_IN_MANIFEST",
      s"The restored checkpoint has no state for the store $store: $manifest has the operators " +
        s"${operators.mkString(", ")}. Restore it again with --map-operator, or with --add-operator if " +
        "the operator is to start empty.")

  def familiesNotResplit(store: String, families: Seq[String]): SparkckptException =
    new SparkckptException("SPARKCKPT_FAMILIES_NOT_RESPLIT",
      s"The checkpoint was restored with another maxParallelism, and the store $store holds " +
        s"${families.mkString(", ")}, which the query does not use any more, so that their keys cannot be " +
        "assigned to key groups. Restore with the checkpoint's own maxParallelism, or with a query that " +
        "still uses them.")

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

  def memoryExceeded(store: String, held: Long, total: Long, limit: Long): MemoryExceededException =
    new MemoryExceededException(
      s"State in the memory of this executor would take ${mebibytes(total)}, ${mebibytes(held)} of it " +
        s"for the store $store; it may take ${mebibytes(limit)}. Nothing is lost: the batch is not " +
        "committed. Give executors more memory, raise " +
        s"${SparkckptConf.MemoryLimit.key} (and spark.memory.storageFraction, which bounds it with " +
        s"${SparkckptConf.Engine.key}=auto), use more partitions and executors, or restart the query with " +
        s"${SparkckptConf.Engine.key}=auto, which goes on in RocksDB on local disk.")

  def operatorStateTooLarge(
      store: String, bytes: Long, limit: Long, option: String): SparkckptException =
    new SparkckptException("SPARKCKPT_OPERATOR_STATE_TOO_LARGE",
      s"The operator state of the store $store has $bytes bytes, and may have $limit: it is written " +
        s"whole with each batch that changes it. Nothing is lost: the batch is not committed. Raise $option, " +
        "use more partitions if it is split among them, or keep what belongs to a key in keyed state.")

  def operatorStateUnwieldy(bytes: Long): SparkckptException =
    new SparkckptException("SPARKCKPT_OPERATOR_STATE_UNWIELDY",
      s"The operator state that one partition is to get would have $bytes bytes, more than there can be " +
        "in one place. Nothing is lost: run the query with its former parallelism, or with more partitions " +
        "if the state is split among them.")

  def operatorStateModes(store: String, name: String, modes: Seq[String]): SparkckptException =
    new SparkckptException("SPARKCKPT_OPERATOR_STATE_MODES",
      s"The operator state '$name' for the store $store was written by different partitions as " +
        s"${modes.mkString(" and ")}, so that it cannot be dealt out to others. Run the query once with " +
        "its former parallelism until all partitions have written it anew; then rescale or restore again.")

  def corruptOperatorState(where: String, why: String, cause: Throwable): SparkckptException =
    new SparkckptException("SPARKCKPT_CORRUPT_OPERATOR_STATE",
      s"The $where is not in the format of operator state: $why. Nothing of it was used.", cause)

  private def mebibytes(bytes: Long): String = s"${bytes >> 20} MiB"

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

  def otherWireVersion(version: Int, known: Int): SparkckptException =
    new SparkckptException("SPARKCKPT_OTHER_WIRE_VERSION",
      s"The sparkckpt package of Python speaks version $version of the exchange with the executors, " +
        s"and this jar version $known. Use the jar of the same release: `sparkckpt jar` prints its path.")

  def wireBroken(what: String): SparkckptException =
    new SparkckptException("SPARKCKPT_WIRE_BROKEN",
      s"What came back from the Python worker of a stateful operator cannot be used: $what. " +
        "Nothing of this batch was committed. If the function is sparkckpt's own, check that the " +
        "executors' Python has the same sparkckpt release as the driver's.")

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

  def checkpointsFailed(why: String): SparkckptException =
    new SparkckptException("SPARKCKPT_CHECKPOINTS_FAILED",
      s"The query was stopped before this batch because its checkpoints fail: $why Repair the " +
        "cause and restart the query; it goes on where it was. To let it run without completed " +
        s"checkpoints, set ${SparkckptConf.OnFailure.key}=warn.")

  def queryNotPrepared(what: String, why: String): SparkckptException =
    new SparkckptException("SPARKCKPT_QUERY_NOT_PREPARED",
      s"The query was not started, and nothing was written to its logs: the checkpoint coordinator " +
        s"could not $what: $why")

  def coordinatorNeeded(what: String): SparkckptException =
    new SparkckptException("SPARKCKPT_COORDINATOR_NEEDED",
      s"The query was not started: it is the checkpoint coordinator that has to $what, and " +
        s"${SparkckptConf.CoordinatorEnabled.key} is false. Set it to true, or use the command " +
        "`sparkckpt` before the start and leave the option out.")

  def restoredAlready(source: String, first: String, second: String): SparkckptException =
    new SparkckptException("SPARKCKPT_RESTORED_ALREADY",
      s"The query with the checkpointLocation $second was not started: it has no checkpoint, " +
        s"${SparkckptConf.RestorePath.key} is $source, and the query of $first was restored from " +
        "there before, in this application. Say which query is meant: give it a name and set " +
        s"${SparkckptConf.RestoreQuery.key} to it; or unset ${SparkckptConf.RestorePath.key} in the " +
        "session in which a query is to start from nothing.")

  def notRestorable(query: String, why: String): SparkckptException =
    new SparkckptException("SPARKCKPT_NOT_RESTORABLE",
      s"The query $query was not started: ${SparkckptConf.RestoreQuery.key} names it, but $why. " +
        s"Unset ${SparkckptConf.RestorePath.key}, or name another query.")

  def coordinatorKeepsDying(command: String, times: Int): SparkckptException =
    new SparkckptException("SPARKCKPT_COORDINATOR_KEEPS_DYING",
      s"The checkpoint coordinator ($command) has ended $times times soon after its start; its last " +
        "words stand above. The streams go on and commit their state, but no checkpoint is " +
        "completed and no old state file deleted. It is tried again once a minute. Set " +
        s"${SparkckptConf.CoordinatorPython.key} to a Python that has sparkckpt installed, or switch " +
        s"the coordinator off with ${SparkckptConf.CoordinatorEnabled.key}=false.")

  def foreignHandle(where: String, found: String, wanted: String): SparkckptException =
    new SparkckptException("SPARKCKPT_FOREIGN_HANDLE",
      s"The handle $where is not that of the store and version its name says. Its (operator, " +
        s"partition, store, version, id) are $found instead of $wanted. It was copied or renamed by " +
        "hand: put the right file back.")

  def incompatibleSchemas(where: String, written: String, wanted: String): SparkckptException =
    new SparkckptException("SPARKCKPT_INCOMPATIBLE_SCHEMAS",
      s"The state in $where has the schema $written, and the query now asks for $wanted, which it " +
        "cannot be read as. Go back to the query as it was, or start it with a new checkpointLocation.")

  def restoreUnfinished(location: String): SparkckptException =
    new SparkckptException("SPARKCKPT_RESTORE_UNFINISHED",
      s"A restore into $location has begun and not ended, and the query was not started: its state " +
        "would be missing. Run the same restore again, which goes on or starts over; or start the " +
        "query on another checkpointLocation.")

  def startOnSavepoint(location: String): SparkckptException =
    new SparkckptException("SPARKCKPT_START_ON_SAVEPOINT",
      s"$location is a savepoint, not the checkpointLocation of a query, and the query was not started: " +
        "it would begin without the state. Restore the savepoint into a new directory with " +
        "`sparkckpt restore`, or start the query on a new checkpointLocation with " +
        s"${SparkckptConf.RestorePath.key} set to this path.")

  def claimed(location: String, by: String): SparkckptException =
    new SparkckptException("SPARKCKPT_CLAIMED",
      s"$location was claimed by a restore into $by, whose query owns its state now and deletes what " +
        "it does not need. The query was not started. Start it there instead; to run both, restore " +
        "with mode no-claim or copy.")

  def sinkAheadOfState(location: String, batch: Long): SparkckptException =
    new SparkckptException("SPARKCKPT_SINK_AHEAD_OF_STATE",
      s"The file sink of the query in $location has batch $batch already, Spark's commit log does not, " +
        "and the state that the batch wrote is not complete there. The query was not started: Spark " +
        "would skip the batch and could not go on. If this directory was restored from another, start " +
        "the query there once, which completes the batch, and restore then; else restore an older " +
        "checkpoint and let the query write into a new directory.")

  def sinkAhead(
      location: String, planned: Long, latest: Long, keepsState: Boolean): SparkckptException =
    new SparkckptException("SPARKCKPT_SINK_AHEAD",
      s"The file sink of the query in $location has batches up to $latest already, but the " +
        s"checkpoint has been put back to where the last one is $planned. The sink skips the batches " +
        "it has, so that their output, computed again, would be lost. The query was not started. " +
        "Let it write into a new directory, or remove the sink's output of the batches after " +
        s"$planned together with their entries in _spark_metadata." +
        (if (keepsState) "" else " The query keeps no state: if that output may be lost, set " +
          s"${SparkckptConf.AllowSinkAhead.key}=true."))

  def unknownOperator(where: String, operatorId: Long, name: String): SparkckptException =
    new SparkckptException("SPARKCKPT_UNKNOWN_OPERATOR",
      s"The operator $operatorId of the checkpoint $where is a '$name', and sparkckpt does not know " +
        "where its state keeps the key that rows are shuffled by. Its state cannot be moved; nothing " +
        "was changed. Use a release of sparkckpt that knows it.")

  def unknownFamilies(store: String, families: Seq[String]): SparkckptException =
    new SparkckptException("SPARKCKPT_UNKNOWN_FAMILIES",
      s"The store $store has state in the column families ${families.mkString(", ")}, which the " +
        "checkpoint's schema files do not describe. They would be lost, so nothing was moved. Run a " +
        "batch of the query on this checkpoint, which writes its schema files again, and retry.")

  def listOutOfOrder(store: String, family: String): SparkckptException =
    new SparkckptException("SPARKCKPT_LIST_OUT_OF_ORDER",
      s"The values of a list in the column family $family of $store arrived in another order than " +
        "they were read in, so nothing was moved. Check that spark.shuffle.manager is Spark's own, " +
        "and retry.")
}
