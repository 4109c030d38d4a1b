package org.apache.spark.sql.sparkckpt.state.memory

import java.util.Arrays

/**
 * Addresses in the order of their keys' bytes, unsigned, in blocks that are found by their first keys.
 * A block that a scan may look at is copied before it is changed, and so is the list of blocks.
 */
private[memory] final class OrderedIndex(records: RecordPages, budget: MemoryBudget)
  extends RecordIndex {
  import OrderedIndex._

  private final class Block(val addresses: Array[Long], var length: Int, val epoch: Long)

  private var epoch = 0L
  private var openScans = 0
  @volatile private var scanRound = 0L
  private var shared = false
  private var blocks: Array[Block] = Array(newBlock())
  private var blockCount = 1
  private var count = 0L

  override def size: Long = count

  override def find(hash: Int, key: AnyRef, offset: Long, length: Int): Long =
    find(key.asInstanceOf[Array[Byte]], 0, length)

  override def current(address: Long): Long =
    find(records.page(address), records.keyStart(address), records.keyLength(address))

  private def find(key: Array[Byte], start: Int, length: Int): Long = {
    val block = blocks(blockOf(key, start, length))
    val at = placeIn(block, key, start, length)
    if (at >= 0) block.addresses(at) else 0
  }

  override def put(address: Long): Long = {
    val key = records.page(address)
    val start = records.keyStart(address)
    val length = records.keyLength(address)
    val number = blockOf(key, start, length)
    val at = placeIn(blocks(number), key, start, length)
    if (at >= 0) {
      val block = writable(number)
      val old = block.addresses(at)
      block.addresses(at) = address
      old
    } else {
      insert(number, -at - 1, address)
      count += 1
      0
    }
  }

  override def remove(address: Long): Long = {
    val key = records.page(address)
    val start = records.keyStart(address)
    val length = records.keyLength(address)
    val number = blockOf(key, start, length)
    val at = placeIn(blocks(number), key, start, length)
    if (at < 0) 0
    else {
      val block = writable(number)
      val old = block.addresses(at)
      block.length -= 1
      System.arraycopy(block.addresses, at + 1, block.addresses, at, block.length - at)
      if (block.length == 0 && blockCount > 1) removeBlock(number)
      count -= 1
      old
    }
  }

  /** The last block that does not begin behind the key; the first one if all do. */
  private def blockOf(key: Array[Byte], start: Int, length: Int): Int = {
    var low = 1
    var high = blockCount
    while (low < high) {
      val middle = (low + high) >>> 1
      if (compare(blocks(middle).addresses(0), key, start, length) <= 0) low = middle + 1
      else high = middle
    }
    low - 1
  }

  /** Where the key is, or -1 - where it would go. */
  private def placeIn(block: Block, key: Array[Byte], start: Int, length: Int): Int = {
    var low = 0
    var high = block.length - 1
    while (low <= high) {
      val middle = (low + high) >>> 1
      val order = compare(block.addresses(middle), key, start, length)
      if (order == 0) return middle
      if (order < 0) low = middle + 1 else high = middle - 1
    }
    -1 - low
  }

  private def compare(address: Long, key: Array[Byte], start: Int, length: Int): Int = {
    val from = records.keyStart(address)
    Arrays.compareUnsigned(records.page(address), from, from + records.keyLength(address),
      key, start, start + length)
  }

  private def insert(number: Int, at: Int, address: Long): Unit = {
    val block = blocks(number)
    if (block.length < BlockLength) insertInto(writable(number), at, address)
    else {
      // Keys that come in ascending order leave full blocks behind, and not half full ones.
      val keep = if (at == BlockLength && number == blockCount - 1) BlockLength else BlockLength / 2
      val first = writable(number)
      val second = newBlock()
      second.length = BlockLength - keep
      System.arraycopy(first.addresses, keep, second.addresses, 0, second.length)
      first.length = keep
      insertBlock(number + 1, second)
      if (at > keep || keep == BlockLength) insertInto(second, at - keep, address)
      else insertInto(first, at, address)
    }
  }

  private def insertInto(block: Block, at: Int, address: Long): Unit = {
    System.arraycopy(block.addresses, at, block.addresses, at + 1, block.length - at)
    block.addresses(at) = address
    block.length += 1
  }

  private def newBlock(): Block = {
    budget.reserve(BlockBytes)
    new Block(new Array[Long](BlockLength), 0, epoch)
  }

  private def writable(number: Int): Block = {
    val block = blocks(number)
    if (openScans == 0 || block.epoch == epoch) block
    else {
      unshare()
      blocks(number) = new Block(block.addresses.clone(), block.length, epoch)
      blocks(number)
    }
  }

  private def unshare(): Unit = if (shared) {
    blocks = blocks.clone()
    shared = false
  }

  private def insertBlock(number: Int, block: Block): Unit = {
    unshare()
    if (blockCount == blocks.length) blocks = Arrays.copyOf(blocks, 2 * blockCount)
    System.arraycopy(blocks, number, blocks, number + 1, blockCount - number)
    blocks(number) = block
    blockCount += 1
  }

  private def removeBlock(number: Int): Unit = {
    unshare()
    blockCount -= 1
    System.arraycopy(blocks, number + 1, blocks, number, blockCount - number)
    blocks(blockCount) = null
    budget.release(BlockBytes)
  }

  override def build(keys: Long): Unit = records.foreach(address => put(address))

  override def scan(): RecordScan = scan(None, _ => true)

  /** From the first key that is not below `start`, for as long as keys are in the range. */
  def scan(start: Option[Array[Byte]], isInRange: Long => Boolean): RecordScan = new RecordScan {
    private val seen = blocks
    private val seenCount = blockCount
    private var number = start.fold(0)(key => blockOf(key, 0, key.length))
    private var at = start.fold(0) { key =>
      val place = placeIn(seen(number), key, 0, key.length)
      if (place >= 0) place else -1 - place
    } - 1
    private val round = scanRound
    private var open = true
    shared = true
    epoch += 1
    openScans += 1

    override def address: Long = seen(number).addresses(at)

    override def advance(): Boolean = open && {
      if (round != scanRound) throw RecordScan.ended
      at += 1
      while (number < seenCount && at >= seen(number).length) {
        number += 1
        at = 0
      }
      if (number < seenCount && isInRange(address)) true
      else {
        close()
        false
      }
    }

    override def close(): Unit = if (open) {
      open = false
      if (round == scanRound) {
        openScans -= 1
        if (openScans == 0) shared = false
      }
    }
  }

  override def endScans(): Unit = {
    scanRound += 1
    openScans = 0
    shared = false
  }

  /** Whether the record's key is below `end`. */
  def isBelow(address: Long, end: Array[Byte]): Boolean = compare(address, end, 0, end.length) < 0

  def hasPrefix(address: Long, prefix: Array[Byte]): Boolean = {
    val from = records.keyStart(address)
    records.keyLength(address) >= prefix.length &&
      Arrays.equals(records.page(address), from, from + prefix.length, prefix, 0, prefix.length)
  }

  override def close(): Unit = budget.release(BlockBytes * blockCount)
}

private object OrderedIndex {
  private val BlockLength = 256
  private val BlockBytes = 8L * BlockLength
}
