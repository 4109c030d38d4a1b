package org.apache.spark.sql.sparkckpt.transfer

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.unsafe.Platform

/**
 * One value of one key on its way from the source to the target, as bytes: Spark shuffles byte arrays
 * without Java serialization. `position` counts the values of a key that has several.
 */
object StateRecord {
  private val FamilyAt = 0
  private val PositionAt = 4
  private val KeyLengthAt = 12
  private val KeyAt = 16

  def pack(family: Int, position: Long, key: UnsafeRow, value: UnsafeRow): Array[Byte] = {
    val record = new Array[Byte](KeyAt + key.getSizeInBytes + value.getSizeInBytes)
    putInt(record, FamilyAt, family)
    Platform.putLong(record, at(PositionAt), position)
    putInt(record, KeyLengthAt, key.getSizeInBytes)
    key.writeToMemory(record, at(KeyAt))
    value.writeToMemory(record, at(KeyAt + key.getSizeInBytes))
    record
  }

  def family(record: Array[Byte]): Int = getInt(record, FamilyAt)

  def position(record: Array[Byte]): Long = Platform.getLong(record, at(PositionAt))

  def pointKey(record: Array[Byte], row: UnsafeRow): Unit =
    row.pointTo(record, at(KeyAt), keyLength(record))

  def pointValue(record: Array[Byte], row: UnsafeRow): Unit = {
    val start = KeyAt + keyLength(record)
    row.pointTo(record, at(start), record.length - start)
  }

  private def keyLength(record: Array[Byte]): Int = getInt(record, KeyLengthAt)

  private def at(offset: Int): Long = Platform.BYTE_ARRAY_OFFSET + offset
  private def putInt(record: Array[Byte], offset: Int, value: Int): Unit =
    Platform.putInt(record, at(offset), value)
  private def getInt(record: Array[Byte], offset: Int): Int = Platform.getInt(record, at(offset))
}
