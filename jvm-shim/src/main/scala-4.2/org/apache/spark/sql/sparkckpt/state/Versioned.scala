package org.apache.spark.sql.sparkckpt.state

import org.apache.spark.sql.execution.streaming.state._

/** The part of a state store that is particular to Spark 4.2: nothing. */
trait VersionedStateStore extends StateStore {
  protected[state] def engineStore: StateStore
}

/** The part of a provider that is particular to Spark 4.2. */
trait VersionedStateStoreProvider extends StateStoreProvider {
  protected def mergeFiles(): Unit
  protected def cleanUp(): Unit

  override def doMaintenance(): Unit = {
    mergeFiles()
    cleanUp()
  }
}
