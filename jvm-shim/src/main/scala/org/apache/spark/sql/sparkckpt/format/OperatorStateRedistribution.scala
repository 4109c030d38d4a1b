package org.apache.spark.sql.sparkckpt.format

import org.apache.spark.sql.sparkckpt.SparkckptErrors

/**
 * What a partition gets of the operator states of a checkpoint, which was written with the same or
 * another parallelism. Pure but for the reading of blobs, and mirrored by
 * `sparkckpt/format/redistribution.py`.
 *
 * @param written what each of the former partitions had, in their order
 */
case class OperatorStateRedistribution(
    written: IndexedSeq[Option[OperatorStateHandle]], partition: Int, parallelism: Int) {

  /** @param read gives what a former partition had; each is asked for once, and only if it is needed */
  def states(
      where: String)(read: OperatorStateHandle => Seq[OperatorStateItems]): Seq[OperatorStateItems] = {
    val holders = written.zipWithIndex.flatMap { case (handle, at) =>
      handle.toSeq.flatMap(_.states.map(Holder(at, _)))
    }
    val names = holders.map(_.info.name).distinct
    val modes = names.map { name =>
      val modes = holders.filter(_.info.name == name).map(_.info.mode).distinct
      if (modes.length > 1) throw SparkckptErrors.operatorStateModes(where, name, modes)
      name -> modes.head
    }.toMap
    val shares = names.flatMap { name =>
      val those = holders.filter(_.info.name == name)
      val share = modes(name) match {
        case OperatorStateMode.Split => split(those)
        case OperatorStateMode.Union => union(those).map(all)
        case OperatorStateMode.Broadcast => Seq(all(those.head))
        case other => throw new IllegalArgumentException(s"'$other' is no mode of an operator state")
      }
      share.collect { case (holder, items) if items.nonEmpty => (holder.at, name) -> items }
    }.toMap
    val taken = names.map(_ -> IndexedSeq.newBuilder[Array[Byte]]).toMap
    written.zipWithIndex.foreach { case (handle, at) =>
      handle.filter(_.states.exists(s => shares.contains((at, s.name)))).foreach { h =>
        read(h).foreach { state =>
          shares.get((at, state.name)).foreach(taken(state.name) ++= _.iterator.map(state.items))
        }
      }
    }
    names.map(name => OperatorStateItems(name, modes(name), taken(name).result()))
  }

  /** A former partition that has the state. */
  private case class Holder(at: Int, info: OperatorStateInfo)

  private def all(holder: Holder): (Holder, Range) = holder -> (0 until holder.info.items)

  /** Nothing moves as long as the number of partitions does not change. */
  private def split(holders: Seq[Holder]): Seq[(Holder, Range)] =
    if (written.length == parallelism) holders.filter(_.at == partition).map(all)
    else {
      val before = holders.scanLeft(0L)(_ + _.info.items)
      holders.zip(before).map { case (holder, position) =>
        // The first of its items that falls to this partition.
        val first = Math.floorMod(partition - position, parallelism.toLong).toInt
        holder -> (first until holder.info.items by parallelism)
      }
    }

  /** A copy that partitions were given and have not replaced counts once. */
  private def union(holders: Seq[Holder]): Seq[Holder] = {
    val copy = holders.find(_.info.isInherited)
    holders.filter(h => !h.info.isInherited || copy.contains(h))
  }
}
