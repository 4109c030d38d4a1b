package org.apache.spark.sql.sparkckpt

import java.util.{Base64, UUID}

import scala.jdk.CollectionConverters._

import org.json4s._
import org.json4s.jackson.{JsonMethods, Serialization}

import org.apache.spark.{SparkEnv, TaskContext}
import org.apache.spark.api.java.JavaSparkContext
import org.apache.spark.internal.config.SHUFFLE_SPILL_NUM_ELEMENTS_FORCE_SPILL_THRESHOLD
import org.apache.spark.memory.{MemoryConsumer, MemoryMode}
import org.apache.spark.sql.catalyst.expressions.{GenericInternalRow, UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.sparkckpt.format.StateFileRef
import org.apache.spark.sql.sparkckpt.state._
import org.apache.spark.sql.types._
import org.apache.spark.unsafe.types.UTF8String

/**
 * Drives one provider from Python, a version at a time, inside real tasks of a local Spark. It has
 * three column families: "single", "multi" (a list per key) and "ordered" (scanned by range).
 */
class ProviderHarness(sc: JavaSparkContext, directory: String, confs: java.util.Map[String, String]) {
  import ProviderHarness._

  private val operatorId = 0L
  private var provider: KeyGroupStateStoreProvider = _
  private var partition = 0
  private var parallelism = 1
  private var spilled = 0L
  private var lastMetrics = Map.empty[String, Long]
  private var lastKeys = 0L

  def spilledBytes: Long = spilled

  /** Of the last commit. */
  def metric(name: String): Long = lastMetrics(name)
  def keys: Long = lastKeys

  /** What Spark takes for used by cached data. */
  def storageMemory: Long = SparkEnv.get.memoryManager.onHeapStorageMemoryUsed

  /** What the policy merges of these files, as JSON [from, until]; `files` are [length, level, base]. */
  def mergePlan(maxDeltas: Int, baseRatio: Double, files: String): String = {
    implicit val formats: Formats = DefaultFormats
    val refs = JsonMethods.parse(files).extract[Seq[Seq[Long]]].map { file =>
      StateFileRef("a file", 0, file.head, 1, 0, 1, 0, 0, 1, 1, file(1).toInt, file(2) == 1)
    }
    MergePolicy(maxDeltas, baseRatio).plan(refs).map(p => s"[${p.from}, ${p.until}]").orNull
  }

  /** From now on it drives the provider of another partition. */
  def restartAs(partition: Int, parallelism: Int): Unit = {
    this.partition = partition
    this.parallelism = parallelism
    restart()
  }

  def restart(): Unit = {
    close()
    val sqlConf = new SQLConf
    confs.asScala.foreach { case (k, v) => sqlConf.setConfString(k, v) }
    sqlConf.setConf(SQLConf.STATE_STORE_CHECKPOINT_FORMAT_VERSION, 2)
    val layout = OperatorLayout(directory, "transformWithStateExec", parallelism, 128, keyed = true, None)
    sqlConf.setConfString(OperatorLayout.confKey(operatorId), layout.json)
    val hadoopConf = sc.sc.hadoopConfiguration
    hadoopConf.set(StreamExecution.RUN_ID_KEY, UUID.randomUUID().toString)
    provider = new KeyGroupStateStoreProvider
    provider.init(StateStoreId(directory, operatorId, partition), keySchema, valueSchema,
      NoPrefixKeyStateEncoderSpec(keySchema), useColumnFamilies = true, new StateStoreConf(sqlConf),
      hadoopConf, false, None)
  }

  def close(): Unit = if (provider != null) {
    provider.close()
    provider = null
  }

  /** Change sets are spilled to disk every few rows, as when a task is short of memory. */
  def spillEvery(rows: Int): Unit =
    SparkEnv.get.conf.set(SHUFFLE_SPILL_NUM_ELEMENTS_FORCE_SPILL_THRESHOLD, rows)

  def maintain(): Unit = provider.doMaintenance()

  /**
   * Opens (version, id), applies `operations` (JSON arrays [name, family, key, values...]) and ends
   * with "commit" or "abort". Returns the new checkpoint id, or null.
   */
  def run(version: Long, id: String, upgrade: Boolean, operations: String, end: String): String =
    inTask { () =>
      val store = if (upgrade) {
        val read = provider.getReadStore(version, Option(id)).asInstanceOf[StateStore]
        register(read)
        provider.upgradeReadStoreToWriteStore(read, version, Option(id), false)
      } else {
        provider.getStore(version, Option(id), false, false)
      }
      register(store)
      JsonMethods.parse(operations).asInstanceOf[JArray].arr.foreach(apply(store, _))
      if (end == "commit") {
        store.commit()
        lastMetrics = store.metrics.customMetrics.map { case (metric, value) => metric.name -> value }
        lastKeys = store.metrics.numKeys
        spilled += metric(StateMetrics.SpilledBytes.name)
        store.getStateStoreCheckpointInfo().stateStoreCkptId.get
      } else {
        store.abort()
        null
      }
    }

  /** All rows of a version: JSON object family -> array of [key, values...]. */
  def dump(version: Long, id: String): String = inTask { () =>
    val store = provider.getReadStore(version, Option(id)).asInstanceOf[StateStore]
    register(store)
    val rows = Map(
      "single" -> store.iterator("single").map(p => Seq[Any](p.key.getLong(0), text(p.value))).toSeq,
      "multi" -> store.iteratorWithMultiValues("multi").map(_.key.getLong(0)).toSeq.distinct.map { k =>
        Seq[Any](k) ++ store.valuesIterator(key(k), "multi").map(text)
      },
      "ordered" -> store.iterator("ordered").map(p => Seq[Any](p.key.getLong(0), text(p.value))).toSeq,
      "operator" -> operatorStateOf(store).operatorState.map(blob =>
        Seq[Any](0, Base64.getEncoder.encodeToString(blob))).toSeq)
    store.release()
    Serialization.write(rows)(DefaultFormats)
  }

  private def operatorStateOf(store: StateStore): OperatorStateStore = OperatorStateStore.of(store).get

  private def register(store: StateStore): Unit = {
    store.createColFamilyIfAbsent(
      "single", keySchema, valueSchema, NoPrefixKeyStateEncoderSpec(keySchema), false, false)
    store.createColFamilyIfAbsent(
      "multi", keySchema, valueSchema, NoPrefixKeyStateEncoderSpec(keySchema), true, false)
    store.createColFamilyIfAbsent("ordered", keySchema, valueSchema,
      RangeKeyScanStateEncoderSpec(keySchema, Seq(0)), false, false)
  }

  private def apply(store: StateStore, operation: JValue): Unit = {
    val JArray(JString(name) :: JString(family) :: JInt(k) :: rest) = operation: @unchecked
    val row = key(k.toLong)
    def values = rest.collect { case JString(v) => value(v) }.toArray
    name match {
      case "put" => store.put(row, values.head, family)
      case "putList" => store.putList(row, values, family)
      case "merge" => store.merge(row, values.head, family)
      case "mergeList" => store.mergeList(row, values, family)
      case "remove" => store.remove(row, family)
      case "deleteRange" =>
        val JInt(end) = rest.head: @unchecked
        store.deleteRange(row, key(end.toLong), family)
      case "hoard" => hoard(TaskContext.get())
      case "turn" => turn(store, family, k.toLong)
      case "setOperatorState" =>
        val JString(blob) = rest.head: @unchecked
        operatorStateOf(store).setOperatorState(Base64.getDecoder.decode(blob))
    }
  }

  /** Takes what there is of the task's memory, and gives none of it back before its end. */
  private def hoard(task: TaskContext): Unit = {
    val hoarder = new MemoryConsumer(task.taskMemoryManager(), MemoryMode.ON_HEAP) {
      override def spill(size: Long, trigger: MemoryConsumer): Long = 0
    }
    val taken = hoarder.acquireMemory(1L << 40)
    task.addTaskCompletionListener[Unit](_ => hoarder.freeMemory(taken))
  }

  /** Changes everything that it iterates over: keys that can be divided go, the values of others turn. */
  private def turn(store: StateStore, family: String, divisor: Long): Unit = {
    val rows = store.iterator(family)
    rows.foreach { pair =>
      val k = pair.key.getLong(0)
      if (k % divisor == 0) store.remove(key(k), family)
      else store.put(key(k), value(text(pair.value).reverse), family)
    }
    rows.close()
  }

  /** In a real task, so that task memory and task listeners are the real ones. */
  private def inTask(body: () => String): String = ProviderHarness.lock.synchronized {
    ProviderHarness.body = body
    sc.sc.runJob(sc.sc.parallelize(Seq(0), 1), (_: Iterator[Int]) => ProviderHarness.body()).head
  }
}

object ProviderHarness {
  val keySchema: StructType = new StructType().add("k", LongType)
  val valueSchema: StructType = new StructType().add("v", StringType)

  /** A task is deserialized, also in local mode; what it runs is handed over here. */
  @volatile private var body: () => String = _
  private val lock = new Object

  private lazy val toKey = UnsafeProjection.create(keySchema)
  private lazy val toValue = UnsafeProjection.create(valueSchema)

  private def key(k: Long): UnsafeRow = toKey(new GenericInternalRow(Array[Any](k))).copy()
  private def value(v: String): UnsafeRow =
    toValue(new GenericInternalRow(Array[Any](UTF8String.fromString(v)))).copy()
  private def text(row: UnsafeRow): String = row.getUTF8String(0).toString
}
