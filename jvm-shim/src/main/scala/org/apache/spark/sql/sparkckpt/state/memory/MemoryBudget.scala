package org.apache.spark.sql.sparkckpt.state.memory

import java.util.UUID
import java.util.concurrent.atomic.AtomicLong

import scala.annotation.tailrec

import org.apache.spark.SparkEnv
import org.apache.spark.internal.config.MEMORY_STORAGE_FRACTION
import org.apache.spark.memory.{MemoryMode, UnifiedMemoryManager}
import org.apache.spark.sql.sparkckpt.{MemoryExceededException, SparkckptErrors}
import org.apache.spark.storage.TempLocalBlockId

/** What the memory engines of one executor hold together, and how much of it one of them has. */
private[memory] final class MemoryBudget(store: String, most: Long, pool: Option[StoragePool]) {
  private val limit = pool.fold(most)(lender => math.min(most, lender.region))
  private var held = 0L
  private var borrowed = 0L
  private var isGivingBack = false

  def bytes: Long = held

  /** Fails before anything is allocated; what is held already stays as it is. */
  def reserve(bytes: Long): Unit = {
    if (isGivingBack) MemoryBudget.executor.addAndGet(bytes)
    else {
      if (!MemoryBudget.take(bytes, limit)) throw exceededBy(bytes)
      if (!borrow(bytes)) {
        MemoryBudget.executor.addAndGet(-bytes)
        throw exceededBy(bytes)
      }
    }
    held += bytes
  }

  private def exceededBy(bytes: Long): MemoryExceededException =
    SparkckptErrors.memoryExceeded(store, held, MemoryBudget.executor.get + bytes, limit)

  private def borrow(bytes: Long): Boolean = pool.forall { lender =>
    val granted = lender.acquire(bytes)
    if (granted) borrowed += bytes
    granted
  }

  def release(bytes: Long): Unit = {
    MemoryBudget.executor.addAndGet(-bytes)
    held -= bytes
    if (borrowed > held) {
      pool.foreach(_.release(borrowed - held))
      borrowed = held
    }
  }

  /** What `body` reserves is little, and it must not fail halfway: it is the way to have more of it again. */
  def giveBack[T](body: => T): T = {
    val before = isGivingBack
    isGivingBack = true
    try body finally isGivingBack = before
  }

  def close(): Unit = release(held)
}

private[memory] object MemoryBudget {
  private val executor = new AtomicLong

  /** What there is no room for never counts: others would be refused for it that have room. */
  @tailrec private def take(bytes: Long, limit: Long): Boolean = {
    val before = executor.get
    if (before + bytes > limit) false
    else if (executor.compareAndSet(before, before + bytes)) true
    else take(bytes, limit)
  }

  /** Half of the heap: the rest is for the tasks that use the state. */
  def defaultLimit: Long = Runtime.getRuntime.maxMemory / 2
}

/**
 * The executor's memory as Spark shares it out. State is storage there, like cached data: tasks leave it
 * alone, and take less when there is more of it. A second lookup would find another manager if the
 * application had been restarted in this process.
 */
final class StoragePool {
  private val manager = SparkEnv.get.memoryManager
  private val block = TempLocalBlockId(new UUID(0, 0))

  /**
   * What tasks cannot claim of it. They count on the rest being given up when they need it, as cached
   * blocks are; state is not, and they would fail.
   */
  val region: Long = manager match {
    case unified: UnifiedMemoryManager =>
      (unified.maxHeapMemory * SparkEnv.get.conf.get(MEMORY_STORAGE_FRACTION)).toLong
    case other => other.maxOnHeapStorageMemory
  }

  /** Cached blocks make room if need be. */
  def acquire(bytes: Long): Boolean = manager.acquireStorageMemory(block, bytes, MemoryMode.ON_HEAP)

  def release(bytes: Long): Unit = manager.releaseStorageMemory(bytes, MemoryMode.ON_HEAP)
}
