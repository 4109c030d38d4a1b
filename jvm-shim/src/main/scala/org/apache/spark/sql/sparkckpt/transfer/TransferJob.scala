package org.apache.spark.sql.sparkckpt.transfer

import java.util.UUID
import java.util.concurrent.{CompletableFuture, CompletionException}

import org.apache.spark.{Partitioner, SparkContext}
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.sparkckpt.SparkckptException
import org.apache.spark.util.{CompletionIterator, LongAccumulator, SerializableConfiguration}

/**
 * Moves the state of a checkpoint into another one, as one Spark job: a task reads each partition of
 * each store, a shuffle brings the rows together as the target wants them, a task writes each
 * partition of the target. It knows nothing of logs: Python makes a checkpoint of what this leaves.
 *
 * The job runs in a thread of its own, so that its caller can watch it.
 */
class TransferJob(session: SparkSession, requestJson: String) {
  private val request = TransferRequest.fromJson(requestJson)
  private val context: SparkContext = session.sparkContext
  private val group = s"sparkckpt-transfer-${UUID.randomUUID()}"
  private val finished: LongAccumulator = context.longAccumulator
  private val outcome = new CompletableFuture[String]
  @volatile private var tasks = 0L

  def start(): Unit = {
    val thread = new Thread(() => try outcome.complete(run()) catch {
      case e: Throwable => outcome.completeExceptionally(e)
    }, group)
    thread.setDaemon(true)
    thread.start()
  }

  def isDone: Boolean = outcome.isDone

  /** Tasks that have ended; a retried one is not counted twice. */
  def tasksDone: Long = math.min(finished.value, tasks)

  /** 0 until it is known. */
  def tasksTotal: Long = tasks

  /** What was moved, as JSON. Throws what has gone wrong. */
  def result(): String = try outcome.join() catch {
    case e: CompletionException => throw e.getCause
  }

  /** What has gone wrong, in words: the cause, not that a job was aborted by it. Null: nothing. */
  def failure(): String = try {
    outcome.join()
    null
  } catch {
    case e: CompletionException =>
      val causes = Iterator.iterate[Throwable](e.getCause)(_.getCause).takeWhile(_ != null).toList
      causes.collectFirst { case ours: SparkckptException => ours.getMessage }
        .getOrElse(causes.last.toString)
  }

  def cancel(): Unit = context.cancelJobGroup(group)

  private def run(): String = {
    val hadoopConf = session.sessionState.newHadoopConf()
    val checkpoint = StateSide.qualified(request.source.checkpoint, hadoopConf)
    val stores = request.operators.flatMap { operator =>
      StoreShape.ofOperator(checkpoint, operator, hadoopConf).zipWithIndex.map {
        case (shape, position) => new MovedStore(operator, position, shape)
      }
    }
    val broadcast = SerializableConfiguration.broadcast(context, hadoopConf)
    val conf = session.sessionState.conf
    val source = StateSide(request.source, conf, stores.map(_.shape), broadcast)
    val target = StateSide(request.target, conf, stores.map(_.shape), broadcast)
    val written = stores.zip(move(stores, source, target))
    TransferRequest.resultJson(request.operators.map { operator =>
      report(written.collect { case (store, partitions) if store.operator eq operator =>
        store.shape -> partitions
      }, operator, target)
    })
  }

  /** The partitions of the target, by store. */
  private def move(
      stores: Seq[MovedStore], source: StateSide, target: StateSide): Seq[Seq[WrittenPartition]] = {
    val version = request.batchId + 1
    val reader = new StateReader(source, target, version)
    val writer = new StateWriter(target, version)
    val shapes = stores.map(_.shape)
    val firsts = shapes.scanLeft(0)((first, shape) => first + target.parallelismOf(shape))
    val toRead = stores.indices.flatMap { s =>
      (0 until source.parallelismOf(shapes(s))).map(p => (s, p, stores(s).idOf(p)))
    }
    val toWrite = shapes.indices.flatMap(s => (0 until target.parallelismOf(shapes(s))).map(s -> _))
    if (toWrite.isEmpty) return Nil
    val done = finished
    tasks = toRead.size + toWrite.size
    context.setJobGroup(group, s"sparkckpt: ${request.source.checkpoint} to " +
      request.target.checkpoint, interruptOnCancel = true)
    val partitions = context.parallelize(toRead, toRead.size)
      .mapPartitions { assigned =>
        val (store, partition, id) = assigned.next()
        val first = firsts(store)
        val rows = reader.read(shapes(store), partition, id).map { case (p, row) => (first + p, row) }
        CompletionIterator[(Int, Array[Byte]), Iterator[(Int, Array[Byte])]](rows, done.add(1))
      }
      .partitionBy(new TransferPartitioner(toWrite.size))
      .mapPartitionsWithIndex { (index, rows) =>
        val (store, partition) = toWrite(index)
        val written = writer.write(shapes(store), partition, rows.map(_._2))
        done.add(1)
        Iterator(written)
      }
      .collect()
    shapes.zip(firsts).map { case (shape, first) =>
      partitions.slice(first, first + target.parallelismOf(shape)).toSeq
    }
  }

  private def report(
      stores: Seq[(StoreShape, Seq[WrittenPartition])],
      operator: TransferOperator,
      target: StateSide): TransferredOperator = {
    val first = stores.head._1
    val ids = stores.map(_._2).transpose.map(_.flatMap(_.id))
    TransferredOperator(operator.operatorId, first.operatorName, first.keyed,
      target.parallelismOf(first), stores.map(_._1.storeName), stores.flatMap(_._2.map(_.rows)).sum,
      if (ids.exists(_.nonEmpty)) ids else Nil)
  }
}

/** A store of the source, and where it stands among those of its operator. */
private final class MovedStore(
    val operator: TransferOperator, position: Int, val shape: StoreShape) {
  def idOf(partition: Int): Option[String] = operator.ids.lift(partition).map(_(position))
}

/** The keys are partitions already. */
private class TransferPartitioner(override val numPartitions: Int) extends Partitioner {
  override def getPartition(key: Any): Int = key.asInstanceOf[Int]
}
