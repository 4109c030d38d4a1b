package org.apache.spark.sql.sparkckpt.state

import org.apache.spark.{SparkEnv, TaskContext}
import org.apache.spark.internal.config.SHUFFLE_SPILL_NUM_ELEMENTS_FORCE_SPILL_THRESHOLD
import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.sparkckpt.SparkckptErrors
import org.apache.spark.sql.sparkckpt.format.{ChangeCursor, StateOp}
import org.apache.spark.unsafe.UnsafeAlignedOffset
import org.apache.spark.util.collection.unsafe.sort.{PrefixComparators, RecordComparator, UnsafeExternalSorter, UnsafeSorterIterator}

/**
 * The changes a task made to one column family, in the order in which it made them. They live in
 * Spark's own external sorter: counted as the task's memory and spilled to local disk when it is
 * short, so that a batch that evicts millions of keys costs disk, not an executor.
 *
 * Sorting needs no comparison of keys: the 64-bit prefix is the key group (15 bits), the sequence
 * number of the change (46) and the operation (2).
 *
 * @param newestFirst the sequence is counted down: who wants the last change of each key reads it
 *                    before the ones that it overrides, and need keep none of them
 */
final class ChangeBuffer(task: TaskContext, numFields: Int, newestFirst: Boolean) {
  import ChangeBuffer._

  private val sorter = {
    if (task == null) throw SparkckptErrors.noTask()
    val env = SparkEnv.get
    UnsafeExternalSorter.create(
      task.taskMemoryManager(), env.blockManager, env.serializerManager, task,
      () => PrefixesDiffer,
      PrefixComparators.LONG, InitialSize, PageBytes, Int.MaxValue, Long.MaxValue,
      SpillMergeFactor, true)
  }
  private val maxRows = SparkEnv.get.conf.get(SHUFFLE_SPILL_NUM_ELEMENTS_FORCE_SPILL_THRESHOLD)
  private var sequence = 0L
  private var spilledUpTo = 0L

  def size: Long = sequence

  /** `value` is null for a delete and for the empty list. */
  def add(keyGroup: Int, op: Byte, key: UnsafeRow, value: UnsafeRow): Unit = {
    val kind = if (value == null && op == StateOp.Put) EmptyPut else op
    val place = if (newestFirst) MaxSequence - sequence else sequence
    val prefix = (keyGroup.toLong << KeyGroupShift) | (place << OpBits) | kind
    sequence += 1
    if (sorter.getUsed > MaxBytes || sequence - spilledUpTo > maxRows) {
      // The sorter does not look at its thresholds for records of key and value, and no other
      // consumer of the task's memory can make it spill while rows are added.
      spill()
    }
    if (value == null) {
      sorter.insertKVRecord(key.getBaseObject, key.getBaseOffset, key.getSizeInBytes,
        key.getBaseObject, key.getBaseOffset, 0, prefix, false)
    } else {
      sorter.insertKVRecord(key.getBaseObject, key.getBaseOffset, key.getSizeInBytes,
        value.getBaseObject, value.getBaseOffset, value.getSizeInBytes, prefix, false)
    }
  }

  def usedBytes: Long = sorter.getUsed

  /** Whether there was something in memory to be spilled. */
  def spill(): Boolean = {
    val before = sorter.getUsed
    sorter.spill()
    spilledUpTo = sequence
    sorter.getUsed < before
  }

  /** The changes by key group, each group in the order of the calls or in the reverse one. */
  def sorted(valueFields: Int): Cursor = new Cursor(sorter.getSortedIterator, numFields, valueFields)

  def spilledBytes: Long = sorter.getSpillSize

  def free(): Unit = sorter.cleanupResources()
}

object ChangeBuffer {
  private val OpBits = 2
  private val KeyGroupShift = 48
  private val MaxSequence = (1L << (KeyGroupShift - OpBits)) - 1
  private val EmptyPut: Byte = 3
  private val InitialSize = 1024
  private val PageBytes = 1L << 20
  private val MaxBytes = 64L << 20
  private val SpillMergeFactor = 128

  /** Required by the sorter to sort at all; no two prefixes are equal, so it decides nothing. */
  private object PrefixesDiffer extends RecordComparator {
    override def compare(
        a: Object, aOffset: Long, aLength: Int, b: Object, bOffset: Long, bLength: Int): Int = 0
  }

  /** A forward cursor; the rows it shows are valid until it moves. */
  final class Cursor(iterator: UnsafeSorterIterator, keyFields: Int, valueFields: Int)
    extends ChangeCursor {
    private val keyRow = new UnsafeRow(keyFields)
    private val valueRow = new UnsafeRow(valueFields)
    private var hasValue = false
    private var prefix = 0L

    override def advance(): Boolean = iterator.hasNext && {
      iterator.loadNext()
      prefix = iterator.getKeyPrefix
      val base = iterator.getBaseObject
      val offset = iterator.getBaseOffset
      val uao = UnsafeAlignedOffset.getUaoSize
      val keyLength = UnsafeAlignedOffset.getSize(base, offset)
      val valueLength = iterator.getRecordLength - keyLength - uao
      keyRow.pointTo(base, offset + uao, keyLength)
      hasValue = !isDelete && !isEmptyPut
      if (hasValue) valueRow.pointTo(base, offset + uao + keyLength, valueLength)
      true
    }

    private def kind: Int = (prefix & 3).toInt
    private def isEmptyPut: Boolean = kind == EmptyPut
    private def isDelete: Boolean = kind == StateOp.Delete

    override def keyGroup: Int = (prefix >>> KeyGroupShift).toInt
    override def op: Byte =
      if (isEmptyPut) StateOp.Put else kind.toByte
    override def key: UnsafeRow = keyRow
    override def value: UnsafeRow = if (hasValue) valueRow else null
  }
}
