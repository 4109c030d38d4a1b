package org.apache.spark.sql.sparkckpt.recovery

import java.nio.charset.StandardCharsets.UTF_8

import scala.util.Using
import scala.util.control.NonFatal

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path
import org.json4s.{JObject, JString}
import org.json4s.jackson.JsonMethods.{compact, parse, render}

import org.apache.spark.internal.Logging
import org.apache.spark.sql.execution.streaming.checkpointing.{CheckpointFileManager, CommitMetadataBase, CommitMetadataV2, CommitMetadataV3, OffsetSeqMetadataBase}
import org.apache.spark.sql.execution.streaming.runtime.StreamExecution
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.sparkckpt.{SparkckptConf, SparkckptErrors, SparkckptException}
import org.apache.spark.sql.sparkckpt.format.{AtomicReplacement, Manifest, StateFileName, StateHandle}

/**
 * A driver that dies between the file sink's commit of a batch and Spark's own leaves a sink that
 * is ahead of the commit log. On restart the sink skips the batch, no task runs, and Spark, which in
 * checkpoint format 2 learns the ids of the new state from the tasks, cannot go on. But the state is
 * there: the handles that the batch wrote on top of the committed ids. This writes the commit entry
 * that the dead driver owed, with the watermark Spark itself gives a batch that its sink skips.
 *
 * If the checkpoint was rescaled since, the batch has written its state at the former parallelism, and
 * it is that which the query goes on with: the rescaling is taken back.
 *
 * It must run before the query reads its logs, and never where it is not certain that the sink has
 * the batch.
 */
object SinkAheadRecovery extends Logging {
  type StateIds = Map[Long, Array[Array[String]]]

  def recover(stream: StreamExecution): Unit = try {
    for {
      (batch, offsets) <- stream.offsetLog.getLatest()
      planned <- offsets.metadataOpt
      if usesSparkckpt(planned) && SinkLog.latest(stream).contains(batch)
      committed = stream.commitLog.getLatest()
      if committed.map(_._1).getOrElse(-1L) == batch - 1
    } commit(stream, batch, planned, committed.map(_._2))
  } catch {
    case NonFatal(e) if !e.isInstanceOf[SparkckptException] =>
      logWarning(s"Looking for a batch that the sink of ${stream.resolvedCheckpointRoot} has " +
        "and Spark's commit log lacks failed", e)
  }

  def usesSparkckpt(planned: OffsetSeqMetadataBase): Boolean =
    planned.conf.get(SQLConf.STATE_STORE_PROVIDER_CLASS.key).contains(SparkckptConf.ProviderClass)

  /** If the batch before was restored or rescaled, its entry names one manifest for all stores. */
  private def manifestIn(ids: StateIds): Option[String] =
    ids.values.flatten.flatten.find(Manifest.isManifest)

  private def commit(
      stream: StreamExecution,
      batch: Long,
      planned: OffsetSeqMetadataBase,
      previous: Option[CommitMetadataBase]): Unit = {
    val root = new Path(stream.resolvedCheckpointRoot, "state")
    val handles = new CommittedHandles(
      root, stream.sparkSession.sessionState.newHadoopConf(), batch + 1)
    def beforeRescaling(manifest: String): Option[StateIds] = {
      val operators = handles.manifest(manifest).operators
      val found = handles.basedOn(operators.map { case (id, operator) => id -> operator.ids })
      if (found.nonEmpty) {
        operators.values.find(_.keyed).foreach(o => setParallelism(stream, batch, o.parallelism))
      }
      found
    }
    val ids = previous.flatMap(_.stateUniqueIds) match {
      case Some(bases) => manifestIn(bases) match {
        case Some(manifest) =>
          handles.basedOn(manifest, bases, planned.conf(SQLConf.SHUFFLE_PARTITIONS.key).toInt)
            .orElse(beforeRescaling(manifest))
        case None => handles.basedOn(bases)
      }
      case None => handles.first()
    }
    ids match {
      case Some(found) =>
        val watermark = planned.batchWatermarkMs
        stream.commitLog.add(batch, previous match {
          case Some(entry: CommitMetadataV3) =>
            entry.copy(nextBatchWatermarkMs = watermark, stateUniqueIds = Some(found))
          case _ => CommitMetadataV2(watermark, Some(found))
        })
        logWarning(s"The sink has batch $batch of ${stream.resolvedCheckpointRoot}, Spark's commit " +
          "log did not: the driver died in between. The batch is now committed with the state it wrote.")
      case None => throw SparkckptErrors.sinkAheadOfState(stream.resolvedCheckpointRoot, batch)
    }
  }

