package org.apache.spark.sql.sparkckpt.planner

import scala.annotation.tailrec

import org.apache.spark.sql.catalyst.plans.physical.{ClusteredDistribution, HashPartitioning}
import org.apache.spark.sql.execution.{SortExec, SparkPlan}
import org.apache.spark.sql.execution.adaptive.QueryStageExec
import org.apache.spark.sql.execution.exchange.{EnsureRequirements, Exchange, REQUIRED_BY_STATEFUL_OPERATOR, ShuffleExchangeExec}
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperator
import org.apache.spark.sql.sparkckpt.SparkckptErrors

/**
 * Makes the rows of every stateful operator arrive by key group. Where Spark put a hash exchange
 * below the operator, only its partitioning is swapped; where the operator lives off something else
 * (a bucketed table, a union, the exchange of a join), an exchange of its own is put below it.
 *
 * Either changes what the operators above and beside see, so Spark's requirements are ensured anew
 * after each step; without that, a join of a swapped side with an untouched one loses rows. That
 * can in turn undo a swap or create an exchange to swap, hence the steps. The plan comes out only
 * when every stateful operator has what it needs; otherwise planning fails.
 */
class KeyGroupPlanner(maxParallelism: Int) {
  import StatefulOperators.Streaming

  def apply(plan: SparkPlan): SparkPlan = {
    StatefulOperators.in(plan).foreach(requireKeyGroupPerPartition)
    settle(plan, List(swapExchanges, swapExchanges, addExchanges, addExchanges))
  }

  @tailrec
  private def settle(plan: SparkPlan, steps: List[SparkPlan => SparkPlan]): SparkPlan =
    (StatefulOperators.in(plan).find(lacksKeyGroups), steps) match {
      case (None, _) => plan
      case (_, step :: rest) => settle(ensureRequirements(step(plan)), rest)
      case (Some(operator), Nil) =>
        throw SparkckptErrors.exchangeNotReplaced(
          StatefulOperators.describe(operator), "its exchange was changed back by Spark")
    }

  private def lacksKeyGroups(operator: StatefulOperator): Boolean =
    operator.children.zip(StatefulOperators.inputs(operator)).exists {
      case (child, Some(input)) => !input.isGivenBy(child, maxParallelism)
      case _ => false
    }

  private val swapExchanges: SparkPlan => SparkPlan = mapInputs { (_, child, input) =>
    swapExchange(child, input).filter(input.isGivenBy(_, maxParallelism)).getOrElse(child)
  }

  private val addExchanges: SparkPlan => SparkPlan = mapInputs { (operator, child, input) =>
    requireNoSharedState(operator, child)
    ShuffleExchangeExec(partitioningFor(input), child, REQUIRED_BY_STATEFUL_OPERATOR)
  }

  private def partitioningFor(input: KeyedInput): KeyGroupPartitioning =
    new KeyGroupPartitioning(input.keys, input.parallelism, maxParallelism)

  /** Bottom up: an operator may live off the exchange of the stateful operator below it. */
  private def mapInputs(
      change: (StatefulOperator, SparkPlan, KeyedInput) => SparkPlan): SparkPlan => SparkPlan =
    _.transformUp { case Streaming(operator) =>
      operator.withNewChildren(
        operator.children.zip(StatefulOperators.inputs(operator)).map {
          case (child, Some(input)) if !input.isGivenBy(child, maxParallelism) =>
            change(operator, child, input)
          case (child, _) => child
        })
    }

  /**
   * Follows single children only. An exchange on one side of a join belongs to the join, which
   * would have Spark change it back. The keys are the exchange's own: nodes in between may rename.
   */
  private def swapExchange(plan: SparkPlan, input: KeyedInput): Option[SparkPlan] = plan match {
    case exchange: ShuffleExchangeExec =>
      exchange.outputPartitioning match {
        case _: KeyGroupPartitioning => None
        case hash: HashPartitioning if hash.numPartitions == input.parallelism =>
          val swapped = exchange.copy(
            outputPartitioning =
              new KeyGroupPartitioning(hash.expressions, hash.numPartitions, maxParallelism))
          swapped.copyTagsFrom(exchange)
          Some(swapped)
        case _ => None
      }
    case _: Exchange => None
    case other if other.children.size == 1 =>
      swapExchange(other.children.head, input).map(child => other.withNewChildren(Seq(child)))
    case _ => None
  }

  private def ensureRequirements(plan: SparkPlan): SparkPlan =
    EnsureRequirements()(plan.transformUp { case join if join.children.size > 1 => bare(join) })

  /**
   * Takes the sorts off that Spark added below a join and will add again: it reuses an exchange it
   * finds directly below, and would put a second one on top of a sort.
   */
  private def bare(join: SparkPlan): SparkPlan = {
    val requirements = join.requiredChildDistribution.zip(join.requiredChildOrdering)
    join.withNewChildren(join.children.zip(requirements).map {
      case (SortExec(order, false, exchange: ShuffleExchangeExec, _),
          (_: ClusteredDistribution, required)) if order == required => exchange
      case (child, _) => child
    })
  }

  /**
   * An aggregation reads its state in one node and writes it in another. An exchange between the
   * two would write the state of a key into another store than it is read from.
   */
  private def requireNoSharedState(operator: StatefulOperator, child: SparkPlan): Unit = {
    def reason(plan: SparkPlan): Option[String] = plan match {
      case _: QueryStageExec => Some("adaptive query execution is on for its plan")
      case _: Exchange => None
      case Streaming(other) if other.getStateInfo.operatorId == operator.getStateInfo.operatorId =>
        Some("there is no exchange below the node that reads its state")
      case other => other.children.flatMap(reason).headOption
    }
    reason(child).foreach { why =>
      throw SparkckptErrors.exchangeNotReplaced(StatefulOperators.describe(operator), why)
    }
  }

  private def requireKeyGroupPerPartition(operator: StatefulOperator): Unit =
    StatefulOperators.inputs(operator).flatten.map(_.parallelism).filter(_ > maxParallelism)
      .foreach { parallelism =>
        throw SparkckptErrors.parallelismAboveMaximum(
          StatefulOperators.describe(operator), parallelism, maxParallelism)
      }
}
