package org.apache.spark.sql.sparkckpt.format

import org.apache.arrow.vector.{FieldVector, VarBinaryVector}
import org.apache.arrow.vector.types.pojo.{ArrowType, Field, FieldType}

import org.apache.spark.sql.catalyst.expressions.{BoundReference, UnsafeProjection, UnsafeRow}
import org.apache.spark.sql.sparkckpt.SparkckptErrors
import org.apache.spark.sql.types._
import org.apache.spark.sql.util.ArrowUtils
import org.apache.spark.sql.vectorized.ArrowColumnVector

/**
 * How one side of a state row, key or value, lies in a state file: as an Arrow struct of the state's
 * own types, or, where Arrow cannot hold them without loss, as the bytes of Spark's UnsafeRow.
 *
 * A key read back must have exactly the bytes Spark will look it up with, so a type goes typed only
 * if the round trip through Arrow is known to be exact.
 */
case class RowColumn(name: String, schema: StructType) {
  val typed: Boolean = schema.nonEmpty && RowColumn.isExact(schema)

  def encoding: String = if (typed) RowColumn.StructEncoding else RowColumn.UnsafeRowEncoding

  def arrowField: Field = if (typed) {
    ArrowUtils.toArrowField(name, RowColumn.arrowNames(schema), nullable = true, "UTC")
  } else {
    new Field(name, FieldType.nullable(ArrowType.Binary.INSTANCE), null)
  }
}

object RowColumn {
  val StructEncoding = "struct"
  val UnsafeRowEncoding = "unsaferow"

  private def isExact(dataType: DataType): Boolean = dataType match {
    case BooleanType | ByteType | ShortType | IntegerType | LongType | FloatType | DoubleType => true
    case _: StringType | BinaryType | DateType | TimestampType | TimestampNTZType => true
    case _: DecimalType | _: YearMonthIntervalType | _: DayTimeIntervalType => true
    case ArrayType(element, _) => isExact(element)
    case MapType(key, value, _) => isExact(key) && isExact(value)
    case StructType(fields) => fields.nonEmpty && fields.forall(f => isExact(f.dataType))
    case _ => false
  }

  /**
   * The schema as Arrow sees it: field metadata dropped, every field nullable, and names made unique
   * because an Arrow struct vector holds one child per name. Position is what identifies a field.
   */
  private def arrowNames(dataType: DataType): DataType = dataType match {
    case StructType(fields) =>
      val seen = scala.collection.mutable.Set.empty[String]
      StructType(fields.map { f =>
        var name = f.name
        var n = 0
        while (!seen.add(name)) { name = s"${f.name}_$n"; n += 1 }
        StructField(name, arrowNames(f.dataType), nullable = true)
      })
    case ArrayType(element, _) => ArrayType(arrowNames(element), containsNull = true)
    case MapType(key, value, _) => MapType(arrowNames(key), arrowNames(value))
    case _: StringType => StringType
    // Arrow has a type for months, but pyarrow and others cannot read it.
    case _: YearMonthIntervalType => IntegerType
    case other => other
  }
}

/** How the fields of a file are matched with those a store asks for, if the two differ. */
object FieldMatching extends Enumeration {
  /** With Spark's avro encoding of state, whose schemas evolve by name. */
  val ByName: Value = Value
  /** With Spark's own row format: names may differ, types and positions may not. */
  val ByPosition: Value = Value
  /** For Spark's state reader, which asks for a field more than the keys of some joins have. */
  val ByPositionElseName: Value = Value
}

/**
 * Reads one side of the rows of a record batch into UnsafeRows of the schema the store asks for.
 */
final class RowColumnReader(
    where: String,
    written: StructType,
    encoding: String,
    wanted: StructType,
    matching: FieldMatching.Value) {
  private val typed = encoding == RowColumn.StructEncoding
  private val unchanged =
    if (matching == FieldMatching.ByName) DataType.equalsIgnoreNullability(written, wanted)
    else DataType.equalsStructurally(written, wanted, ignoreNullability = true)
  if (!unchanged && matching == FieldMatching.ByPosition) {
    throw SparkckptErrors.incompatibleSchemas(where, written.catalogString, wanted.catalogString)
  }
  private lazy val projection = UnsafeProjection.create(
    if (unchanged) wanted.zipWithIndex.map { case (f, i) => BoundReference(i, f.dataType, true) }
    else new SchemaEvolution(where).fields(written, wanted))
  private val direct =
    if (typed && unchanged && StructRowReader.supports(written)) new StructRowReader(written) else null
  private val raw = new UnsafeRow(written.length)

  private var vector: FieldVector = _
  private var hasNulls = false
  private var column: ArrowColumnVector = _

  def reset(next: FieldVector): Unit = {
    vector = next
    hasNulls = next.getNullCount > 0
    if (direct != null) direct.reset(next)
    else if (typed) column = new ArrowColumnVector(next)
  }

  /** The row at `index`, null if the side is null there. Valid until the next call. */
  def row(index: Int): UnsafeRow = {
    if (hasNulls && vector.isNull(index)) null
    else if (direct != null) direct.row(index)
    else if (typed) projection(column.getStruct(index))
    else {
      val bytes = vector.asInstanceOf[VarBinaryVector].get(index)
      raw.pointTo(bytes, bytes.length)
      if (unchanged) raw else projection(raw)
    }
  }
}
