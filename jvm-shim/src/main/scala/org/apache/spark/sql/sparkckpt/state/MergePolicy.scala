package org.apache.spark.sql.sparkckpt.state

import org.apache.spark.sql.sparkckpt.format.StateFileRef

/** Which neighbouring files of a family to merge into one: [from, until) of its file list. */
case class MergePlan(from: Int, until: Int) {
  /** Nothing precedes the first file, so a merge that includes it holds the whole state. */
  def complete: Boolean = from == 0
}

/**
 * Keeps the number of files of a family small without rewriting the whole state for every few
 * changes. Files are merged in tiers: `maxDeltas` files of a level make one of the next. As soon as
 * the changes since the base weigh as much as `baseRatio` of it, everything is merged into a new base,
 * so a load never reads much more than the state itself.
 */
case class MergePolicy(maxDeltas: Int, baseRatio: Double) {
  def plan(files: Seq[StateFileRef]): Option[MergePlan] = {
    val base = files.headOption.filter(_.base)
    val deltas = files.drop(base.size)
    if (deltas.length < maxDeltas) None
    else if (deltas.map(_.length).sum >= baseRatio * base.map(_.length).getOrElse(0L)) {
      Some(MergePlan(0, files.length))
    } else {
      val topLevel = deltas.map(_.level).max
      (0 to topLevel).iterator
        .map(level => deltas.reverseIterator.takeWhile(_.level <= level).length)
        .find(_ >= maxDeltas)
        .map(run => MergePlan(files.length - run, files.length))
    }
  }
}
