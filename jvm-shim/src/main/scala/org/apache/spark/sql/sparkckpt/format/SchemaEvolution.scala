package org.apache.spark.sql.sparkckpt.format

import org.apache.spark.sql.catalyst.expressions._
import org.apache.spark.sql.sparkckpt.SparkckptErrors
import org.apache.spark.sql.types._

/**
 * Turns rows of an older schema into rows of a newer one, by field name at every depth: new fields are
 * null, dropped ones ignored, numbers widened. These are the changes Spark admits for state in the avro
 * encoding.
 */
final class SchemaEvolution(where: String) {
  def fields(written: StructType, wanted: StructType): Seq[Expression] =
    wanted.map { field =>
      written.getFieldIndex(field.name) match {
        case Some(i) =>
          adapt(BoundReference(i, written(i).dataType, nullable = true), field.dataType)
        case None => Literal.create(null, field.dataType)
      }
    }

  private def adapt(value: Expression, wanted: DataType): Expression = (value.dataType, wanted) match {
    case (from, to) if DataType.equalsIgnoreNullability(from, to) => value
    case (from: StructType, to: StructType) =>
      val fields = to.flatMap { field =>
        val member = from.getFieldIndex(field.name) match {
          case Some(i) => adapt(GetStructField(value, i), field.dataType)
          case None => Literal.create(null, field.dataType)
        }
        Seq(Literal(field.name), member)
      }
      If(IsNull(value), Literal.create(null, to), CreateNamedStruct(fields))
    case (ArrayType(from, _), ArrayType(to, _)) =>
      val element = NamedLambdaVariable("element", from, nullable = true)
      ArrayTransform(value, LambdaFunction(adapt(element, to), Seq(element)))
    case (from, to) if Cast.canUpCast(from, to) && !to.isInstanceOf[StringType] => Cast(value, to)
    case (from, to) =>
      throw SparkckptErrors.incompatibleSchemas(where, from.catalogString, to.catalogString)
  }
}
