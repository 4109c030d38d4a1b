package org.apache.spark.sql.sparkckpt.planner

import scala.collection.mutable

import org.apache.spark.sql.catalyst.expressions.{Cast, Expression, IntegralDivide, Literal, Multiply, Pmod}
import org.apache.spark.sql.catalyst.plans.physical.{ClusteredDistribution, HashPartitioning, Partitioning, ShuffleSpec, ShuffleSpecCollection, SinglePartitionShuffleSpec}
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.sparkckpt.KeyGroups
import org.apache.spark.sql.types.{IntegerType, LongType}

/**
 * Rows go to the partition that owns the key group of their key. It is a HashPartitioning because
 * only a HashPartitioning satisfies what a stateful operator demands and is known to the exchange;
 * it must never pass for a plain one, which sends the same key elsewhere. Hence its own equality,
 * its own shuffle spec, and copies that stay what they are: Spark copies partitionings in several
 * places (aliases, unions, coalesced reads, the LogicalRDD of a foreachBatch).
 */
class KeyGroupPartitioning(keys: Seq[Expression], parallelism: Int, val maxParallelism: Int)
  extends HashPartitioning(keys, parallelism) {

  /** In Long, so that neither the range of N nor ANSI overflow checks matter. */
  override def partitionIdExpression: Expression = {
    val keyGroup = Pmod(KeyGroups.hashExpression(expressions), Literal(maxParallelism))
    val scaled = Multiply(Cast(keyGroup, LongType), Literal(numPartitions.toLong))
    Cast(IntegralDivide(scaled, Literal(maxParallelism.toLong)), IntegerType)
  }

  override def createShuffleSpec(distribution: ClusteredDistribution): ShuffleSpec =
    KeyGroupShuffleSpec(this, distribution)

  override def copy(expressions: Seq[Expression], numPartitions: Int): HashPartitioning =
    new KeyGroupPartitioning(expressions, numPartitions, maxParallelism)

  override protected def withNewChildrenInternal(
      newChildren: IndexedSeq[Expression]): HashPartitioning =
    new KeyGroupPartitioning(newChildren, numPartitions, maxParallelism)

  override protected def otherCopyArgs: Seq[AnyRef] = Int.box(maxParallelism) :: Nil

  override protected def stringArgs: Iterator[Any] = super.stringArgs ++ Iterator(maxParallelism)

  override def canEqual(other: Any): Boolean = other.isInstanceOf[KeyGroupPartitioning]

  override def equals(other: Any): Boolean = other match {
    case that: KeyGroupPartitioning =>
      maxParallelism == that.maxParallelism && numPartitions == that.numPartitions &&
        expressions == that.expressions
    case _ => false
  }

  override def hashCode(): Int = 31 * super.hashCode() + maxParallelism
}

/**
 * Co-partitioned with key groups only: same number of key groups, same number of partitions, keys
 * in the same places. A hash-partitioned side of a join is shuffled anew, by key group.
 */
case class KeyGroupShuffleSpec(
    partitioning: KeyGroupPartitioning,
    distribution: ClusteredDistribution) extends ShuffleSpec {

  /** For each partitioning key, where it stands among the keys of the distribution. */
  private lazy val keyPositions: Seq[collection.Set[Int]] = {
    val positions = mutable.Map.empty[Expression, mutable.Set[Int]]
    distribution.clustering.zipWithIndex.foreach { case (key, position) =>
      positions.getOrElseUpdate(key.canonicalized, mutable.SortedSet.empty[Int]) += position
    }
    partitioning.expressions.map(key => positions.getOrElse(key.canonicalized, Set.empty[Int]))
  }

  override def numPartitions: Int = partitioning.numPartitions

  override def isCompatibleWith(other: ShuffleSpec): Boolean = other match {
    case SinglePartitionShuffleSpec => numPartitions == 1
    case that: KeyGroupShuffleSpec =>
      partitioning.maxParallelism == that.partitioning.maxParallelism &&
        numPartitions == that.numPartitions &&
        distribution.clustering.size == that.distribution.clustering.size &&
        keyPositions.size == that.keyPositions.size &&
        keyPositions.zip(that.keyPositions).forall { case (a, b) => a.exists(b.contains) }
    case ShuffleSpecCollection(specs) => specs.exists(isCompatibleWith)
    case _ => false
  }

  /** Spark's policy for hash partitionings: a side keyed by fewer columns may be skewed. */
  override def canCreatePartitioning: Boolean =
    !SQLConf.get.getConf(SQLConf.REQUIRE_ALL_CLUSTER_KEYS_FOR_CO_PARTITION) ||
      distribution.areAllClusterKeysMatched(partitioning.expressions)

  override def createPartitioning(clustering: Seq[Expression]): Partitioning =
    new KeyGroupPartitioning(
      keyPositions.map(positions => clustering(positions.head)),
      numPartitions,
      partitioning.maxParallelism)
}
