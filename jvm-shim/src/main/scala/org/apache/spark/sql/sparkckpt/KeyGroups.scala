package org.apache.spark.sql.sparkckpt

import org.apache.spark.sql.catalyst.expressions.{CollationAwareMurmur3Hash, Expression}

/** The key groups from `first` to `last`, both inclusive. */
case class KeyGroupRange(first: Int, last: Int) {
  def contains(keyGroup: Int): Boolean = first <= keyGroup && keyGroup <= last
  def overlaps(other: KeyGroupRange): Boolean = first <= other.last && other.first <= last
  def intersect(other: KeyGroupRange): Option[KeyGroupRange] =
    Option.when(overlaps(other))(
      KeyGroupRange(math.max(first, other.first), math.min(last, other.last)))
  override def toString: String = s"[$first, $last]"
}

object KeyGroupRange {
  val Empty: KeyGroupRange = KeyGroupRange(0, -1)
  val Everything: KeyGroupRange = KeyGroupRange(0, Int.MaxValue)
}

/**
 * The maths of key groups, mirrored by `sparkckpt/keygroups.py`. A key belongs to one key group for
 * the life of a checkpoint; a partition owns a contiguous range of groups, so that rescaling only
 * moves range borders and never touches a key.
 */
object KeyGroups {
  /** kg * N must fit an Int in [[partitionOf]], and a key group must fit the file's uint16. */
  val MaxMaxParallelism: Int = 32768

  def keyGroupOf(hash: Int, maxParallelism: Int): Int = Math.floorMod(hash, maxParallelism)

  def partitionOf(keyGroup: Int, parallelism: Int, maxParallelism: Int): Int =
    (keyGroup.toLong * parallelism / maxParallelism).toInt

  def rangeOf(partition: Int, parallelism: Int, maxParallelism: Int): KeyGroupRange = {
    val first = ceilDiv(partition.toLong * maxParallelism, parallelism)
    val last = ceilDiv((partition + 1L) * maxParallelism, parallelism) - 1
    KeyGroupRange(first, last)
  }

  private def ceilDiv(a: Long, b: Int): Int = ((a + b - 1) / b).toInt

  /** The hash Spark's own exchange uses: key groups agree with what SQL's `hash()` gives. */
  def hashExpression(children: Seq[Expression]): Expression = new CollationAwareMurmur3Hash(children)
}
