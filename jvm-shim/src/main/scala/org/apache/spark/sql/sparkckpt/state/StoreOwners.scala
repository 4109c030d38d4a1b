package org.apache.spark.sql.sparkckpt.state

import java.util.concurrent.ConcurrentHashMap

import org.apache.spark.sql.execution.streaming.state.StateStoreId

/**
 * The providers in this executor that write, by store: a query that is restarted gets new ones, and
 * Spark unloads those of its former run only minutes later. What they hold in memory until then would
 * be missing to their successors.
 */
private[state] object StoreOwners {
  private val owners = new ConcurrentHashMap[StateStoreId, KeyGroupStateStoreProvider]

  /** Has the one before, if there is one, give up what it holds. */
  def replace(store: StateStoreId, by: KeyGroupStateStoreProvider): Unit =
    Option(owners.put(store, by)).foreach(_.giveUp())

  def remove(store: StateStoreId, provider: KeyGroupStateStoreProvider): Unit =
    owners.remove(store, provider)
}
