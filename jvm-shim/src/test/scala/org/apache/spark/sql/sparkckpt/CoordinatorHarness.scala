package org.apache.spark.sql.sparkckpt

import java.util.{Map => JMap}

import scala.jdk.CollectionConverters._

import org.apache.spark.api.java.JavaSparkContext
import org.apache.spark.sql.sparkckpt.coordinator.{CheckpointAck, CoordinatorPython}

/** Shows Python what the driver's end of the coordinator decides, and what acks cost. */
object CoordinatorHarness {
  def interpreter(confs: JMap[String, String], environment: JMap[String, String]): String =
    CoordinatorPython.interpreter(confs.asScala.get, environment.asScala.get)

  def pythonPath(confs: JMap[String, String], environment: JMap[String, String]): String =
    CoordinatorPython.pythonPath(confs.asScala.get, environment.asScala.get)

  /** Microseconds that each send took, in real tasks; the first of a task comes first. */
  def sendMicros(sc: JavaSparkContext, tasks: Int, acks: Int, bytes: Int): Array[Array[Long]] =
    sc.sc.parallelize(0 until tasks, tasks).map { task =>
      Array.fill(acks) {
        val ack = CheckpointAck("no-such-run", 0, 0, bytes, task, new Array[Byte](bytes))
        val start = System.nanoTime()
        CheckpointAck.send(ack)
        (System.nanoTime() - start) / 1000
      }
    }.collect()
}
