package org.apache.spark.sql.sparkckpt

/** The Spark minor this jar is compiled for: the jar uses internals that change with it. */
object SparkckptBuild {
  val sparkMinor: String = "4.3"
}
