package org.apache.spark.sql.sparkckpt.inband

import java.time.Duration

import org.apache.spark.sql.{Encoders, Row}
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.sql.catalyst.encoders.ExpressionEncoder
import org.apache.spark.sql.catalyst.expressions.{GenericInternalRow, UnsafeRow}
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.statefulprocessor.StatefulProcessorHandleImpl
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.statevariables.ListStateImpl
import org.apache.spark.sql.execution.streaming.operators.stateful.transformwithstate.ttl.{OneToManyTTLState, OneToOneTTLState}
import org.apache.spark.sql.execution.streaming.state.StateStore
import org.apache.spark.sql.streaming.{TTLConfig, TimeMode}
import org.apache.spark.sql.types._

/** When a batch is, for a processor: its timestamps, -1 where it has none. */
case class ProcessorTime(timeMode: TimeMode, batchTimestampMs: Long, watermarkMs: Long) {
  def timerNowMs: Long = if (timeMode == TimeMode.EventTime()) watermarkMs else batchTimestampMs
}

/**
 * The state of a StatefulProcessor: its variables and timers. Spark's own handle makes the column
 * families and keeps the indexes of what expires; the rows go past its objects.
 */
final class ProcessorStates(
    store: StateStore,
    handle: StatefulProcessorHandleImpl,
    spec: ProcessorSpec,
    keyEncoder: ExpressionEncoder[Any],
    keySchema: StructType,
    time: ProcessorTime,
    counts: ProcessorCounts,
    run: String,
    stateBytes: Long) extends KeyState with FetchableState {

  spec.deleted.foreach(handle.deleteIfExists)
  private val variables: Array[StateVariable] = spec.variables.map(variable).toArray
  private val timers =
    if (time.timeMode == TimeMode.None()) None
    else Some(new ProcessorTimers(store, keyEncoder, keySchema, time.timeMode, time.timerNowMs))

  override val sentSchema: StructType = StructType(
    variables.zipWithIndex.map { case (v, i) => StructField(s"v$i", v.sentType) } :+
      StructField("expired", ArrayType(LongType)))

  override val updateSchema: StructType = StructType(
    StructField("ordinal", LongType) +:
      variables.zipWithIndex.toSeq.flatMap { case (v, i) =>
        Seq(StructField(s"op$i", ByteType), StructField(s"v$i", v.updateType))
      } :+
      StructField("timers", ArrayType(ProcessorStates.TimerChange)))

  private val sent = new GenericInternalRow(variables.length + 1)

  override def read(key: UnsafeRow, expired: Array[Long]): InternalRow = {
    var i = 0
    while (i < variables.length) {
      sent.update(i, variables(i).read(key))
      i += 1
    }
    sent.update(i, if (expired == null) null else new SizedArray(expired.toArray[Any], 8L * expired.length))
    sent
  }

  override def update(key: UnsafeRow, update: InternalRow): Unit = {
    var i = 0
    while (i < variables.length) {
      val operation = if (update.isNullAt(1 + 2 * i)) InBandWire.Nothing else update.getByte(1 + 2 * i)
      if (operation != InBandWire.Nothing) variables(i).update(key, operation, update, 2 + 2 * i)
      i += 1
    }
    val changes = 1 + 2 * variables.length
    if (!update.isNullAt(changes)) changeTimers(key, update, changes)
  }

  private def changeTimers(key: UnsafeRow, update: InternalRow, field: Int): Unit = {
    val changes = update.getArray(field)
    var i = 0
    while (i < changes.numElements()) {
      val change = changes.getStruct(i, 2)
      if (change.getBoolean(1)) {
        timers.get.register(key, change.getLong(0))
        counts.register()
      } else {
        timers.get.delete(key, change.getLong(0))
        counts.delete()
      }
      i += 1
    }
  }

  override def expired(): Iterator[ExpiredKey] = timers.map(_.expired()).getOrElse(Iterator.empty)

  override def canBeFetched: Boolean =
    timers.isDefined || variables.exists(_.isInstanceOf[FetchableVariable])

  override def fetchSchema(variable: Int): StructType =
    if (variable == ProcessorStates.Timers) ProcessorStates.TimerSchema
    else fetchable(variable).fetchSchema

  override def fetch(key: UnsafeRow, variable: Int): Iterator[InternalRow] =
    if (variable == ProcessorStates.Timers) {
      timers.map(_.of(key).iterator).getOrElse(Iterator.empty).map(InternalRow(_))
    } else fetchable(variable).fetch(key)

  private def fetchable(variable: Int): FetchableVariable = variables.lift(variable) match {
    case Some(fetchable: FetchableVariable) => fetchable
    case _ => throw new IllegalArgumentException(s"state variable $variable cannot be fetched")
  }

  private def variable(v: VariableSpec): StateVariable = {
    val encoder = Encoders.row(v.schema)
    val ttl = v.ttlMs.map(ms => TTLConfig(Duration.ofMillis(ms))).getOrElse(TTLConfig.NONE)
    val policy = new SendingPolicy(s"$run/${v.name}", stateBytes)
    v.kind match {
      case "value" =>
        val state = handle.getValueState[Row](v.name, encoder, ttl)
        val expiring = Some(state).collect { case s: OneToOneTTLState => s }
        new ValueVariable(store, v.name, v.schema, rows(v, expiring.map(s => () => s.ttlExpirationMs)),
          expiring, counts)
      case "list" =>
        handle.getListState[Row](v.name, encoder, ttl) match {
          case state: OneToManyTTLState =>
            new ListVariable(store, v.name, v.schema, rows(v, Some(() => state.ttlExpirationMs)),
              Right(state), counts, policy)
          case state =>
            new ListVariable(store, v.name, v.schema, rows(v, None),
              Left(state.asInstanceOf[ListStateImpl[_]]), counts, policy)
        }
      case "map" =>
        val userKey = v.userKeySchema.get
        val state = handle.getMapState[Row, Row](v.name, Encoders.row(userKey), encoder, ttl)
        val expiring = Some(state).collect { case s: OneToOneTTLState => s }
        new MapVariable(store, v.name, keySchema, userKey, v.schema,
          rows(v, expiring.map(s => () => s.ttlExpirationMs)), expiring, counts, policy)
    }
  }

  private def rows(v: VariableSpec, expires: Option[() => Long]): ValueRows =
    new ValueRows(v.schema, expires, time.batchTimestampMs)
}

object ProcessorStates {
  /** The timers of a key, where a number says which variable. */
  private val Timers = -1
  private val TimerSchema = new StructType().add("timestampMs", LongType)
  private val TimerChange = new StructType().add("timestampMs", LongType).add("register", BooleanType)
}
