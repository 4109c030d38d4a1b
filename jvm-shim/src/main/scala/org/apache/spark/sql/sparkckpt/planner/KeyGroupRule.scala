package org.apache.spark.sql.sparkckpt.planner

import java.util.UUID

import org.apache.hadoop.fs.Path

import org.apache.spark.internal.Logging
import org.apache.spark.sql.catalyst.rules.Rule
import org.apache.spark.sql.classic.SparkSession
import org.apache.spark.sql.execution.{ColumnarRule, SparkPlan}
import org.apache.spark.sql.execution.streaming.operators.stateful.{StatefulOperator, StatefulOperatorStateInfo, StateStoreWriter}
import org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider
import org.apache.spark.sql.internal.SQLConf
import org.apache.spark.sql.sparkckpt.{OperatorLayout, SparkckptConf, SparkckptErrors}
import org.apache.spark.sql.sparkckpt.coordinator.{CoordinatorService, QueryRun}
import org.apache.spark.sql.sparkckpt.inband.{InBandGroups, InBandWire}

/**
 * Prepares the plan of each microbatch for key-group state. It is a columnar rule because those run
 * after Spark has placed its exchanges and before it reuses and compiles them. Every stream has a
 * session of its own, and so its own instance of the rule: what is kept here belongs to one stream,
 * and what is set in `session` reaches no other query.
 */
class KeyGroupRule(session: SparkSession) extends ColumnarRule with Logging {
  private var pinned: Option[(UUID, Int)] = None
  private var warned: Option[UUID] = None

  override val preColumnarTransitions: Rule[SparkPlan] = new Rule[SparkPlan] {
    override val ruleName: String = classOf[KeyGroupRule].getName
    override def apply(plan: SparkPlan): SparkPlan =
      StatefulOperators.in(plan).headOption.fold(plan)(prepare(plan, _))
  }

  /** Not the rule's own conf: Spark resets the stream's conf to what its offset log says. */
  private def conf: SQLConf = session.sessionState.conf

  private def prepare(plan: SparkPlan, first: StatefulOperator): SparkPlan = synchronized {
    val stream = first.getStateInfo
    if (conf.stateStoreProviderClass != SparkckptConf.ProviderClass) {
      leaveAlone(stream)
      plan
    } else if (stream.checkpointLocation == KeyGroupRule.ExplainLocation) {
      rewrite(plan, wantedMaxParallelism)
    } else {
      requireFormatVersion()
      val maxParallelism = pinMaxParallelism(stream)
      announce(stream)
      publishLayouts(plan, maxParallelism)
      rewrite(plan.clone(), maxParallelism)
    }
  }

  private def rewrite(plan: SparkPlan, maxParallelism: Int): SparkPlan =
    InBandGroups(KeyGroupTransformWithState(new KeyGroupPlanner(maxParallelism)(plan)))

  private def confs(key: String): Option[String] = Option(conf.getConfString(key, null))

  private def wantedMaxParallelism: Int = SparkckptConf.MaxParallelism.from(confs)

  /**
   * The coordinator learns of a run with its first batch, and may want it held or ended since. The
   * batch's tasks are told of what has been completed; batches are planned on the thread that runs them.
   */
  private def announce(stream: StatefulOperatorStateInfo): Unit =
    if (CoordinatorService.isEnabled(confs)) {
      CoordinatorService.active.foreach { coordinator =>
        coordinator.batchPlanned(stream.queryRunId, stream.storeVersion, QueryRun.of(session, stream))
        session.sparkContext.setLocalProperty(
          InBandWire.CompletedProperty,
          coordinator.takeCompleted(stream.queryRunId).map(_.toString).orNull)
      }
    }

  /**
   * The checkpoint decides; an option that says otherwise is an error, a default is not. The
   * stream's conf takes the decision over, so that the providers read no other number.
   */
  private def pinMaxParallelism(stream: StatefulOperatorStateInfo): Int = pinned match {
    case Some((run, maxParallelism)) if run == stream.queryRunId => maxParallelism
    case _ =>
      val wanted = wantedMaxParallelism
      val checkpoint = new Path(stream.checkpointLocation).getParent
      val decided =
        BackendFile.pin(checkpoint, wanted, session.sessionState.newHadoopConf()).maxParallelism
      if (decided != wanted && conf.contains(SparkckptConf.MaxParallelism.key)) {
        throw SparkckptErrors.otherMaxParallelism(
          s"$checkpoint (${BackendFile.pathIn(checkpoint)})", decided, wanted)
      }
      conf.setConfString(SparkckptConf.MaxParallelism.key, decided.toString)
      pinned = Some(stream.queryRunId -> decided)
      decided
  }

  /**
   * Spark builds the providers' conf from the session's when it makes the RDDs, after planning;
   * that of a join, when it makes the node: hence before the rewriting, and that of a copy.
   */
  private def publishLayouts(plan: SparkPlan, maxParallelism: Int): Unit =
    StatefulOperators.in(plan).foreach {
      case writer: StateStoreWriter =>
        conf.setConfString(
          OperatorLayout.confKey(writer.getStateInfo.operatorId),
          StatefulOperators.layout(writer, maxParallelism).json)
      case _ =>
    }

  private def requireFormatVersion(): Unit = {
    val version = conf.stateStoreCheckpointFormatVersion
    if (version < KeyGroupRule.FormatVersion) {
      throw SparkckptErrors.checkpointFormatVersion(
        version, SQLConf.STATE_STORE_CHECKPOINT_FORMAT_VERSION.key)
    }
  }

  /**
   * Keys of another provider's checkpoint lie where Spark's own exchange sent them: the plan must
   * stay Spark's. Spark 4.3 goes on with the checkpoint's format version, 4.2 would mix the two.
   */
  private def leaveAlone(stream: StatefulOperatorStateInfo): Unit = {
    val provider = conf.stateStoreProviderClass
    val begunInFormat1 = stream.storeVersion > 0 && stream.stateStoreCkptIds.isEmpty
    val knowsFormat1Only = provider == classOf[HDFSBackedStateStoreProvider].getName
    if (conf.stateStoreCheckpointFormatVersion >= KeyGroupRule.FormatVersion &&
        (begunInFormat1 || knowsFormat1Only)) {
      throw SparkckptErrors.foreignProviderNeedsFormat1(
        provider, SQLConf.STATE_STORE_CHECKPOINT_FORMAT_VERSION.key)
    }
    if (!warned.contains(stream.queryRunId)) {
      warned = Some(stream.queryRunId)
      logWarning(
        s"The state in checkpoint ${new Path(stream.checkpointLocation).getParent} " +
          s"is kept by $provider, not by sparkckpt: the checkpoint was begun with it, or the " +
          s"session sets ${SQLConf.STATE_STORE_PROVIDER_CLASS.key}. The query runs as Spark " +
          "alone runs it. To use sparkckpt, bring the checkpoint in with `sparkckpt import`, or start " +
          "the query with a new checkpointLocation.")
    }
  }
}

object KeyGroupRule {
  /** Where Spark says the state of a streaming DataFrame lies that is explained, not run. */
  private val ExplainLocation = "<unknown>"
  private val FormatVersion = 2
}
