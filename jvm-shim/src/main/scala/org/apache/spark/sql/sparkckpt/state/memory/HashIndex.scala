package org.apache.spark.sql.sparkckpt.state.memory

import org.apache.spark.unsafe.Platform
import org.apache.spark.unsafe.array.ByteArrayMethods

/**
 * An open hash table of addresses, 8 bytes a key at best: 24 bits of the hash, by which most other keys
 * are told apart unread, and 40 bits of the address. Removal closes the gap it leaves, so the table
 * does not fill up with marks of what was there.
 */
private[memory] final class HashIndex(records: RecordPages, budget: MemoryBudget)
  extends RecordIndex {
  import HashIndex._

  private var slots = allocate(FirstSlots)
  private var mask = slots.length - 1
  private var count = 0
  private var openScans = 0
  @volatile private var scanRound = 0L
  /** Written only so that the looks ahead of `insert` are not optimized away. */
  private[memory] var looked = 0L
  /** An open scan looks at `slots`. */
  private var shared = false

  override def size: Long = count

  override def find(hash: Int, key: AnyRef, offset: Long, length: Int): Long =
    slots(slotOf(hash, key, offset, length)) & AddressMask

  override def current(address: Long): Long = slots(slotOf(address)) & AddressMask

  override def put(address: Long): Long = {
    unshare()
    if (count >= slots.length / 4 * 3) grow(2L * slots.length)
    val at = slotOf(address)
    val old = slots(at) & AddressMask
    slots(at) = slot(records.hash(address), address)
    if (old == 0) count += 1
    old
  }

  override def remove(address: Long): Long = {
    val at = slotOf(address)
    val old = slots(at) & AddressMask
    if (old != 0) {
      unshare()
      closeGap(at)
      count -= 1
    }
    old
  }

  private def slotOf(address: Long): Int = slotOf(records.hash(address), records.page(address),
    Platform.BYTE_ARRAY_OFFSET + records.keyStart(address), records.keyLength(address))

  /** The slot that has the key, or the empty one where it would go. */
  private def slotOf(hash: Int, key: AnyRef, offset: Long, length: Int): Int = {
    val tag = hash >>> TagShift
    var at = home(hash)
    while (true) {
      val slot = slots(at)
      if (slot == 0) return at
      if ((slot >>> AddressBits).toInt == tag) {
        val address = slot & AddressMask
        if (records.keyLength(address) == length && ByteArrayMethods.arrayEquals(
            records.page(address), Platform.BYTE_ARRAY_OFFSET + records.keyStart(address),
            key, offset, length)) return at
      }
      at = (at + 1) & mask
    }
    at
  }

  private def home(hash: Int): Int = hash & mask

  private def slot(hash: Int, address: Long): Long =
    ((hash >>> TagShift).toLong << AddressBits) | address

  /** Moves later entries up that would not be found any more behind an empty slot. */
  private def closeGap(removed: Int): Unit = {
    var gap = removed
    var at = (gap + 1) & mask
    while (slots(at) != 0) {
      val wanted = home(records.hash(slots(at) & AddressMask))
      if (((at - wanted) & mask) >= ((at - gap) & mask)) {
        slots(gap) = slots(at)
        gap = at
      }
      at = (at + 1) & mask
    }
    slots(gap) = 0
  }

  private def reserve(keys: Long): Unit = {
    val needed = java.lang.Long.highestOneBit(math.max(keys, 1) * 4 / 3) * 2
    if (needed > slots.length) grow(needed)
  }

  private def grow(length: Long): Unit = {
    require(length <= MaxSlots, s"a store cannot hold more than ${MaxSlots / 4 * 3} keys in memory")
    val old = slots
    slots = allocate(length.toInt)
    mask = slots.length - 1
    shared = false
    var i = 0
    while (i < old.length) {
      if (old(i) != 0) {
        val address = old(i) & AddressMask
        insert(records.hash(address), address)
      }
      i += 1
    }
    budget.release(8L * old.length)
  }

  /** Of a key that has no slot yet. */
  private def insert(hash: Int, address: Long): Unit = {
    var at = home(hash)
    while (slots(at) != 0) at = (at + 1) & mask
    slots(at) = slot(hash, address)
  }

  override def build(keys: Long): Unit = {
    require(count == 0, "the index is not empty")
    reserve(keys)
    val addresses = new Array[Long](RunLength)
    val hashes = new Array[Int](RunLength)
    var length = 0
    records.foreach { address =>
      addresses(length) = address
      hashes(length) = records.hash(address)
      length += 1
      if (length == RunLength) {
        insert(addresses, hashes, length)
        length = 0
      }
    }
    insert(addresses, hashes, length)
    count = keys.toInt
  }

  /**
   * Of a run of keys that have no slots yet. Their places are all looked at before the first is taken:
   * with nothing to be decided in between, the processor fetches them from memory side by side.
   */
  private def insert(addresses: Array[Long], hashes: Array[Int], length: Int): Unit = {
    var seen = 0L
    var i = 0
    while (i < length) {
      seen |= slots(home(hashes(i)))
      i += 1
    }
    looked = seen
    i = 0
    while (i < length) {
      insert(hashes(i), addresses(i))
      i += 1
    }
  }

  private def unshare(): Unit = if (shared) {
    slots = slots.clone()
    shared = false
  }

  private def allocate(length: Int): Array[Long] = {
    budget.reserve(8L * length)
    new Array[Long](length)
  }

  override def scan(): RecordScan = new RecordScan {
    private val seen = slots
    private var at = -1
    private val round = scanRound
    private var open = true
    shared = true
    openScans += 1

    override def address: Long = seen(at) & AddressMask

    override def advance(): Boolean = {
      if (open && round != scanRound) throw RecordScan.ended
      at += 1
      while (at < seen.length && seen(at) == 0) at += 1
      if (at == seen.length) close()
      at < seen.length
    }

    override def close(): Unit = if (open) {
      open = false
      at = seen.length
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

  override def close(): Unit = budget.release(8L * slots.length)
}

private object HashIndex {
  private val FirstSlots = 16
  private val RunLength = 64
  private val MaxSlots = 1L << 30
  private val AddressBits = 40
  private val AddressMask = (1L << AddressBits) - 1
  private val TagShift = 8
}
