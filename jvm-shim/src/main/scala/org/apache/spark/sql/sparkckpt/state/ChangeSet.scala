package org.apache.spark.sql.sparkckpt.state

import scala.collection.mutable

import org.apache.spark.TaskContext
import org.apache.spark.memory.SparkOutOfMemoryError
import org.apache.spark.sql.catalyst.expressions.{UnsafeRow, XXH64}
import org.apache.spark.sql.sparkckpt.{OperatorLayout, SparkckptErrors}
import org.apache.spark.sql.sparkckpt.format._

/**
 * Everything a task changes in a store between opening and committing it. Each key is checked against
 * the partition's key-group range as it comes: rows that were not shuffled by key group never reach a
 * file.
 */
final class ChangeSet(store: String, partition: Int, layout: OperatorLayout, task: TaskContext) {
  private val range = layout.rangeOf(partition)
  private val changes = mutable.LinkedHashMap.empty[String, FamilyChanges]
  private var digest = 0L
  private var rows = 0L

  def changedRows: Long = rows
  def changeDigest: String = f"$digest%016x"
  def spilledBytes: Long = changes.values.map(_.buffer.spilledBytes).sum

  def families: Iterable[ColumnFamily] = changes.values.map(_.family)

  private final class FamilyChanges(val family: ColumnFamily, extractor: KeyGroupExtractor) {
    val buffer =
      new ChangeBuffer(task, family.keySchema.length, newestFirst = !family.multiValued)

    def add(op: Byte, key: UnsafeRow, value: UnsafeRow): Unit = {
      val keyGroup = extractor.keyGroupOf(key)
      if (!range.contains(keyGroup)) {
        throw SparkckptErrors.foreignKeyGroup(store, keyGroup, range)
      }
      buffer.add(keyGroup, op, key, value)
    }
  }

  /** `value` is null for a delete and for the empty list. */
  def add(
      family: ColumnFamily,
      extractor: => KeyGroupExtractor,
      op: Byte,
      key: UnsafeRow,
      value: UnsafeRow): Unit =
    try {
      changes.getOrElseUpdate(family.name, new FamilyChanges(family, extractor)).add(op, key, value)
    } catch {
      // Spark can have the buffer that asks for memory spill itself, and none of the others.
      case _: SparkOutOfMemoryError if spillOther(family) => add(family, extractor, op, key, value)
    }

  private def spillOther(than: ColumnFamily): Boolean =
    changes.values.filter(_.family.name != than.name).map(_.buffer)
      .maxByOption(_.usedBytes).exists(_.spill())

  def drop(family: String): Unit = changes.remove(family).foreach(_.buffer.free())

  /**
   * Writes the family's changes in ascending key groups. A single-valued family is reduced to the
   * last change of each key; the changes of a multi-valued one are a history, kept as it was.
   */
  def write(family: ColumnFamily, writer: StateFileWriter): Unit = {
    val cursor = changes(family.name).buffer.sorted(family.valueSchema.length)
    def emit(keyGroup: Int, op: Byte, key: UnsafeRow, value: UnsafeRow): Unit = {
      digest += hash(op, key, value)
      rows += 1
      writer.write(keyGroup, op, key, value)
    }
    if (family.multiValued) {
      while (cursor.advance()) emit(cursor.keyGroup, cursor.op, cursor.key, cursor.value)
    } else {
      val seen = new KeySet
      var keyGroup = -1
      while (cursor.advance()) {
        if (cursor.keyGroup != keyGroup) {
          keyGroup = cursor.keyGroup
          seen.clear()
        }
        if (seen.add(cursor.key)) emit(keyGroup, cursor.op, cursor.key, cursor.value)
      }
    }
  }

  private def hash(op: Byte, key: UnsafeRow, value: UnsafeRow): Long = {
    val keyHash =
      XXH64.hashUnsafeBytes(key.getBaseObject, key.getBaseOffset, key.getSizeInBytes, op)
    if (value == null) keyHash
    else XXH64.hashUnsafeBytes(
      value.getBaseObject, value.getBaseOffset, value.getSizeInBytes, keyHash)
  }

  def free(): Unit = {
    changes.values.foreach(_.buffer.free())
    changes.clear()
  }
}
