package org.apache.spark.sql.sparkckpt.inband

import java.util.concurrent.CopyOnWriteArrayList

import org.json4s.{DefaultFormats, Formats, JValue}
import org.json4s.jackson.JsonMethods.{compact, parse, render}

import org.apache.spark.sql.catalyst.expressions.{Expression, PythonUDF}
import org.apache.spark.sql.sparkckpt.SparkckptErrors
import org.apache.spark.sql.types.{DataType, StructType}

/** A state variable that a StatefulProcessor asks for when it is initialized. */
case class VariableSpec(
    name: String,
    kind: String,
    schema: StructType,
    userKeySchema: Option[StructType],
    ttlMs: Option[Long])

/**
 * What Python has found out about a processor when it was defined, and its operator must know.
 *
 * @param host "groups": one state per key (applyInPandasWithState); "processor": a StatefulProcessor
 * @param variables state variables of a processor, in the order in which it asks for them
 * @param deleted state variables that it wants to be rid of
 * @param operatorState whether it keeps state per partition, too
 * @param columns which of the input's columns Python needs besides the key, where not all
 */
case class ProcessorSpec(
    host: String,
    variables: Seq[VariableSpec],
    deleted: Seq[String],
    operatorState: Boolean,
    columns: Option[Set[String]])

/**
 * The specs of the processors defined in this application. A Python function names its spec by a
 * number at the end of its own name, the only thing of it that a plan shows and keeps.
 */
object ProcessorSpecs {
  val Groups: String = "groups"
  val Processor: String = "processor"
  private val WireVersion = 1
  private val Marked = """.* \[in-band #(\d+)\]""".r
  private val specs = new CopyOnWriteArrayList[ProcessorSpec]()
  private implicit val formats: Formats = DefaultFormats

  /** For Python. */
  def register(json: String): Int = synchronized {
    specs.add(read(json))
    specs.size - 1
  }

  def of(function: Expression, host: String): Option[ProcessorSpec] = function match {
    case udf: PythonUDF => udf.name match {
      case Marked(number) => specOf(number).filter(_.host == host)
      case _ => None
    }
    case _ => None
  }

  private def specOf(number: String): Option[ProcessorSpec] =
    number.toIntOption.filter(_ < specs.size).map(specs.get)

  private def read(json: String): ProcessorSpec = {
    val spec = parse(json)
    val version = (spec \ "version").extract[Int]
    if (version != WireVersion) throw SparkckptErrors.otherWireVersion(version, WireVersion)
    ProcessorSpec(
      host = (spec \ "host").extract[String],
      variables = (spec \ "variables").extractOrElse[List[JValue]](Nil).map(readVariable),
      deleted = (spec \ "deleted").extractOrElse[List[String]](Nil),
      operatorState = (spec \ "operatorState").extractOrElse[Boolean](false),
      columns = (spec \ "columns").toOption.map(_.extract[List[String]].toSet))
  }

  private def readVariable(spec: JValue): VariableSpec = VariableSpec(
    name = (spec \ "name").extract[String],
    kind = (spec \ "kind").extract[String],
    schema = schemaOf(spec \ "schema"),
    userKeySchema = (spec \ "userKeySchema").toOption.map(schemaOf),
    ttlMs = (spec \ "ttlMs").extractOpt[Long])

  private def schemaOf(json: JValue): StructType =
    DataType.fromJson(compact(render(json))).asInstanceOf[StructType]
}
