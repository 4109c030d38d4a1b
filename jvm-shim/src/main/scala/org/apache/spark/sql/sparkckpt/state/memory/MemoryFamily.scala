package org.apache.spark.sql.sparkckpt.state.memory

import org.apache.spark.sql.catalyst.expressions.UnsafeRow
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.sparkckpt.state.StateFiller
import org.apache.spark.sql.types.StructType
import org.apache.spark.unsafe.Platform
import org.apache.spark.unsafe.hash.Murmur3_x86_32

/**
 * One column family in memory. Where keys are only looked up, they are Spark's row bytes in a hash
 * table. Where they are also scanned by prefix or by range, they are kept in order, in the bytes that
 * Spark's own encoders make of them for RocksDB: so scans see the same order as there.
 *
 * The values of a multi-valued family are records that each name the one before; the index has the last.
 */
private[memory] final class MemoryFamily(
    val name: String,
    keySpec: KeyStateEncoderSpec,
    valueSchema: StructType,
    val multiValued: Boolean,
    val isInternal: Boolean,
    budget: MemoryBudget) extends StateFiller {
  import MemoryFamily._
  import RecordPages.NoValue

  private val keyFields = keySpec.keySchema.length
  private val valueFields = valueSchema.length
  private val records = new RecordPages(linked = multiValued, budget)
  private val encoder: Option[RocksDBKeyStateEncoder] = keySpec match {
    case _: NoPrefixKeyStateEncoderSpec => None
    case _ => Some(RocksDBStateEncoder.getKeyEncoder(
      new UnsafeRowDataEncoder(keySpec, valueSchema), keySpec, useColumnFamilies = true))
  }
  private val ordered: Option[OrderedIndex] = encoder.map(_ => new OrderedIndex(records, budget))
  private val index: RecordIndex = ordered.getOrElse(new HashIndex(records, budget))

  /** None while rows are loaded: those are not changes of a version. */
  private var changes: Option[UndoLog] = Some(new UndoLog)
  private var lastCommit: Option[UndoLog] = None
  /** While the family is filled: the number of records, which the index is then made of. */
  private var unindexed = NotFilled

  def keys: Long = index.size
  def bytes: Long = records.bytes
  def liveBytes: Long = records.liveBytes

  /** Rows of keys that are all different, or with their lists, are put into the empty family. */
  def fill[T](body: StateFiller => T): T = {
    val kept = changes
    changes = None
    unindexed = if (multiValued || !records.isEmpty) NotFilled else 0
    try {
      val result = body(this)
      if (unindexed != NotFilled) index.build(unindexed)
      result
    } finally {
      unindexed = NotFilled
      changes = kept
    }
  }

  /** All rows, as [[fill]] would take them. */
  def copyRows(to: StateFiller): Unit = {
    val scan = index.scan()
    try while (scan.advance()) {
      val key = keyRow(scan.address)
      if (!multiValued) to.put(key, valueRow(scan.address))
      else {
        val values = listOf(scan.address)
        to.put(key, values.headOption.map(valueRow).orNull)
        values.drop(1).foreach(value => to.append(key, valueRow(value)))
      }
    } finally scan.close()
  }

  // Reads

  def exists(key: UnsafeRow): Boolean = find(key) != 0

  def get(key: UnsafeRow): UnsafeRow = {
    val address = find(key)
    if (address == 0) null
    else if (multiValued) listOf(address).headOption.map(valueRow).orNull
    else valueRow(address)
  }

  def values(key: UnsafeRow): Iterator[UnsafeRow] = {
    requireMultiValued("valuesIterator")
    val address = find(key)
    if (address == 0) Iterator.empty else listOf(address).iterator.map(valueRow)
  }

  def scan(): RecordScan = index.scan()

  def scanPrefix(prefix: UnsafeRow): RecordScan = {
    val (index, encoder) = scannable("prefixScan", _.supportPrefixKeyScan)
    val bytes = encoder.encodePrefixKey(prefix)
    index.scan(Some(bytes), index.hasPrefix(_, bytes))
  }

  /** From the first key that has this prefix, or comes behind it, to the end. */
  def scanFromPrefix(prefix: UnsafeRow): RecordScan = {
    val (index, encoder) = scannable("refreshAndSeekToPrefix", _.supportPrefixKeyScan)
    index.scan(Some(encoder.encodePrefixKey(prefix)), _ => true)
  }

  /** From `start`, or from the first key, to the last before `end`. */
  def scanRange(start: Option[UnsafeRow], end: Option[UnsafeRow]): RecordScan = {
    val (index, encoder) = scannable("rangeScan", _.supportsRangeScan)
    val last = end.map(encoder.encodeKey)
    index.scan(
      start.map(encoder.encodeKey), address => last.forall(index.isBelow(address, _)))
  }

  def requireMultiValued(operation: String): Unit =
    require(multiValued, s"$operation: the column family $name has one value for a key")

  private def scannable(
      operation: String,
      supports: RocksDBKeyStateEncoder => Boolean): (OrderedIndex, RocksDBKeyStateEncoder) =
    ordered.zip(encoder).filter { case (_, encoder) => supports(encoder) }.getOrElse(
      throw new IllegalArgumentException(
        s"$operation: the keys of the column family $name have no order for it"))

  // Changes

  /** A value that is null makes the list of the key empty, which is not the same as not having one. */
  override def put(key: UnsafeRow, value: UnsafeRow): Unit = {
    val address = append(key, value, previous = 0)
    if (unindexed != NotFilled) unindexed += 1
    else record(putIntoIndex(address), address)
  }

  override def append(key: UnsafeRow, value: UnsafeRow): Unit = {
    requireMultiValued("merge")
    val before = find(key)
    val address = append(key, value, before)
    putIntoIndex(address)
    record(before, address)
  }

  /** There may be no memory for the index to grow. */
  private def putIntoIndex(address: Long): Long = try index.put(address) catch {
    case e: Throwable => records.free(address); throw e
  }

  def remove(key: UnsafeRow): Unit = budget.giveBack {
    val address = find(key)
    if (address != 0) {
      index.remove(address)
      record(address, 0)
    }
  }

  def removeBetween(start: UnsafeRow, end: UnsafeRow): Unit = budget.giveBack {
    val scan = scanRange(Some(start), Some(end))
    try while (scan.advance()) {
      val address = scan.address
      index.remove(address)
      record(address, 0)
    } finally scan.close()
  }

  private def find(key: UnsafeRow): Long = encoder match {
    case None => index.find(
      hash(key), key.getBaseObject, key.getBaseOffset, key.getSizeInBytes)
    case Some(encoder) =>
      val bytes = encoder.encodeKey(key)
      index.find(0, bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length)
  }

  private def append(key: UnsafeRow, value: UnsafeRow, previous: Long): Long = {
    val valueBase = if (value == null) null else value.getBaseObject
    val valueOffset = if (value == null) 0L else value.getBaseOffset
    val valueLength = if (value == null) NoValue else value.getSizeInBytes
    encoder match {
      case None => records.append(hash(key), key.getBaseObject, key.getBaseOffset, key.getSizeInBytes,
        valueBase, valueOffset, valueLength, previous)
      case Some(encoder) =>
        val bytes = encoder.encodeKey(key)
        records.append(0, bytes, Platform.BYTE_ARRAY_OFFSET, bytes.length,
          valueBase, valueOffset, valueLength, previous)
    }
  }

  private def hash(key: UnsafeRow): Int = Murmur3_x86_32.hashUnsafeWords(
    key.getBaseObject, key.getBaseOffset, key.getSizeInBytes, Seed)

  private def record(before: Long, after: Long): Unit = changes match {
    case Some(log) => log.add(before, after)
    case None => freeReplaced(before, after)
  }

  // Versions

  /** The version before the last commit cannot be gone back to any more; this one can. */
  def commit(): Unit = {
    index.endScans()
    dropLastCommit()
    lastCommit = changes
    changes = Some(new UndoLog)
    if (records.isSparse) {
      dropLastCommit()
      records.compact(moveOut)
    }
  }

  private def dropLastCommit(): Unit = {
    lastCommit.foreach(_.foreach(freeReplaced))
    lastCommit = None
    records.dropEmpty()
  }

  /** Takes back what was changed since the last commit. */
  def abort(): Unit = {
    index.endScans()
    changes.foreach(undo)
    changes = Some(new UndoLog)
    records.dropEmpty()
  }

  def canRollBack: Boolean = lastCommit.isDefined

  /** Takes back the last commit; nothing may have been changed since. */
  def rollBack(): Unit = {
    lastCommit.foreach(undo)
    lastCommit = None
    records.dropEmpty()
  }

  def endScans(): Unit = index.endScans()

  private def undo(log: UndoLog): Unit = log.foreachBackwards { (before, after) =>
    if (before == 0) index.remove(after) else index.put(before)
    if (after != 0) records.free(after)
  }

  /** The records of a key that are dead once it has another one; one that was appended to is not. */
  private def freeReplaced(before: Long, after: Long): Unit =
    if (before != 0 && !(multiValued && after != 0 && records.previous(after) == before)) {
      foreachInList(before)(records.free)
    }

  /** The record and, in a multi-valued family, all before it. */
  private def foreachInList(last: Long)(visit: Long => Unit): Unit = {
    var address = last
    while (address != 0) {
      val previous = if (multiValued) records.previous(address) else 0
      visit(address)
      address = previous
    }
  }

  /** Copies a live record, or the whole list that it is in. */
  private def moveOut(address: Long): Unit = {
    var list: List[Long] = Nil
    foreachInList(index.current(address))(list ::= _)
    index.put(list.foldLeft(0L)((previous, moved) => records.copy(moved, previous)))
    list.foreach(records.free)
  }

  // Rows

  private def valueRow(address: Long): UnsafeRow =
    rowAt(address, records.valueStart(address), records.valueLength(address), valueFields)

  private def keyRow(address: Long): UnsafeRow = encoder match {
    case None => rowAt(address, records.keyStart(address), records.keyLength(address), keyFields)
    case Some(encoder) =>
      val start = records.keyStart(address)
      encoder.decodeKey(java.util.Arrays.copyOfRange(
        records.page(address), start, start + records.keyLength(address)))
  }

  private def rowAt(address: Long, start: Int, length: Int, fields: Int): UnsafeRow = {
    val row = new UnsafeRow(fields)
    row.pointTo(records.page(address), Platform.BYTE_ARRAY_OFFSET + start, length)
    row
  }

  /** The records that hold the values of a key, in the order of these. */
  private def listOf(last: Long): List[Long] = {
    var list: List[Long] = Nil
    foreachInList(last)(address => if (records.valueLength(address) != NoValue) list ::= address)
    list
  }

  /** A pair for each key, with its value or the first of its values. */
  def pairs(scan: RecordScan): StateStoreIterator[UnsafeRowPair] = {
    val pair = new UnsafeRowPair
    val firsts = if (multiValued) addresses(scan).flatMap(listOf(_).headOption) else addresses(scan)
    // Not before the row is asked for: it may be the same object as the one before.
    val rows = firsts.map(address => pair.withRows(keyRow(address), valueRow(address)))
    new StateStoreIterator(rows, () => scan.close())
  }

  /** A pair for each value of each key. */
  def pairsOfAllValues(scan: RecordScan): StateStoreIterator[UnsafeRowPair] = {
    requireMultiValued("scan of multiple values")
    val pair = new UnsafeRowPair
    val rows = addresses(scan).flatMap { address =>
      val key = keyRow(address)
      listOf(address).iterator.map(value => pair.withRows(key, valueRow(value)))
    }
    new StateStoreIterator(rows, () => scan.close())
  }

  private def addresses(scan: RecordScan): Iterator[Long] = new Iterator[Long] {
    private var ready = false
    override def hasNext: Boolean = {
      if (!ready) ready = scan.advance()
      ready
    }
    override def next(): Long = {
      if (!hasNext) throw new NoSuchElementException
      ready = false
      scan.address
    }
  }

  def close(): Unit = {
    index.close()
    records.close()
  }
}

private object MemoryFamily {
  /** Not the one that key groups are made with, of which a store has only some. */
  private val Seed = 7
  private val NotFilled = -1L
}
