"""What the stores of one executor may hold in memory together."""

from typing import Any


def test_a_store_is_not_refused_what_another_asks_for_in_vain(spark: Any) -> None:
    utils = spark._jvm.org.apache.spark.util.Utils
    name = "org.apache.spark.sql.sparkckpt.state.memory.MemoryBudgetHarness"
    nothing = spark.sparkContext._gateway.new_array(spark._jvm.java.lang.Object, 0)
    harness = utils.classForName(name, True, False).getConstructors()[0].newInstance(nothing)
    assert harness.refusals(10_000_000) == 0
