package org.apache.spark.sql.sparkckpt.transfer

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.Path

import org.apache.spark.sql.catalyst.expressions.Expression
import org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
import org.apache.spark.sql.execution.streaming.operators.stateful.StatefulOperatorsUtils._
import org.apache.spark.sql.execution.streaming.operators.stateful.join.StreamingSymmetricHashJoinHelper.{LeftSide, RightSide}
import org.apache.spark.sql.execution.streaming.operators.stateful.join.SymmetricHashJoinStateManager
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.{StateStoreColumnFamilySchemaUtils, StateVariableType, TransformWithStateOperatorProperties}
import org.apache.spark.sql.execution.streaming.state._
import org.apache.spark.sql.sparkckpt.SparkckptErrors
import org.apache.spark.sql.sparkckpt.state.KeyGroupExtractor
import org.apache.spark.sql.types.StructType

/** A column family of a store, whichever provider keeps it. */
case class FamilyShape(
    name: String,
    registeredKeySchema: StructType,
    valueSchema: StructType,
    keySpec: KeyStateEncoderSpec,
    multiValued: Boolean,
    groupingKey: Seq[Expression]) {

  /** That of the rows: the registered one may lack a field that the encoder adds. */
  def keyFields: Int = keySpec.keySchema.length

  def isDefault: Boolean = name == StateStore.DEFAULT_COL_FAMILY_NAME

  def createIn(store: StateStore): Unit = store.createColFamilyIfAbsent(
    name, registeredKeySchema, valueSchema, keySpec, multiValued,
    StateStoreColumnFamilySchemaUtils.isInternalColFamily(name))
}

/**
 * What a store looks like, learnt from the files that Spark writes beside its state: enough to open it
 * without the query. It is the same in the source and in the target of a transfer.
 *
 * @param families those that can hold rows
 * @param default the schema that a provider is initialized with
 */
case class StoreShape(
    operatorId: Long,
    operatorName: String,
    storeName: String,
    families: Seq[FamilyShape],
    default: FamilyShape,
    useColumnFamilies: Boolean,
    schemaProvider: Option[StateSchemaProvider]) {

  /** Operators that need all tuples in one place have one partition whatever the parallelism. */
  val keyed: Boolean =
    operatorName != StoreShape.GlobalLimit && families.forall(_.groupingKey.nonEmpty)
}

object StoreShape {
  private val GlobalLimit = "globalLimit"
  private val known: Set[String] =
    (Seq(STATE_STORE_SAVE_EXEC_OP_NAME, SESSION_WINDOW_STATE_STORE_SAVE_EXEC_OP_NAME,
      DEDUPLICATE_EXEC_OP_NAME, DEDUPLICATE_WITHIN_WATERMARK_EXEC_OP_NAME,
      SYMMETRIC_HASH_JOIN_EXEC_OP_NAME, GlobalLimit) ++
      FLAT_MAP_GROUPS_OP_NAMES ++ TRANSFORM_WITH_STATE_OP_NAMES).toSet
  private lazy val joinLists: Set[String] =
    SymmetricHashJoinStateManager.allStateStoreNamesV4(LeftSide, RightSide).toSet

  /** The stores of an operator, in the order of its metadata. */
  def ofOperator(
      checkpoint: Path, operator: TransferOperator, hadoopConf: Configuration): Seq[StoreShape] = {
    val files = CheckpointFileManager.create(checkpoint, hadoopConf)
    val path = new Path(checkpoint, operator.metadata)
    val version = if (path.getParent.getName == "v2") 2 else 1
    val metadata = OperatorStateMetadataUtils.readMetadata(files.open(path), version).get
    val operatorName = metadata.operatorInfo.operatorName
    if (!known.contains(operatorName)) {
      throw SparkckptErrors.unknownOperator(checkpoint.toString, operator.operatorId, operatorName)
    }
    val lists = metadata match {
      case v2: OperatorStateMetadataV2 if TRANSFORM_WITH_STATE_OP_NAMES.contains(operatorName) =>
        TransformWithStateOperatorProperties.fromJson(v2.operatorPropertiesJson).stateVariables
          .filter(_.stateVariableType == StateVariableType.ListState).map(_.stateName).toSet
      case _ => joinLists
    }
    metadata.stateStoresMetadata.zip(operator.schemas).map { case (store, schemas) =>
      val paths = schemas.map(new Path(checkpoint, _))
      ofStore(operator.operatorId, operatorName, store, lists,
        StateSchemaCompatibilityChecker.readSchemaFile(files.open(paths.last)),
        schemaProvider(checkpoint, operatorName, paths, hadoopConf))
    }
  }

  private def ofStore(
      operatorId: Long,
      operatorName: String,
      store: StateStoreMetadata,
      lists: Set[String],
      schemas: Seq[StateStoreColFamilySchema],
      schemaProvider: Option[StateSchemaProvider]): StoreShape = {
    val transforms = TRANSFORM_WITH_STATE_OP_NAMES.contains(operatorName)
    val specs = schemas.map(s => s.colFamilyName -> keySpec(s, store)).toMap
    def isMapState(variable: String): Boolean = specs.get(variable).exists(KeyGroupExtractor.isMapKey)
    // transformWithState declares a default family that it never uses, with some other schema.
    val families = schemas
      .filterNot(s => transforms && s.colFamilyName == StateStore.DEFAULT_COL_FAMILY_NAME)
      .map { schema =>
        val name = schema.colFamilyName
        FamilyShape(name, schema.keySchema, schema.valueSchema, specs(name), lists.contains(name),
          KeyGroupExtractor.groupingKey(
            operatorName, store.storeName, name, specs(name), isMapState))
      }
    val first = schemas.find(_.colFamilyName == StateStore.DEFAULT_COL_FAMILY_NAME)
      .getOrElse(schemas.head)
    val default = FamilyShape(StateStore.DEFAULT_COL_FAMILY_NAME, first.keySchema,
      first.valueSchema,
      families.find(_.isDefault).map(_.keySpec)
        .getOrElse(NoPrefixKeyStateEncoderSpec(first.keySchema)),
      multiValued = false, Nil)
    StoreShape(operatorId, operatorName, store.storeName, families, default,
      transforms || families.exists(!_.isDefault), schemaProvider)
  }

  /** Where operators keep no encoder with their schema, it follows from their metadata. */
  private def keySpec(
      schema: StateStoreColFamilySchema, store: StateStoreMetadata): KeyStateEncoderSpec =
    schema.keyStateEncoderSpec.getOrElse {
      if (store.numColsPrefixKey > 0) {
        PrefixKeyScanStateEncoderSpec(schema.keySchema, store.numColsPrefixKey)
      } else {
        NoPrefixKeyStateEncoderSpec(schema.keySchema)
      }
    }

  private def schemaProvider(
      checkpoint: Path,
      operatorName: String,
      schemas: Seq[Path],
      hadoopConf: Configuration): Option[StateSchemaProvider] =
    Option.when(TRANSFORM_WITH_STATE_OP_NAMES.contains(operatorName)) {
      new InMemoryStateSchemaProvider(StateSchemaMetadata.createStateSchemaMetadata(
        new Path(checkpoint, "state").toString, hadoopConf, schemas.map(_.toString).toList))
    }
}
