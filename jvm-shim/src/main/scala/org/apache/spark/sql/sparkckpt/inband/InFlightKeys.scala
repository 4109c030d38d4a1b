package org.apache.spark.sql.sparkckpt.inband

import scala.collection.mutable

import org.apache.spark.sql.catalyst.expressions.UnsafeRow

/** The keys that were sent to Python and are not finished there, by their number. */
final class InFlightKeys {
  private val keys = mutable.ArrayDeque.empty[UnsafeRow]
  private var first = 0L

  def add(key: UnsafeRow): Unit = synchronized(keys.append(key))

  def isEmpty: Boolean = synchronized(keys.isEmpty)

  def get(number: Long): Option[UnsafeRow] = synchronized {
    val index = number - first
    if (index < 0 || index >= keys.size) None else Some(keys(index.toInt))
  }

  /** Forgets all keys before that one; false if so many were never sent. */
  def finishBefore(number: Long): Boolean = synchronized {
    val finished = number - first
    val known = finished >= 0 && finished <= keys.size
    if (known) {
      keys.dropInPlace(finished.toInt)
      first = number
    }
    known
  }
}
