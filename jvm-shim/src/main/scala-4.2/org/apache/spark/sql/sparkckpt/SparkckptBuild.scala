package org.apache.spark.sql.sparkckpt

/** The Spark minor this jar is compiled for. Spark's internals, which the jar uses, change with it. */
object SparkckptBuild {
  val sparkMinor: String = "4.2"
}
