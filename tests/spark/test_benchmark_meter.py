"""The garbage meter of the benchmarks, in a real JVM."""

from pyspark.sql import SparkSession

from benchmarks.jvm import GarbageMeter

MEBIBYTE = 2**20


def test_allocation_and_collections_of_the_jvm_are_measured(spark: SparkSession) -> None:
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    with GarbageMeter(gateway) as meter:
        for _ in range(20):
            gateway.new_array(gateway.jvm.byte, MEBIBYTE)
        gateway.jvm.java.lang.System.gc()
    assert 20 * MEBIBYTE <= meter.garbage.allocated_bytes < 2000 * MEBIBYTE
    assert meter.garbage.collections >= 1
    assert meter.garbage.gc_ms >= 1
    assert len(meter.garbage.collectors) >= 2
