package org.apache.spark.sql.sparkckpt

import java.util.{Collections, Map => JMap}

import org.apache.spark.{SparkConf, SparkContext}
import org.apache.spark.api.plugin.{DriverPlugin, ExecutorPlugin, PluginContext, SparkPlugin}
import org.apache.spark.sql.sparkckpt.coordinator.CoordinatorService

/**
 * The one conf a user sets: `spark.plugins=org.apache.spark.sql.sparkckpt.SparkckptPlugin`. It
 * writes the rest into the conf of the SparkContext while that is being built, so that every
 * session made later has the provider and the planner rule together: one without the other would
 * put keys into stores that do not own them.
 *
 * It must link against nothing but Spark's plugin interface before it has checked the version: on
 * the wrong Spark it is the class that has to come up and say so.
 */
class SparkckptPlugin extends SparkPlugin {
  override def driverPlugin(): DriverPlugin = new SparkckptDriverPlugin
  override def executorPlugin(): ExecutorPlugin = new SparkckptExecutorPlugin
}

class SparkckptDriverPlugin extends DriverPlugin {
  override def init(sc: SparkContext, context: PluginContext): JMap[String, String] = {
    SparkckptPlugin.requireSparkMinor(sc.version)
    SparkckptPlugin.configure(context.conf)
    CoordinatorService.start(context.conf, sc.hadoopConfiguration)
    Collections.emptyMap()
  }

  /** Acks of executors: one-way, so there is no reply. */
  override def receive(message: AnyRef): AnyRef = {
    CoordinatorService.receive(message)
    null
  }

  override def shutdown(): Unit = CoordinatorService.stop()
}

class SparkckptExecutorPlugin extends ExecutorPlugin {
  override def init(context: PluginContext, extraConf: JMap[String, String]): Unit =
    SparkckptExecutor.started(context)

  override def shutdown(): Unit = SparkckptExecutor.stopped()
}

/** The way to the driver, for the stores of this executor; empty outside of an executor. */
object SparkckptExecutor {
  @volatile private var current: Option[PluginContext] = None

  def context: Option[PluginContext] = current

  private[sparkckpt] def started(context: PluginContext): Unit = current = Some(context)
  private[sparkckpt] def stopped(): Unit = current = None
}

object SparkckptPlugin {
  private val Provider = "spark.sql.streaming.stateStore.providerClass"
  private val FormatVersion = "spark.sql.streaming.stateStore.checkpointFormatVersion"
  private val Extensions = "spark.sql.extensions"
  private val QueryListeners = "spark.sql.streaming.streamingQueryListeners"
  private val SnapshotLagReport =
    "spark.sql.streaming.stateStore.coordinatorReportSnapshotUploadLag"
  private val SnapshotLagForce = "spark.sql.streaming.stateStore.forceSnapshotUploadOnLag"
  private val RepartitionCheck = "spark.sql.streaming.checkUnfinishedRepartitionOnRestart"

  def requireSparkMinor(version: String): Unit = {
    val running = version.split('.').take(2).mkString(".")
    if (running != SparkckptBuild.sparkMinor) {
      throw SparkckptErrors.otherSparkMinor(running, SparkckptBuild.sparkMinor)
    }
  }

  def configure(conf: SparkConf): Unit = {
    SparkckptConf.validateAll(conf.getOption)
    require(conf, Provider, SparkckptConf.ProviderClass)
    require(conf, FormatVersion, "2")
    append(conf, Extensions, SparkckptConf.ExtensionsClass)
    append(conf, QueryListeners, SparkckptConf.QueryStartListenerClass)
    append(conf, QueryListeners, SparkckptConf.CoordinatorListenerClass)
    // An offset log whose partition count changes at the latest, uncommitted batch is to Spark an
    // unfinished repartitioning of its own; here it is a rescaled checkpoint.
    conf.setIfMissing(RepartitionCheck, "false")
    // Spark warns of stores that upload no snapshots; here there is nothing to upload. It refuses
    // to force uploads, as is its default, without watching for them.
    if (!conf.contains(SnapshotLagReport) && !conf.contains(SnapshotLagForce)) {
      conf.set(SnapshotLagReport, "false").set(SnapshotLagForce, "false")
    }
  }

  private def require(conf: SparkConf, key: String, needed: String): Unit = {
    conf.getOption(key).map(_.trim).filter(_ != needed).foreach { value =>
      throw SparkckptErrors.contradictingConf(key, value, needed)
    }
    conf.set(key, needed)
  }

  private def append(conf: SparkConf, key: String, className: String): Unit = {
    val named = conf.get(key, "").split(',').map(_.trim).filter(_.nonEmpty).toSeq
    if (!named.contains(className)) conf.set(key, (named :+ className).mkString(","))
  }
}
