package org.apache.spark.sql.sparkckpt.state

import org.apache.spark.sql.catalyst.expressions.{BoundReference, Cast, Expression, GetStructField, UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorsUtils._
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.StateStoreColumnFamilySchemaUtils
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.timers.TimerStateUtils
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.sparkckpt.KeyGroups
import org.apache.spark.sql.types.{DataType, StructType}

/** Finds the key group of a state key: the hash of the grouping key inside it, modulo M. */
final class KeyGroupExtractor(groupingKey: Seq[Expression], maxParallelism: Int) {
  private val hash = UnsafeProjection.create(Seq(KeyGroups.hashExpression(groupingKey)))

  def keyGroupOf(key: UnsafeRow): Int = KeyGroups.keyGroupOf(hash(key).getInt(0), maxParallelism)
}

/**
 * Where in a state key the grouping key lies, the key the rows were shuffled by. Each operator wraps
 * it in its own way: joins append an index or a timestamp, map state a user key, timers and TTL put
 * a time before or after it.
 */
object KeyGroupExtractor {
  /**
   * @param isMapState whether the named state variable of a transformWithState is a map; asked of the
   *                   store, since a TTL index does not say what it indexes
   */
  def groupingKey(
      operatorName: String,
      storeName: String,
      family: String,
      keySpec: KeyStateEncoderSpec,
      isMapState: String => Boolean): Seq[Expression] = {
    val schema = keySpec.keySchema
    keySpec match {
      case _: TimestampAsPrefixKeyStateEncoderSpec | _: TimestampAsPostfixKeyStateEncoderSpec =>
        leading(schema, schema.length - 1)
      case _ if operatorName == SYMMETRIC_HASH_JOIN_EXEC_OP_NAME =>
        val keyWithIndex = Seq(storeName, family).exists(_.endsWith("keyWithIndexToValue"))
        leading(schema, if (keyWithIndex) schema.length - 1 else schema.length)
      case _ if operatorName == SESSION_WINDOW_STATE_STORE_SAVE_EXEC_OP_NAME =>
        leading(schema, schema.length - 1)
      case _ if TRANSFORM_WITH_STATE_OP_NAMES.contains(operatorName) =>
        transformWithState(family, keySpec, isMapState)
      case _ => leading(schema, schema.length)
    }
  }

  /**
   * The grouping key as the exchange hashes it: equal under its collations are equal key groups. The
   * encoders of transformWithState know no collations, and neither do the schemas they give a state.
   */
  def collated(groupingKey: Seq[Expression], types: Option[Seq[DataType]]): Seq[Expression] =
    types match {
      case Some(wanted) if wanted.length == groupingKey.length =>
        groupingKey.zip(wanted).map { case (key, dataType) =>
          if (key.dataType == dataType) key else Cast(key, dataType)
        }
      case _ => groupingKey
    }

  private def transformWithState(
      family: String,
      keySpec: KeyStateEncoderSpec,
      isMapState: String => Boolean): Seq[Expression] = {
    import StateStoreColumnFamilySchemaUtils._
    val schema = keySpec.keySchema
    if (TimerStateUtils.isTimerCFName(family)) {
      fieldsOf(field(schema, if (TimerStateUtils.isTimerSecondaryIndexCF(family)) 1 else 0))
    } else if (isTtlColFamilyName(family)) {
      val element = field(schema, 1)
      if (isMapState(getStateNameFromTtlColFamily(family))) fieldsOf(GetStructField(element, 0))
      else fieldsOf(element)
    } else if (isMapKey(keySpec)) {
      fieldsOf(field(schema, 0))
    } else {
      leading(schema, schema.length)
    }
  }

  def indexedVariable(family: String): Option[String] = {
    import StateStoreColumnFamilySchemaUtils._
    Option.when(isTtlColFamilyName(family))(getStateNameFromTtlColFamily(family))
  }

  /** Only map state is scanned by prefix: its keys are (grouping key, user key). */
  def isMapKey(keySpec: KeyStateEncoderSpec): Boolean =
    keySpec.isInstanceOf[PrefixKeyScanStateEncoderSpec]

  private def leading(schema: StructType, n: Int): Seq[Expression] =
    (0 until n).map(field(schema, _))

  private def field(schema: StructType, i: Int): Expression =
    BoundReference(i, schema(i).dataType, nullable = true)

  private def fieldsOf(struct: Expression): Seq[Expression] =
    struct.dataType.asInstanceOf[StructType].indices.map(GetStructField(struct, _))
}
