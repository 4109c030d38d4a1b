package org.apache.spark.sql.sparkckpt.coordinator

import java.io.File

import org.apache.spark.SparkConf
import org.apache.spark.sql.sparkckpt.SparkckptConf
import org.apache.spark.util.Utils

/**
 * Which Python runs the coordinator, and where it finds the package: the driver's own if it has one,
 * else the one that Spark would run Python with.
 */
object CoordinatorPython {
  /** Set by `sparkckpt.configure`: the directory that holds the package the driver has imported. */
  val PackagePathKey: String = SparkckptConf.Prefix + "internal.packagePath"
  private val NotAnInterpreter = "(?i).*(jupyter|ipython).*".r

  def command(conf: SparkConf): ProcessBuilder = {
    val builder = new ProcessBuilder(words(conf): _*)
    val path = pythonPath(conf.getOption, sys.env.get)
    if (path.nonEmpty) builder.environment().put("PYTHONPATH", path)
    builder
  }

  def interpreter(conf: String => Option[String], environment: String => Option[String]): String = {
    val configured = SparkckptConf.CoordinatorPython.from(conf)
    val candidates = Seq(
      conf("spark.pyspark.driver.python"),
      environment("PYSPARK_DRIVER_PYTHON"),
      conf("spark.pyspark.python"),
      environment("PYSPARK_PYTHON"))
    if (configured.nonEmpty) configured
    else candidates.flatten.filter(_.nonEmpty)
      .find(name => !NotAnInterpreter.matches(new File(name).getName)).getOrElse("python3")
  }

  /** Files given to spark-submit are on the path of a Python driver, but not of this JVM's children. */
  def pythonPath(conf: String => Option[String], environment: String => Option[String]): String = {
    val submitted = conf("spark.submit.pyFiles").toSeq.flatMap(_.split(',')).map(_.trim)
      .filter(_.nonEmpty).map(Utils.resolveURI(_)).filter(_.getScheme == "file").map(_.getPath)
    (conf(PackagePathKey).toSeq ++ submitted ++ environment("PYTHONPATH"))
      .filter(_.nonEmpty).mkString(File.pathSeparator)
  }

  def describe(conf: SparkConf): String = words(conf).mkString(" ")

  private def words(conf: SparkConf): Seq[String] =
    Seq(interpreter(conf.getOption, sys.env.get), "-m", "sparkckpt.coordinator")
}
