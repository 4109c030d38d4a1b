package org.apache.spark.sql.sparkckpt.state

import scala.collection.mutable

/**
 * How many keys each family of the working state has, where its engine does not count them: RocksDB
 * would have to look up every key it is given, also those of a load, of which each is known to be new.
 */
final class KeyCounts {
  private val counts = mutable.Map.empty[String, Long].withDefaultValue(0L)
  private val internal = mutable.Set.empty[String]

  def add(family: ColumnFamily, keys: Long): Unit = {
    counts(family.name) += keys
    if (family.isInternal) internal += family.name
  }

  def forget(family: String): Unit = counts.remove(family)

  def clear(): Unit = counts.clear()

  def external: Long = counts.iterator.collect { case (f, n) if !internal(f) => n }.sum
  def ofInternalFamilies: Long = counts.iterator.collect { case (f, n) if internal(f) => n }.sum
}
