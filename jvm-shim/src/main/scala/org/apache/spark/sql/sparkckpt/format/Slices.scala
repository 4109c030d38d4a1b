package org.apache.spark.sql.sparkckpt.format

import org.apache.spark.sql.sparkckpt.KeyGroupRange

/** Parts of state files by key groups: pure, mirrored by `sparkckpt/format/slices.py`. */
object Slices {
  /** The file with only the rows of these key groups, if it may have any. */
  def clip(file: StateFileRef, range: KeyGroupRange): Option[StateFileRef] =
    if (file.rows == 0) None
    else file.range.intersect(range).map { both =>
      file.copy(firstKeyGroup = both.first, lastKeyGroup = both.last)
    }

  /**
   * The file lists of a store whose range is covered by several handles. Their ranges do not overlap,
   * so that any order is right that keeps the order of each; by versions, it reads as one history.
   */
  def of(handles: Seq[ManifestHandle], range: KeyGroupRange): Seq[FamilyFiles] = {
    val parts = handles.flatMap { handle =>
      handle.range.intersect(range).toSeq.flatMap { both =>
        handle.families.map(f => f.copy(files = f.files.flatMap(clip(_, both))))
      }
    }.filter(_.files.nonEmpty)
    parts.map(_.family).distinct.map { name =>
      val lists = parts.filter(_.family == name)
      if (lists.length == 1) lists.head
      // None of them holds the family's whole state any more.
      else lists.head.copy(
        files = lists.flatMap(_.files).sortBy(_.lastVersion).map(_.copy(base = false)))
    }
  }

  /**
   * The files that have rows of these key groups, in groups whose key groups do not overlap, lowest
   * first. So a store made of many partitions' files need not open them all at once.
   */
  def disjoint(files: Seq[StateFileRef], range: KeyGroupRange): Seq[Seq[StateFileRef]] = {
    val clipped = files.flatMap(clip(_, range)).zipWithIndex
    val groups = clipped.sortBy(_._1.firstKeyGroup)
      .foldLeft(List.empty[(Int, List[(StateFileRef, Int)])]) {
        case ((last, group) :: done, next @ (file, _)) if file.firstKeyGroup <= last =>
          (math.max(last, file.lastKeyGroup), next :: group) :: done
        case (done, next @ (file, _)) => (file.lastKeyGroup, List(next)) :: done
      }
    groups.reverse.map { case (_, group) => group.sortBy(_._2).map(_._1) }
  }
}
