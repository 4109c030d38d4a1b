package org.apache.spark.sql.sparkckpt.state.memory

import org.apache.spark.sql.sparkckpt.MemoryExceededException

/** Two stores that ask for memory at the same time, for a test in Python. */
class MemoryBudgetHarness {
  import MemoryBudgetHarness._

  /** How often a store is refused what there is room for, while another asks for too much. */
  def refusals(times: Int): Int = {
    @volatile var done = false
    val other = new Thread(() => {
      val greedy = new MemoryBudget("the other store", Limit, None)
      while (!done) granted(greedy, Limit + 1)
    })
    other.start()
    val modest = new MemoryBudget("the store", Limit, None)
    try (1 to times).count { _ =>
      val refused = !granted(modest, Limit / 2)
      modest.close()
      refused
    } finally {
      done = true
      other.join()
    }
  }

  private def granted(budget: MemoryBudget, bytes: Long): Boolean =
    try { budget.reserve(bytes); true } catch { case _: MemoryExceededException => false }
}

private object MemoryBudgetHarness {
  /** Far beyond what real stores of the process hold. */
  private val Limit = 1L << 40
}
