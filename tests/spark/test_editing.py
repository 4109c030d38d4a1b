"""Queries that go on from edited savepoints: with other rows, and with another schema of state."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming import StatefulProcessorHandle
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

import sparkckpt
from tests.spark.faults import wait_until
from tests.spark.jobs import EVENTS, event
from tests.spark.python_jobs import OUTPUT, Frames, Processor, frame
from tests.spark.rescaling import when_stopped
from tests.spark.streams import Backend, Job, canonical_rows
from tests.spark.test_restore import Runner, is_complete

cloudpickle.register_pickle_by_value(sys.modules[__name__])

BATCHES = [
    [event("a", 1, 0), event("b", 2, 0), event("c", 3, 0)],
    [event("a", 10, 1), event("b", 20, 1), event("d", 40, 1)],
]


def sums(key: tuple[str], frames: Frames, state: GroupState) -> Frames:
    (total,) = state.get if state.exists else (0,)
    total += sum(int(rows["v"].sum()) for rows in frames)
    state.update((total,))
    yield frame(key[0], f"{total}")


def sums_with_counts(key: tuple[str], frames: Frames, state: GroupState) -> Frames:
    total, count, label = state.get if state.exists else (0, 0, "new")
    total += sum(int(rows["v"].sum()) for rows in frames)
    state.update((total, count + 1, label))
    yield frame(key[0], f"{total} {count + 1} {label}")


def in_pandas(function: Any, state: str) -> Job:
    def transform(df: DataFrame) -> DataFrame:
        return df.groupBy("k").applyInPandasWithState(
            function, OUTPUT, state, "update", GroupStateTimeout.NoTimeout
        )

    return Job.of(EVENTS, BATCHES, transform, "update")


class Sums(Processor):
    """A value, a list and a map by key."""

    def declare(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "sum int")
        self.seen = handle.getListState("seen", "v long")
        self.by_half = handle.getMapState("byHalf", "half int", "n long")

    def on_values(self, values: list[tuple[int, Any]], timers: Any) -> Iterator[str]:
        total = self.total.get()[0] if self.total.exists() else 0
        for value, _ in values:
            total += value
            self.seen.appendValue((value,))
            self.by_half.updateValue((value % 2,), (value,))
        self.total.update((total,))
        yield f"{total}"


class LabelledSums(Processor):
    """The same with other schemas."""

    def declare(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "sum long, label string")
        self.seen = handle.getListState("seen", "odd boolean, v long")
        self.by_half = handle.getMapState("byHalf", "half int", "last long")

    def on_values(self, values: list[tuple[int, Any]], timers: Any) -> Iterator[str]:
        total, label = self.total.get() if self.total.exists() else (0, "new")
        for value, _ in values:
            total += value
            self.seen.appendValue((value % 2 == 1, value))
        self.total.update((total, label))
        seen = [(bool(odd), int(v)) for odd, v in self.seen.get()]
        halves = sorted((int(k[0]), int(n[0])) for k, n in self.by_half.iterator())
        yield f"{total} {label} {seen} {halves}"


def processed(processor: type[Processor]) -> Job:
    def transform(df: DataFrame) -> DataFrame:
        return df.groupBy("k").transformWithStateInPandas(
            processor(pandas=True), OUTPUT, "Update", "None"
        )

    return Job.of(EVENTS, BATCHES, transform, "update")


def first_part(runner: Runner, tmp_path: Path) -> Path:
    """Runs the first batch, and takes a savepoint."""
    runner.run(tmp_path / "checkpoint", range(1))
    wait_until(lambda: is_complete(tmp_path / "checkpoint"))
    when_stopped(lambda: sparkckpt.savepoint(tmp_path / "checkpoint", tmp_path / "sp"))
    return tmp_path / "sp"


def goes_on(runner: Runner, savepoint: Path, target: Path, job: Job) -> list[str]:
    """What the second batch puts out with other code."""
    assert sparkckpt.verify(savepoint).num_rows == 0
    sparkckpt.restore(savepoint, target, parallelism=3)
    runner.run(target, range(1, 2), job)
    return runner.output[1]


def rows(**what: str) -> list[str]:
    return canonical_rows([Row(k=key, what=text) for key, text in what.items()])


def test_groups_go_on(spark: SparkSession, backend: Backend, tmp_path: Path) -> None:
    runner = Runner(spark, in_pandas(sums, "total long"), tmp_path, backend)
    editor = sparkckpt.edit(first_part(runner, tmp_path))
    state = editor.operator(0).state()
    state.filter(pc.field("k") != "b")
    state.add_column("count", "long", 1).add_column("label", "string", "old")
    state.transform(lambda t: t.set_column(1, "total", pc.multiply(t["total"], 100)))
    editor.write(tmp_path / "edited")
    job = in_pandas(sums_with_counts, "total long, count long, label string")
    assert goes_on(runner, tmp_path / "edited", tmp_path / "restored", job) == rows(
        a="110 2 old",
        b="20 1 new",
        d="40 1 new",
    )


def test_an_aggregation_goes_on(spark: SparkSession, backend: Backend, tmp_path: Path) -> None:
    def summed(df: DataFrame) -> DataFrame:
        return df.groupBy("k").agg(
            sf.concat(sf.sum("v"), sf.lit(" in "), sf.count("*")).alias("what")
        )

    job = Job.of(EVENTS, BATCHES, summed, "update")
    runner = Runner(spark, job, tmp_path, backend)
    editor = sparkckpt.edit(first_part(runner, tmp_path))
    state = editor.operator(0).state().filter(pc.field("k") != "b")
    state.transform(lambda t: t.set_column(1, t.column_names[1], pc.multiply(t[1], 100)))
    editor.write(tmp_path / "edited")
    found = goes_on(runner, tmp_path / "edited", tmp_path / "restored", job)
    assert found == rows(a="110 in 2", b="20 in 1", d="40 in 1")


def test_variables_go_on(spark: SparkSession, backend: Backend, tmp_path: Path) -> None:
    runner = Runner(spark, processed(Sums), tmp_path, backend)
    editor = sparkckpt.edit(first_part(runner, tmp_path))
    operator = editor.operator(0)
    operator.state("total").widen_column("sum", "long").add_column("label", "string", "old")
    flipped = pa.table({"k": ["a", "a", "d"], "odd": [True, None, False], "v": [7, 8, 9]})
    seen = operator.state("seen").add_column("odd", "boolean").add_column("w", "long")
    seen.transform(lambda t: t.set_column(4, "w", t["v"])).drop_column("v")
    seen.rename_column("w", "v").replace(flipped)
    operator.state("byHalf").rename_column("n", "last").filter(pc.field("half") == 1)
    editor.write(tmp_path / "edited")
    after = processed(LabelledSums)
    assert goes_on(runner, tmp_path / "edited", tmp_path / "restored", after) == rows(
        a="11 old [(True, 7), (False, 8), (False, 10)] [(1, 1)]",
        b="22 old [(False, 20)] []",
        d="40 new [(False, 9), (False, 40)] []",
    )
    totals = spark.createDataFrame([("a", 1000, "first")], "k string, sum long, label string")
    sparkckpt.bootstrap(
        tmp_path / "first",
        {"total": totals, "byHalf": pa.table({"k": ["b"], "half": [0], "last": [5]})},
        like=tmp_path / "edited",
    )
    assert goes_on(runner, tmp_path / "first", tmp_path / "begun", after) == rows(
        a="1010 first [(False, 10)] []",
        b="20 new [(False, 20)] [(0, 5)]",
        d="40 new [(False, 40)] []",
    )
