package org.apache.spark.sql.sparkckpt.state

import org.apache.spark.sql.sparkckpt.format.StateFileRef

/** Which neighbouring files of a family to merge into one: [from, until) of its file list. */
case class MergePlan(from: Int, until: Int) {
  /** Nothing precedes the first file, so a merge that includes it holds the whole state. */
  def complete: Boolean = from == 0
}

/**
 * Keeps the number of files of a family small without rewriting the whole state for every few
 * changes. Files are merged in tiers: `maxDeltas` files of a level make one of the next. The oldest
 * files stay as they are while each of them outweighs, by `baseRatio`, all the files after them: the
 * base, or the few large batches that filled the state. Once none does, everything is merged into a
 * new base, so a load never reads much more than the state itself.
 *
 * Files of another checkpoint are merged away at once, with all that precedes them: the query must
 * not depend on what belongs to somebody else for longer than it takes to rewrite it.
 */
case class MergePolicy(maxDeltas: Int, baseRatio: Double) {
  def plan(files: Seq[StateFileRef]): Option[MergePlan] =
    files.lastIndexWhere(_.isForeign) match {
      case -1 => planOwn(files)
      case last => Some(MergePlan(0, last + 1))
    }

  private def planOwn(files: Seq[StateFileRef]): Option[MergePlan] = {
    val deltas = files.count(!_.base)
    if (deltas < maxDeltas) None
    else settled(files) match {
      case 0 => Some(MergePlan(0, files.length))
      case n => tier(files.drop(n)).map(run => MergePlan(files.length - run, files.length))
    }
  }

  /** How many of the oldest files to leave alone. Few, or many equal ones would never be merged. */
  private def settled(files: Seq[StateFileRef]): Int = {
    val lengths = files.map(_.length)
    (math.max(1, maxDeltas / 2) to 1 by -1)
      .find(n => lengths.drop(n).sum < baseRatio * lengths.take(n).min)
      .getOrElse(0)
  }

  /** The length of the shortest run of newest files that fills a tier. */
  private def tier(files: Seq[StateFileRef]): Option[Int] =
    files.map(_.level).distinct.sorted.iterator
      .map(level => files.reverseIterator.takeWhile(_.level <= level).length)
      .find(_ >= maxDeltas)
}
