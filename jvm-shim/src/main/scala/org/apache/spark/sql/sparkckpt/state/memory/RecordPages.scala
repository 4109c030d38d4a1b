package org.apache.spark.sql.sparkckpt.state.memory

import org.apache.spark.unsafe.Platform

/**
 * Keys and values as bytes in pages: no object per row, so a million of them are a few hundred objects
 * to the garbage collector. A record is never changed after it has been written. Rows handed out stay
 * valid, and an older version of the state is nothing but older addresses.
 *
 * An address is the number of a page and a place in it, in units of 8 bytes; none is 0. Pages are well
 * below half of the smallest region of Java's G1, which gives larger arrays regions of their own.
 *
 * @param linked records have room for the address of the record before them in a list
 */
private[memory] final class RecordPages(linked: Boolean, budget: MemoryBudget) {
  import RecordPages._

  private val headerBytes = if (linked) LinkedHeaderBytes else HeaderBytes
  private var pages = new Array[Array[Byte]](4)
  private var used = new Array[Int](4)
  private var live = new Array[Int](4)
  private var pageCount = 0
  private var current = -1
  private val vacant = scala.collection.mutable.ArrayDeque.empty[Int]

  private var heldBytes = 0L
  private var liveTotal = 0L

  def bytes: Long = heldBytes
  def isEmpty: Boolean = heldBytes == 0
  def liveBytes: Long = liveTotal

  def page(address: Long): Array[Byte] = pages((address >>> PlaceBits).toInt)

  /** Where the record begins in its page. */
  def start(address: Long): Int = (address & PlaceMask).toInt << 3

  def keyLength(address: Long): Int = int(address, 0)

  /** [[NoValue]] for the empty list. */
  def valueLength(address: Long): Int = int(address, 4)
  def hash(address: Long): Int = int(address, 8)
  def previous(address: Long): Long =
    Platform.getLong(page(address), Platform.BYTE_ARRAY_OFFSET + start(address) + HeaderBytes)

  def keyStart(address: Long): Int = start(address) + headerBytes
  def valueStart(address: Long): Int = keyStart(address) + padded(keyLength(address))

  private def int(address: Long, at: Int): Int =
    Platform.getInt(page(address), Platform.BYTE_ARRAY_OFFSET + start(address) + at)

  /** `valueLength` is [[NoValue]] if there is none. */
  def append(
      hash: Int,
      key: AnyRef,
      keyOffset: Long,
      keyLength: Int,
      value: AnyRef,
      valueOffset: Long,
      valueLength: Int,
      previous: Long): Long = {
    val size = sizeOf(keyLength, valueLength)
    if (current < 0 || size > pages(current).length - used(current)) current = newPage(size)
    val page = pages(current)
    val start = used(current)
    val at = Platform.BYTE_ARRAY_OFFSET + start
    Platform.putInt(page, at, keyLength)
    Platform.putInt(page, at + 4, valueLength)
    Platform.putInt(page, at + 8, hash)
    Platform.putInt(page, at + 12, Live)
    if (linked) Platform.putLong(page, at + HeaderBytes, previous)
    copyBytes(key, keyOffset, page, at + headerBytes, keyLength)
    if (valueLength > 0) {
      copyBytes(value, valueOffset, page, at + headerBytes + padded(keyLength), valueLength)
    }
    used(current) = start + size
    live(current) += size
    liveTotal += size
    (current.toLong << PlaceBits) | (start >>> 3)
  }

  /** A copy of a record, with another one before it. */
  def copy(address: Long, previous: Long): Long = {
    val from = page(address)
    append(hash(address), from, Platform.BYTE_ARRAY_OFFSET + keyStart(address), keyLength(address),
      from, Platform.BYTE_ARRAY_OFFSET + valueStart(address), valueLength(address), previous)
  }

  private def sizeOf(keyLength: Int, valueLength: Int): Int =
    Math.addExact(headerBytes + padded(keyLength), padded(math.max(valueLength, 0)))

  private def newPage(atLeast: Int): Int = {
    val number = vacant.headOption.getOrElse(pageCount)
    val regular = math.min(PageBytes, FirstPageBytes << math.min(pageCount, 16))
    val length = math.max(regular, firstStart(number) + atLeast)
    budget.reserve(length)
    heldBytes += length
    if (vacant.nonEmpty) vacant.removeHead()
    else {
      if (pageCount == pages.length) {
        pages = java.util.Arrays.copyOf(pages, 2 * pageCount)
        used = java.util.Arrays.copyOf(used, 2 * pageCount)
        live = java.util.Arrays.copyOf(live, 2 * pageCount)
      }
      pageCount += 1
    }
    pages(number) = new Array[Byte](length)
    used(number) = firstStart(number)
    live(number) = 0
    number
  }

  /** The very first place of all is left out: its address would be 0. */
  private def firstStart(page: Int): Int = if (page == 0) 8 else 0

  /** The record is not needed any more. Its bytes stay until its page is given back. */
  def free(address: Long): Unit = {
    val size = sizeOf(keyLength(address), valueLength(address))
    live((address >>> PlaceBits).toInt) -= size
    liveTotal -= size
    Platform.putInt(page(address), Platform.BYTE_ARRAY_OFFSET + start(address) + 12, Dead)
  }

  /** Whether dead records outweigh the live ones. */
  def isSparse: Boolean = heldBytes > 2 * liveTotal + PageBytes

  /**
   * Gives the pages back that hold more dead than live records.
   *
   * @param moveOut called for each live record of these pages
   */
  def compact(moveOut: Long => Unit): Unit = budget.giveBack {
    val sparse = (0 until pageCount).filter { number =>
      number != current && pages(number) != null && live(number) < pages(number).length / 2
    }
    sparse.foreach(foreachRecord(_, address => if (int(address, 12) == Live) moveOut(address)))
    dropEmpty()
  }

  /** Visits all records, dead ones included. */
  def foreach(visit: Long => Unit): Unit =
    (0 until pageCount).foreach(number => if (pages(number) != null) foreachRecord(number, visit))

  private def foreachRecord(number: Int, visit: Long => Unit): Unit = {
    var start = firstStart(number)
    val end = used(number)
    while (start < end) {
      val address = (number.toLong << PlaceBits) | (start >>> 3)
      start += sizeOf(keyLength(address), valueLength(address))
      visit(address)
    }
  }

  /** Gives the pages back that hold nothing but dead records. */
  def dropEmpty(): Unit = {
    var number = 0
    while (number < pageCount) {
      if (live(number) == 0 && number != current && pages(number) != null) {
        budget.release(pages(number).length)
        heldBytes -= pages(number).length
        pages(number) = null
        vacant += number
      }
      number += 1
    }
  }

  def close(): Unit = {
    budget.release(heldBytes)
    heldBytes = 0
    liveTotal = 0
    pages = null
  }
}

private[memory] object RecordPages {
  val NoValue: Int = -1

  private val Live = 0
  private val Dead = 1
  private val PageBytes = 256 * 1024
  private val FirstPageBytes = 4 * 1024
  private val PlaceBits = 15
  private val PlaceMask = (1L << PlaceBits) - 1
  private val MostWordsCopied = 8
  /** Lengths of key and value, hash, and whether the record is live. */
  private val HeaderBytes = 16
  private val LinkedHeaderBytes = 24

  def padded(length: Int): Int = (length + 7) & ~7

  /** Most rows are so short that calling the copy costs more than copying. */
  def copyBytes(from: AnyRef, fromOffset: Long, to: AnyRef, toOffset: Long, length: Int): Unit =
    if (length > MostWordsCopied * 8 || (length & 7) != 0) {
      Platform.copyMemory(from, fromOffset, to, toOffset, length)
    } else {
      var i = 0
      while (i < length) {
        Platform.putLong(to, toOffset + i, Platform.getLong(from, fromOffset + i))
        i += 8
      }
    }
}
