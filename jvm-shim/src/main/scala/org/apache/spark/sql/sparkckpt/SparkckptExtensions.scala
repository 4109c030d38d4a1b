package org.apache.spark.sql.sparkckpt

import org.apache.spark.sql.SparkSessionExtensions
import org.apache.spark.sql.classic.ClassicConversions.castToImpl
import org.apache.spark.sql.sparkckpt.planner.KeyGroupRule

/** Puts the planner rule into every session; [[SparkckptPlugin]] names this in the conf. */
class SparkckptExtensions extends (SparkSessionExtensions => Unit) {
  override def apply(extensions: SparkSessionExtensions): Unit =
    extensions.injectColumnar(session => new KeyGroupRule(castToImpl(session)))
}