  /** In the offset log's last entry, all else as it was. */
  private def setParallelism(stream: StreamExecution, batch: Long, parallelism: Int): Unit = {
    val log = stream.offsetLog
    val path = new Path(log.metadataPath, batch.toString)
    val hadoopConf = stream.sparkSession.sessionState.newHadoopConf()
    val files = CheckpointFileManager.create(log.metadataPath, hadoopConf)
    val lines = Using.resource(files.open(path))(in => new String(in.readAllBytes(), UTF_8)).split("\n")
    val metadata = parse(lines(1)).transformField {
      case ("conf", JObject(conf)) => "conf" -> JObject(conf.map {
        case (SQLConf.SHUFFLE_PARTITIONS.key, _) =>
          SQLConf.SHUFFLE_PARTITIONS.key -> JString(parallelism.toString)
        case other => other
      })
    }
    AtomicReplacement.write(path, hadoopConf)(
      _.write(lines.updated(1, compact(render(metadata))).mkString("\n").getBytes(UTF_8)))
    log.batchCache.clear()
    logWarning(s"${stream.resolvedCheckpointRoot} was rescaled while its sink had batch $batch and " +
      s"Spark's commit log did not. The query goes on with $parallelism partitions, as the batch was " +
      "run. To rescale it, stop it and rescale it again.")
  }
}

/** The handles of one version in a checkpoint, found by listing: no log names them yet. */
private final class CommittedHandles(root: Path, hadoopConf: Configuration, version: Long)
  extends Logging {
  import SinkAheadRecovery.StateIds

  private val files = CheckpointFileManager.create(root, hadoopConf)

  def manifest(id: String): Manifest = {
    val path = new Path(root.getParent, Manifest.path(id))
    Manifest.deserialize(read(path), path.toString)
  }

  /** For every id its successor; None if one has none. */
  def basedOn(bases: StateIds): Option[StateIds] = {
    val found = bases.map { case (operator, partitions) =>
      operator -> partitions.zipWithIndex.map { case (stores, partition) =>
        val byBase = inPartition(operator, partition).groupBy(_.baseId)
        stores.flatMap(base => byBase.get(Some(base)).map(chosen))
      }
    }
    val complete = bases.forall { case (operator, partitions) =>
      partitions.map(_.length).sameElements(found(operator).map(_.length))
    }
    Option.when(complete)(found)
  }

  /**
   * Of the batch that followed a manifest, whose id says nothing of partitions. Attempts at another
   * parallelism may have gone before, when the query was rescaled after them.
   */
  def basedOn(manifest: String, bases: StateIds, parallelism: Int): Option[StateIds] = {
    val found = bases.keys.map { operator =>
      operator -> byPartition(inOperator(operator).filter { handle =>
        handle.baseId.contains(manifest) &&
          handle.parallelism == (if (handle.keyed) parallelism else 1)
      })
    }.toMap
    val complete = bases.forall { case (operator, partitions) =>
      found(operator).nonEmpty && found(operator).forall(_.length == partitions.head.length)
    }
    Option.when(complete)(found)
  }

  /** Of a query's first batch. */
  def first(): Option[StateIds] = {
    val operators = directories(root).flatMap(_.toLongOption)
    val found = operators.map(operator =>
      operator -> byPartition(inOperator(operator).filter(_.baseId.isEmpty))).toMap
    val complete = found.nonEmpty && found.values.forall { partitions =>
      partitions.nonEmpty && partitions.head.nonEmpty &&
        partitions.forall(_.length == partitions.head.length)
    }
    Option.when(complete)(found)
  }

  /** One id per store and partition; Spark lists the stores of a join in the order of their names. */
  private def byPartition(handles: Seq[StateHandle]): Array[Array[String]] = {
    val parallelism = handles.headOption.map(_.parallelism).getOrElse(0)
    (0 until parallelism).toArray.map { partition =>
      handles.filter(_.partition == partition).groupBy(_.storeName).toArray
        .sortBy(_._1).map { case (_, attempts) => chosen(attempts) }
    }
  }

  private def inOperator(operator: Long): Seq[StateHandle] =
    directories(new Path(root, operator.toString)).flatMap(_.toIntOption)
      .flatMap(inPartition(operator, _))

  /** All attempts at a batch are as good; if they differ, so would a rerun of the query. */
  private def chosen(attempts: Seq[StateHandle]): String = {
    if (attempts.map(_.changeDigest).distinct.length > 1) {
      logWarning(s"Attempts at version $version of ${attempts.head.storeName} in partition " +
        s"${attempts.head.partition} of operator ${attempts.head.operatorId} made different " +
        "changes: the query is not deterministic. One of them is taken.")
    }
    attempts.map(_.id).min
  }

  private def inPartition(operator: Long, partition: Int): Seq[StateHandle] = {
    val directory = new Path(root, s"$operator/$partition")
    val stores = directories(directory).filter(_ != "_metadata").map(new Path(directory, _))
    (directory +: stores).flatMap { store =>
      files.list(store, (path: Path) => isHandle(path.getName)).map(_.getPath)
    }.flatMap(whole)
  }

  /** An attempt that was killed may have left half a handle; Spark never heard of its id. */
  private def whole(path: Path): Option[StateHandle] =
    try Some(StateHandle.deserialize(read(path), path.toString)) catch {
      case e: SparkckptException =>
        logWarning(s"$path is left out", e)
        None
    }

  private def isHandle(name: String): Boolean =
    StateFileName.parse(name).exists(file => file.isHandle && file.version == version)

  private def directories(parent: Path): Seq[String] =
    if (!files.exists(parent)) Nil
    else files.list(parent).toSeq.filter(_.isDirectory).map(_.getPath.getName)

  private def read(path: Path): Array[Byte] = {
    val in = files.open(path)
    try in.readAllBytes() finally in.close()
  }
}
