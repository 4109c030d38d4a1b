package org.apache.spark.sql.sparkckpt.state.memory

import java.util.concurrent.atomic.AtomicLong

import org.apache.spark.sql.sparkckpt.SparkckptErrors

/** What the memory engines of one executor hold together, and how much of it one of them has. */
private[memory] final class MemoryBudget(store: String, limit: Long) {
  private var held = 0L
  private var isGivingBack = false

  def bytes: Long = held

  /** Fails before anything is allocated; what is held already stays as it is. */
  def reserve(bytes: Long): Unit = {
    val total = MemoryBudget.executor.addAndGet(bytes)
    if (total > limit && !isGivingBack) {
      MemoryBudget.executor.addAndGet(-bytes)
      throw SparkckptErrors.memoryExceeded(store, held, total, limit)
    }
    held += bytes
  }

  def release(bytes: Long): Unit = {
    MemoryBudget.executor.addAndGet(-bytes)
    held -= bytes
  }

  /** What `body` reserves is less than what it releases: it must not fail halfway. */
  def giveBack(body: => Unit): Unit = {
    isGivingBack = true
    try body finally isGivingBack = false
  }

  def close(): Unit = release(held)
}

private[memory] object MemoryBudget {
  private val executor = new AtomicLong

  /** Half of the heap: the rest is for the tasks that use the state. */
  def defaultLimit: Long = Runtime.getRuntime.maxMemory / 2
}
