package org.apache.spark.sql.sparkckpt.state

import java.util.concurrent.{ConcurrentHashMap, Semaphore, TimeUnit}

import scala.jdk.CollectionConverters._
import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration

import org.apache.spark.TaskContext
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.sparkckpt.{KeyGroupRange, OperatorLayout, SparkckptConf, SparkckptErrors}
import org.apache.spark.sql.sparkckpt.coordinator.{CheckpointAck, CoordinatorService}
import org.apache.spark.sql.sparkckpt.format._
import org.apache.spark.sql.sparkckpt.state.memory.{MemoryEngine, StoragePool}
import org.apache.spark.sql.types.StructType

/**
 * The state of one store partition: an engine with the working state, and the files that are its
 * checkpoint. The provider decides what the working state stands for. It is reused for a version only
 * if both version and checkpoint id match; in any other case it is emptied and filled from the one
 * handle that Spark names, so files left by failed attempts are never replayed.
 *
 * One task at a time has the store open: it holds the permit, and only its holder touches the
 * fields below that have no other guard.
 *
 * It extends Spark's RocksDB provider, and inherits nothing of it but the name: Spark gives the newer
 * state formats of stream-stream joins only to a provider of that class.
 */
class KeyGroupStateStoreProvider
  extends RocksDBStateStoreProvider with VersionedStateStoreProvider {

  private var storeId: StateStoreId = _
  private var storeConf: StateStoreConf = _
  private var hadoopConf: Configuration = _
  private var engine: StateEngine = _
  private var storage: StateStorage = _
  private var versions: StateVersions = _
  private var commits: StateCommitter = _
  private var merges: BackgroundMerges = _
  private var cleaner: StateCleaner = _
  private var layout: Option[OperatorLayout] = None
  /** The run whose coordinator this store reports to, and leaves the deletion of files to. */
  private var coordinatedRun: Option[String] = None
  private var lockTimeoutMs = 0L
  private var countsKeys = true
  private var maxOperatorStateBytes = 0L
  @volatile private var closed = false

  private val families = new ConcurrentHashMap[String, ColumnFamily]
  private val extractors = new ConcurrentHashMap[String, KeyGroupExtractor]
  private val permit = new Semaphore(1, true)

  /** What the working state stands for; None: nothing known. */
  private var working: Option[WorkingState] = None
  private var loadTimeMs = 0L
  /** The newest version that Spark asked to write on top of: it is committed. */
  @volatile private var committedVersion = 0L

  override def init(
      stateStoreId: StateStoreId,
      keySchema: StructType,
      valueSchema: StructType,
      keySpec: KeyStateEncoderSpec,
      useColumnFamilies: Boolean,
      conf: StateStoreConf,
      hadoopConf: Configuration,
      multiValued: Boolean,
      schemaProvider: Option[StateSchemaProvider]): Unit = {
    storeId = stateStoreId
    storeConf = conf
    this.hadoopConf = hadoopConf
    lockTimeoutMs = RocksDBConf(conf).lockAcquireTimeoutMs
    countsKeys = RocksDBConf(conf).trackTotalNumberOfRows
    layout = OperatorLayout.of(stateStoreId, conf.sqlConfs)
    coordinatedRun = Option(hadoopConf.get(StreamExecution.RUN_ID_KEY))
      .filter(_ => CoordinatorService.isEnabled(conf.sqlConfs.get))
    storage = new StateStorage(stateStoreId, hadoopConf,
      if (conf.stateStoreEncodingFormat == StateStoreEncoding.Avro.toString) FieldMatching.ByName
      else if (layout.isDefined) FieldMatching.ByPosition
      else FieldMatching.ByPositionElseName)
    def option[T](o: SparkckptConf.ConfOption[T]): T = o.from(conf.sqlConfs.get)
    val fileOptions = StateFileOptions(option(SparkckptConf.Codec), option(SparkckptConf.ZstdLevel),
      option(SparkckptConf.RecordBatchRows))
    maxOperatorStateBytes = option(SparkckptConf.OperatorStateMaxBytes)
    versions = new StateVersions(stateStoreId, storage, layout)
    commits = new StateCommitter(
      stateStoreId, storage, fileOptions, option(SparkckptConf.InlineThreshold))
    val adoptionWindow = math.max(2, conf.minVersionsToRetain / 2)
    merges = new BackgroundMerges(
      stateStoreId,
      MergePolicy(option(SparkckptConf.MaxDeltas), option(SparkckptConf.MergeRatio)),
      new StateMerger(storage, fileOptions, ownRange, () => closed), storage, adoptionWindow)
    cleaner = new StateCleaner(storage, conf.minVersionsToRetain, adoptionWindow)
    families.put(StateStore.DEFAULT_COL_FAMILY_NAME,
      new ColumnFamily(StateStore.DEFAULT_COL_FAMILY_NAME, keySchema, keySpec, valueSchema,
        multiValued, isInternal = false))
    def inMemory(pool: Option[StoragePool]) = new MemoryEngine(stateStoreId, keySchema, valueSchema, keySpec,
      useColumnFamilies, conf, multiValued, Some(option(SparkckptConf.MemoryLimit)).filter(_ > 0), pool)
    def onDisk = new RocksDBEngine(stateStoreId, keySchema, valueSchema, keySpec, useColumnFamilies,
      conf, hadoopConf, multiValued, schemaProvider)
    // Those that only read are no successors: the query that writes may go on.
    if (layout.isDefined) StoreOwners.replace(storeId, by = this)
    engine = option(SparkckptConf.Engine) match {
      case "memory" => inMemory(pool = None)
      case "rocksdb" => onDisk
      case _ => new SpillingEngine(stateStoreId, family(StateStore.DEFAULT_COL_FAMILY_NAME),
        () => inMemory(Some(new StoragePool)), () => onDisk)
    }
  }

  override def stateStoreId: StateStoreId = storeId

  /** Without a layout the store is only read, and then whole. */
  private def ownRange: KeyGroupRange =
    layout.map(_.rangeOf(storeId.partitionId)).getOrElse(KeyGroupRange.Everything)

  // Opening

  override def getStore(
      version: Long,
      id: Option[String],
      forceSnapshotOnCommit: Boolean,
      loadEmpty: Boolean): StateStore = open(version, id, readOnly = false, loadEmpty)

  override def getReadStore(version: Long, id: Option[String]): StateStore =
    open(version, id, readOnly = true, loadEmpty = false)

  override def upgradeReadStoreToWriteStore(
      readStore: ReadStateStore,
      version: Long,
      id: Option[String],
      forceSnapshotOnCommit: Boolean): StateStore = {
    val store = readStore.asInstanceOf[KeyGroupStateStore]
    // A task that runs two stateful operators hands the read store of the first to the second.
    if (store.id != storeId) return getStore(version, id, forceSnapshotOnCommit, loadEmpty = false)
    require(store.version == version && store.checkpointId == id,
      s"$store cannot be upgraded to version $version, checkpoint id $id")
    // Spark may have replaced this provider since the read store was opened; the store's own
    // provider has the working state and the permit.
    if (store.provider ne this) {
      store.provider.upgradeReadStoreToWriteStore(store, version, id, forceSnapshotOnCommit)
    } else {
      val upgraded = engine.upgrade(store.engineStore)
      store.base.foreach(considerMerges)
      store.handOver()
      new KeyGroupStateStore(
        this, version, id, store.base, upgraded, readOnly = false, operatorStateOf(store.base))
    }
  }

  private def open(
      version: Long, id: Option[String], readOnly: Boolean, loadEmpty: Boolean): KeyGroupStateStore = {
    if (version > 0 && !loadEmpty && id.isEmpty) {
      throw SparkckptErrors.noCheckpointId(storeId.toString, version)
    }
    if (!permit.tryAcquire(lockTimeoutMs, TimeUnit.MILLISECONDS)) {
      throw SparkckptErrors.busy(storeId.toString, lockTimeoutMs)
    }
    val store = try {
      if (closed) throw new IllegalStateException(s"The provider of $storeId is closed")
      openWithPermit(version, id, readOnly, loadEmpty)
    } catch {
      case e: Throwable =>
        working = None
        permit.release()
        throw e
    }
    // From here on the permit is the store's to give back.
    try {
      fill(store, family(StateStore.DEFAULT_COL_FAMILY_NAME))
      // Spark's state reader registers its family once, and may then reopen the store.
      if (readOnly) registered.foreach(register(store, _))
      else if (layout.isDefined) store.base.foreach(considerMerges)
      store
    } catch {
      case e: Throwable =>
        invalidate()
        try store.abort() catch { case NonFatal(suppressed) => e.addSuppressed(suppressed) }
        throw e
    }
  }

  private def openWithPermit(
      version: Long, id: Option[String], readOnly: Boolean, loadEmpty: Boolean): KeyGroupStateStore = {
    val reusable = if (loadEmpty) None else workingState(version, id)
    val state = reusable.getOrElse {
      val found = Option.when(version > 0 && !loadEmpty)(versions.read(version, id.get))
      // What was opened empty on purpose is never taken for the state of a checkpoint.
      new WorkingState(version, id.filter(_ => !loadEmpty), found.map(_.handle),
        resplit = found.exists(_.resplit), found.flatMap(_.operatorState))
    }
    val engineStore = engine.open(empty = reusable.isEmpty, readOnly)
    if (reusable.isEmpty) {
      working = Some(state)
      loadTimeMs = 0
    }
    new KeyGroupStateStore(
      this, version, id, state.handle, engineStore, readOnly, operatorStateOf(state.handle))
  }

  private def operatorStateOf(base: Option[StateHandle]): OperatorStateBuffer =
    new OperatorStateBuffer(storage, base.flatMap(_.operatorState), working.flatMap(_.operatorState),
      working.map(_.operatorStateBlob).getOrElse(new KeptBlob(None)), maxOperatorStateBytes,
      storeId.toString)

  /** The working state of this version if there is one, possibly after taking back its successor. */
  private def workingState(version: Long, id: Option[String]): Option[WorkingState] = {
    working.filter(_.is(version, id)).orElse {
      val rolledBack = working.flatMap(_.previous).filter(_.is(version, id) && engine.rollBack())
      if (rolledBack.isDefined) working = rolledBack
      rolledBack
    }
  }

  // Column families

  /** An operator registers its families every time it opens a store. */
  private[state] def register(store: KeyGroupStateStore, family: ColumnFamily): Unit = {
    val known = families.get(family.name)
    val current = if (known != null && known.isSameAs(family)) known else {
      families.put(family.name, family)
      extractors.remove(family.name)
      family
    }
    current.createIn(store.engineStore)
    fill(store, current)
    working.toSeq.flatMap(_.takePostponed()).foreach(name => fill(store, this.family(name)))
  }

  private def registered: Seq[ColumnFamily] =
    families.values.asScala.filter(_.name != StateStore.DEFAULT_COL_FAMILY_NAME).toSeq

  private[state] def family(name: String): ColumnFamily = {
    val family = families.get(name)
    if (family == null) {
      throw new IllegalArgumentException(s"The column family $name of $storeId is not registered")
    }
    family
  }

  private[state] def forget(name: String): Unit = {
    families.remove(name)
    extractors.remove(name)
    working.foreach { state =>
      state.filled += name
    }
    engine.keyCounts.foreach(_.forget(name))
  }

  private[state] def extractor(name: String): KeyGroupExtractor =
    extractors.computeIfAbsent(name, _ => family(name).extractor(requiredLayout, storeId.storeName,
      variable => Option(families.get(variable)).exists(_.isMapState)))

  private[state] def requiredLayout: OperatorLayout =
    layout.getOrElse(throw SparkckptErrors.noLayout(storeId.toString))

  private[state] def newChangeSet(task: TaskContext): ChangeSet =
    new ChangeSet(storeId.toString, storeId.partitionId, requiredLayout, task)

  /** Brings a family's rows into the working state; operators register families after opening. */
  private def fill(store: KeyGroupStateStore, family: ColumnFamily): Unit = {
    val state = working.getOrElse(throw new IllegalStateException(s"$store has no working state"))
    if (state.resplit && !knowsGroupingKey(family)) state.postpone(family.name)
    else if (!state.filled.contains(family.name)) {
      val files = store.base.map(_.filesOf(family.name)).getOrElse(Nil)
      if (files.nonEmpty) {
        val start = System.nanoTime()
        try engine.fill(store.engineStore, family) { filler =>
          if (!state.resplit) StateLoader.load(storage, files, ownRange, family, filler)
          else StateLoader.resplit(
            storage, files, ownRange, family, extractor(family.name), filler)
        } catch {
          case e: Throwable => invalidate(); throw e
        }
        loadTimeMs += (System.nanoTime() - start) / 1000000
      }
      state.filled += family.name
    }
  }

  /** Not before the state variable that a TTL index belongs to is registered, which may come after it. */
  private def knowsGroupingKey(family: ColumnFamily): Boolean =
    family.indexedVariable.forall(families.containsKey)

  // The end of a store, called by it

  private[state] def commit(
      store: KeyGroupStateStore,
      changes: Option[ChangeSet],
      removedFamilies: Set[String]): CommitResult = {
    val start = System.nanoTime()
    if (store.base.exists(merges.mustAdopt)) merges.await()
    val adopted = merges.takeFinished(store.version + 1)
    val result = if (working.exists(_.resplit)) {
      val whole = wholeState(store, removedFamilies)
      try commits.commit(store, requiredLayout, Some(whole), carried = Nil) finally whole.free()
    } else {
      val carried = store.base.map(_.families).getOrElse(Nil)
        .filterNot(f => removedFamilies.contains(f.family))
      commits.commit(store, requiredLayout, changes, StateCommitter.adopt(carried, adopted))
    }
    val handle = result.handle
    // A commit that fails halfway leaves the working state undefined, also for the abort after it.
    val before = working
    working = None
    engine.commit(store.engineStore)
    working = before.map(_.advance(handle, store.operatorStates.afterCommit))
    if (storeConf.commitValidationEnabled) {
      StateStore.reportCommitToCoordinator(handle.version, storeId, hadoopConf)
    }
    coordinatedRun.foreach(acknowledge(_, result, start))
    val metrics = result.metrics ++ merges.takeMetrics() + (StateMetrics.LoadTime -> loadTimeMs)
    loadTimeMs = 0
    result.copy(metrics = metrics)
  }

  /**
   * Everything the store holds, as one change set: the first version after the number of key groups
   * has changed. Families that the query has not registered cannot be cut anew, and must not be lost.
   */
  private def wholeState(store: KeyGroupStateStore, removedFamilies: Set[String]): ChangeSet = {
    val unknown = store.base.toSeq.flatMap(_.families.map(_.family))
      .filterNot(name => removedFamilies.contains(name) || working.exists(_.filled.contains(name)))
    if (unknown.nonEmpty) throw SparkckptErrors.familiesNotResplit(storeId.toString, unknown)
    val whole = newChangeSet(store.task)
    try {
      families.values.asScala.foreach { family =>
        StateRows.foreach(store.engineStore, family) { (op, key, value) =>
          whole.add(family, extractor(family.name), op, key, value)
        }
      }
      whole
    } catch {
      case e: Throwable => whole.free(); throw e
    }
  }

  private def acknowledge(runId: String, result: CommitResult, startNs: Long): Unit = {
    val millis = (System.nanoTime() - startNs) / 1000000
    val writeMs = result.metrics(StateMetrics.WriteTime)
    CheckpointAck.send(CheckpointAck(
      runId,
      syncMs = math.max(0, millis - writeMs),
      writeMs = writeMs,
      bytesWritten = Seq(StateMetrics.DeltaBytes, StateMetrics.HandleBytes,
        StateMetrics.OperatorStateBytes).map(result.metrics).sum,
      taskAttempt = Option(TaskContext.get()).map(_.taskAttemptId()).getOrElse(-1L),
      description = result.description))
  }

  private[state] def invalidate(): Unit = working = None

  private[state] def abort(store: KeyGroupStateStore): Unit = {
    val before = working
    working = None
    if (engine.abort(store.engineStore)) working = before
  }

  /** The number of keys of the working state, if it is for its stores to count. */
  private[state] def keyCounts: Option[KeyCounts] = if (countsKeys) engine.keyCounts else None

  private[state] def releasePermit(): Unit = permit.release()

  // Maintenance

  override protected def mergeFiles(): Unit = maintain(merges.await())

  /** With a coordinator, it alone deletes: it knows which files completed checkpoints refer to. */
  override protected def cleanUp(): Unit =
    if (coordinatedRun.isEmpty) maintain(cleaner.clean(committedVersion))

  /** Spark closes a provider whose maintenance throws; nothing here is worth that. */
  private def maintain(body: => Unit): Unit = try body catch {
    case NonFatal(e) => logWarning(s"Maintenance of $storeId failed; it is tried again", e)
  }

  private def considerMerges(handle: StateHandle): Unit = {
    committedVersion = handle.version
    if (!working.exists(_.resplit)) {
      merges.consider(handle, mergeable(handle), justLoaded = loadTimeMs > 0)
    }
  }

  private def mergeable(handle: StateHandle): Seq[(ColumnFamily, StateFamily)] =
    handle.families.flatMap(f => Option(families.get(f.family))).map { family =>
      family -> family.describe(storeId.operatorId, storeId.storeName, handle.maxParallelism)
    }

  /**
   * Another provider has the store from now on. This one may still be used, and then loads again what
   * it needs; if a task does so right now, that one is let alone.
   */
  private[state] def giveUp(): Unit = if (permit.tryAcquire()) {
    try if (!closed && engine != null) {
      working = None
      engine.giveUp()
    } finally permit.release()
  }

  override def close(): Unit = {
    closed = true
    if (storeId != null) StoreOwners.remove(storeId, this)
    try {
      if (merges != null) merges.close()
    } finally {
      if (engine != null) closeEngine()
    }
  }

  /** Not under a task that still works on it, unless that one does not end. */
  private def closeEngine(): Unit = {
    val idle = permit.tryAcquire(lockTimeoutMs, TimeUnit.MILLISECONDS)
    try engine.close() finally if (idle) permit.release()
  }

  override def supportedCustomMetrics: Seq[StateStoreCustomMetric] =
    StateMetrics.all ++ RocksDBEngine.customMetrics ++ MemoryEngine.customMetrics ++
      SpillingEngine.customMetrics

  override def supportedInstanceMetrics: Seq[StateStoreInstanceMetric] = Nil

  // Spark's state data source

  /** Every handle is a snapshot, so there is nothing to replay: the end version is loaded as it is. */
  override def replayStateFromSnapshot(
      snapshotVersion: Long,
      endVersion: Long,
      readOnly: Boolean,
      snapshotId: Option[String],
      endId: Option[String]): StateStore = {
    if (snapshotVersion > 0) {
      snapshotId.foreach(versions.read(snapshotVersion, _))
    }
    open(endVersion, endId, readOnly, loadEmpty = false)
  }

  override def getStateStoreChangeDataReader(
      startVersion: Long,
      endVersion: Long,
      familyName: Option[String],
      endId: Option[String]): StateStoreChangeDataReader = {
    val id = endId.getOrElse(throw SparkckptErrors.noCheckpointId(storeId.toString, endVersion))
    new ChangeFeed(storeId, storage, versions, storeConf, startVersion, endVersion, id,
      family(familyName.getOrElse(StateStore.DEFAULT_COL_FAMILY_NAME)))
  }
}
