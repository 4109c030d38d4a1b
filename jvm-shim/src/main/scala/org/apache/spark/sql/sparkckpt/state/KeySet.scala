package org.apache.spark.sql.sparkckpt.state

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.unsafe.Platform
import org.apache.spark.unsafe.array.ByteArrayMethods

/**
 * The keys seen in one key group, as bytes in one array: a load or a commit asks it for every row,
 * and an object for each key would be most of what the garbage collector has to do then.
 */
private[state] final class KeySet {
  import KeySet._

  /** The hash, and behind it the place of the key in `bytes`; 0 where there is none. */
  private var slots = new Array[Long](FirstSlots)
  private var count = 0
  private var bytes = new Array[Byte](FirstBytes)
  private var used = FirstPlace

  /** Whether the key was not in the set. */
  def add(key: UnsafeRow): Boolean = {
    val hash = key.hashCode
    val slot = find(key, hash)
    val isNew = slots(slot) == 0
    if (isNew) {
      slots(slot) = (hash.toLong << 32) | append(key)
      count += 1
      if (count > slots.length / 2) grow()
    }
    isNew
  }

  def contains(key: UnsafeRow): Boolean = count > 0 && slots(find(key, key.hashCode)) != 0

  /** What one large key group has needed is not kept, and cleared, for all that follow. */
  def clear(): Unit = if (count > 0) {
    val needed = math.max(FirstSlots, 4 * Integer.highestOneBit(count))
    if (slots.length > 2 * needed) slots = new Array[Long](needed)
    else java.util.Arrays.fill(slots, 0)
    if (bytes.length / 4 > math.max(FirstBytes, used)) bytes = new Array[Byte](FirstBytes)
    count = 0
    used = FirstPlace
  }

  /** The slot that has the key, or the empty one where it would go. */
  private def find(key: UnsafeRow, hash: Int): Int = {
    val mask = slots.length - 1
    var at = spread(hash) & mask
    while (slots(at) != 0 && !((slots(at) >>> 32).toInt == hash && isAt(slots(at).toInt, key))) {
      at = (at + 1) & mask
    }
    at
  }

  /** Keys of one group may have the low bits of a hash in common. */
  private def spread(hash: Int): Int = hash ^ (hash >>> 15)

  private def isAt(place: Int, key: UnsafeRow): Boolean =
    Platform.getInt(bytes, Start + place) == key.getSizeInBytes && ByteArrayMethods.arrayEquals(
      bytes, Start + place + LengthBytes, key.getBaseObject, key.getBaseOffset, key.getSizeInBytes)

  private def append(key: UnsafeRow): Int = {
    val place = used
    val end = Math.addExact(place, LengthBytes + key.getSizeInBytes)
    if (end > bytes.length) bytes = java.util.Arrays.copyOf(bytes, Math.addExact(end, end / 2))
    Platform.putInt(bytes, Start + place, key.getSizeInBytes)
    key.writeToMemory(bytes, Start + place + LengthBytes)
    used = end
    place
  }

  private def grow(): Unit = {
    val old = slots
    slots = new Array[Long](2 * old.length)
    val mask = slots.length - 1
    var i = 0
    while (i < old.length) {
      if (old(i) != 0) {
        var at = spread((old(i) >>> 32).toInt) & mask
        while (slots(at) != 0) at = (at + 1) & mask
        slots(at) = old(i)
      }
      i += 1
    }
  }
}

private object KeySet {
  private val Start: Long = Platform.BYTE_ARRAY_OFFSET
  private val LengthBytes = 8
  private val FirstSlots = 64
  private val FirstBytes = 4096
  /** Not 0, so that no slot that is taken is. */
  private val FirstPlace = 8
}
