"""Keys with a collation, which Spark hashes by it and transformWithState keeps without it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StatefulProcessor

import sparkckpt
from sparkckpt.errors import UnsupportedTypeError
from tests.spark.accelerated import accelerated
from tests.spark.streams import Backend, Job, assert_same_after_restart, run

BATCHES = [
    [{"k": "a", "v": 1}, {"k": "B", "v": 2}],
    [{"k": "A", "v": 4}, {"k": "b", "v": 8}, {"k": "c", "v": 16}, {"k": "a", "v": 32}],
]


class Sums(StatefulProcessor):
    def init(self, handle: Any) -> None:
        self._sum = handle.getValueState("sum", "total long")
        self._seen = handle.getMapState("seen", "v long", "times long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        total = self._sum.get()[0] if self._sum.exists() else 0
        for row in rows:
            total += row.v
            self._seen.updateValue((row.v,), (1,))
        self._sum.update((total,))
        yield Row(k=key[0].lower(), total=total)

    def close(self) -> None:
        pass


def sums(df: DataFrame) -> DataFrame:
    keyed = df.selectExpr("k collate UNICODE_CI as k", "v")
    return keyed.groupBy("k").transformWithState(Sums(), "k string, total long", "Update", "None")


JOB = Job.of("k string, v long", BATCHES, sums, "update")


def test_transform_with_state(
    spark: SparkSession, backend: Backend, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    output = assert_same_after_restart(spark, JOB, tmp_path, backend)
    assert run(spark, accelerated(JOB), tmp_path / "accelerated", backend) == output
    assert "(Sums) runs on Spark's own operator: its key k has a collation" in caplog.text


@pytest.mark.parametrize("collation", ["UTF8_LCASE", "UNICODE"])
def test_our_own_apis_refuse_keys_with_a_collation(spark: SparkSession, collation: str) -> None:
    rows = spark.readStream.format("rate").load()
    keyed = rows.selectExpr(f"struct(cast(value as string) collate {collation} as x) as k")
    with pytest.raises(UnsupportedTypeError, match="its key k has a collation"):
        sparkckpt.fold(keyed.groupBy("k"), n=sparkckpt.count_())
