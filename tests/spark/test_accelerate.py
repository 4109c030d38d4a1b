"""Stateful Python in-band, in real queries: our own APIs, types, faults, and what falls back."""

import itertools
import logging
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from pyspark import TaskContext
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming import StatefulProcessor

import sparkckpt
from sparkckpt.errors import (
    ClassicSessionNeededError,
    FoldError,
    OperatorStateNotInBandError,
    UnsupportedTypeError,
)
from sparkckpt.processor.folds import FoldProcessor
from sparkckpt.processor.wire import Control
from tests.spark.accelerated import accelerated
from tests.spark.jobs import EVENTS, events
from tests.spark.rescaling import run_rescaled
from tests.spark.streams import ORACLE, SPARKCKPT, STATE_STORE, Job, feed, run, session_for, start

SMALL_BATCHES = {STATE_STORE + "sparkckpt.inband.batchRows": "2"}
"""So that nearly every key spans record batches, or is the last of one."""

BATCHES = [
    [{"k": k, "v": v} for k, v in zip("abcabcaaaaaaa", itertools.count(b * 10))] for b in range(3)
]
TOTALS = "k string, total long, n long"


def totals_of(df: DataFrame) -> DataFrame:
    return df.groupBy("k").agg(sf.sum("v").alias("total"), sf.count("*").alias("n"))


def totals_in_rows(df: DataFrame) -> DataFrame:
    def total(key, rows, state):
        total, n = state.get() or (0, 0)
        for _, v in rows:
            total, n = total + v, n + 1
        state.update((total, n))
        return [(*key, total, n)]

    return sparkckpt.apply_rows(df.groupBy("k"), total, TOTALS, "total long, n long")


def totals_vectorized(df: DataFrame) -> DataFrame:
    class Totals(sparkckpt.VectorizedProcessor):
        def process(self, touched):
            import pyarrow as pa

            now = touched.rows.append_column("key", touched.key_index).group_by("key")
            sums = now.aggregate([("v", "sum"), ("v", "count")]).sort_by("key")
            new = {
                name: pa.compute.add(touched.state[name].fill_null(0), sums[column])
                for name, column in (("total", "v_sum"), ("n", "v_count"))
            }
            output = touched.keys
            for name, column in new.items():
                output = output.append_column(name, column)
            return sparkckpt.Changes(
                output.slice(0, output.num_rows - touched.goes_on), pa.table(new)
            )

    return sparkckpt.apply_vectorized(df.groupBy("k"), Totals(), TOTALS, "total long, n long")


def totals_folded(df: DataFrame) -> DataFrame:
    return sparkckpt.fold(df.groupBy("k"), total=sparkckpt.sum_("v"), n=sparkckpt.count_())


def job_of(transform, confs=None) -> Job:
    return Job.of("k string, v long", BATCHES, transform, "update", confs)


@pytest.mark.parametrize("transform", [totals_in_rows, totals_vectorized, totals_folded])
def test_our_own_apis_agree_with_sparks_aggregation(
    spark: SparkSession, tmp_path: Path, transform
) -> None:
    expected = run(spark, job_of(totals_of), tmp_path / "oracle", ORACLE)
    job = job_of(transform, SMALL_BATCHES)
    assert run(spark, job, tmp_path / "ours", SPARKCKPT, {0}) == expected


def test_large_types(spark: SparkSession, tmp_path: Path) -> None:
    def expected_of(df: DataFrame) -> DataFrame:
        columns = ("min(t) low", "max(t) high", "max_by(b, v) newest")
        return df.groupBy("k").agg(*(sf.expr(column) for column in columns))

    def folded(df: DataFrame) -> DataFrame:
        folds = {"low": sparkckpt.min_("t"), "high": sparkckpt.max_("t")}
        return sparkckpt.fold(df.groupBy("k"), **folds, newest=sparkckpt.last_("b"))

    def typed(transform):
        casts = "k", "v", "cast(v as string) t", "cast(cast(v as string) as binary) b"
        return lambda df: transform(df.selectExpr(*casts))

    confs = {"spark.sql.execution.arrow.useLargeVarTypes": "true", **SMALL_BATCHES}
    expected = run(spark, job_of(typed(expected_of)), tmp_path / "oracle", ORACLE)
    assert run(spark, job_of(typed(folded), confs), tmp_path / "ours", SPARKCKPT) == expected


def test_a_fold_is_sent_only_the_columns_that_it_reads(
    spark: SparkSession, tmp_path: Path, monkeypatch
) -> None:
    """It tells in a derived column how many there are."""

    class Counting(FoldProcessor):
        def process(self, touched):
            import pyarrow as pa

            names = pa.array([",".join(touched.rows.column_names)] * touched.keys.num_rows)
            changes = super().process(touched)
            output = changes.output.set_column(
                changes.output.num_columns - 1, "names", names.slice(0, changes.output.num_rows)
            )
            return sparkckpt.Changes(output, changes.state)

    monkeypatch.setattr("sparkckpt.processor.folds.FoldProcessor", Counting)

    def folded(by: str, **folds):
        names = sparkckpt.derived(lambda t: t["k"].cast("string"), "string")
        wide = "k", "v", "v w", "cast(v as string) x"
        return lambda df: sparkckpt.fold(
            df.selectExpr(*wide).groupBy(sf.expr(by).alias("k")), **folds, names=names
        )

    def names_of(transform) -> set[str]:
        directory = tmp_path / str(len(list(tmp_path.iterdir())))
        rows = run(spark, job_of(transform), directory, SPARKCKPT)[2]
        return {row.rpartition("names='")[2].rstrip("')") for row in rows}

    edges = {"last": sparkckpt.last_("w"), "high": sparkckpt.max_("v")}
    assert names_of(folded("k", **edges)) == {"v,w"}
    assert names_of(folded("upper(k)", n=sparkckpt.count_())) == {"k"}


STATE = (
    "d decimal(10,2), t timestamp, n timestamp_ntz, day date, b binary, list array<int>, "
    "m map<string, timestamp>, s struct<x: int, y: struct<z: timestamp>>, f float, u string"
)
TYPED = [
    "cast(v as decimal(10,2)) d",
    "ts t",
    "cast(ts as timestamp_ntz) n",
    "cast(ts as date) day",
    "cast(k as binary) b",
    "array(cast(v as int), null) list",
    "map('x', ts, 'y', null) m",
    "named_struct('x', cast(v as int), 'y', named_struct('z', ts)) s",
    "cast(v / 3 as float) f",
    "k u",
]


class Typed(StatefulProcessor):
    """Keeps the rows as they are, and tells in words what it reads back."""

    def init(self, handle):
        self.value = handle.getValueState("value", STATE)
        self.rows = handle.getListState("rows", STATE)

    def handleInputRows(self, key, rows, timerValues):
        before = self.value.get()
        for row in rows:
            values = tuple(getattr(row, name) for name in row.__fields__)[2:]
            m, s = values[6], values[7]
            naive = [None if x is None else x.replace(tzinfo=None) for _, x in m or ()]
            kept = (*values[:6], dict(zip("xy", naive, strict=False)), s, *values[8:])
            self.value.update(kept)
            self.rows.appendValue(kept)
        seen = [item[9] for item in self.rows.get()]
        yield Row(k=key[1], what=f"{key[0]} {before} {self.value.get()} {seen}")

    def close(self):
        pass


def test_types(spark: SparkSession, tmp_path: Path) -> None:
    def transform(df: DataFrame) -> DataFrame:
        key = "cast(v % 3 as decimal(5,1)) p", "upper(k) q"
        typed = df.where("k is null or k != 'late'").selectExpr(*key, *TYPED)
        return typed.groupBy("p", "q").transformWithState(
            Typed(), "k string, what string", "Update", "None"
        )

    zone = {"spark.sql.session.timeZone": "America/New_York"}
    job = Job.of(EVENTS, events(2), transform, "update", {**zone, **SMALL_BATCHES})
    expected = run(spark, job, tmp_path / "oracle", ORACLE)
    assert run(spark, accelerated(job), tmp_path / "ours", SPARKCKPT, {0}) == expected


def pandas_job(function) -> Job:
    return accelerated(
        job_of(
            lambda df: df.groupBy("k").applyInPandasWithState(
                function, TOTALS, "total long, n long", "update", "NoTimeout"
            ),
            SMALL_BATCHES,
        )
    )


def test_an_error_names_the_users_code_and_the_query_resumes(
    spark: SparkSession, tmp_path: Path
) -> None:
    def with_mistake(fixed):
        def users_function(key, frames, state):
            total, n = state.getOption or (0, 0)
            for frame in frames:
                total, n = total + int(frame["v"].sum()), n + len(frame)
            if total > 20 and not fixed:
                raise ValueError("the user's mistake")
            state.update((total, n))
            yield pd.DataFrame({"k": [key[0]], "total": [total], "n": [n]})

        return users_function

    job = pandas_job(with_mistake(False))
    feed(job, tmp_path, range(3))
    session = session_for(spark, {**SPARKCKPT.confs, **job.confs})
    output = {}

    def collect(rows: DataFrame, batch: int) -> None:
        output[batch] = sorted(rows.collect())

    with pytest.raises(Exception, match="the user's mistake") as caught:
        start(session, job, tmp_path, collect).awaitTermination()
    assert "in users_function" in str(caught.value)
    start(session, pandas_job(with_mistake(True)), tmp_path, collect).awaitTermination()
    expected = run(spark, job_of(totals_of), tmp_path / "oracle", ORACLE)
    assert [len(rows) for rows in output.values()] == [len(rows) for rows in expected.values()]
    assert {row.k: (row.total, row.n) for row in output[2]} == {
        "a": (sum(r["v"] for b in BATCHES for r in b if r["k"] == "a"), 27),
        "b": (sum(r["v"] for b in BATCHES for r in b if r["k"] == "b"), 6),
        "c": (sum(r["v"] for b in BATCHES for r in b if r["k"] == "c"), 6),
    }


class Which(StatefulProcessor):
    """Says on which operator it runs."""

    def init(self, handle):
        self.value = handle.getValueState("value", "n long")
        self.name = type(handle).__name__

    def handleInputRows(self, key, rows, timerValues):
        yield Row(k=self.name)

    def close(self):
        pass


@pytest.mark.parametrize(
    ("enabled", "value", "name"),
    [
        (True, "v", "InBandHandle"),
        (False, "v", "StatefulProcessorHandle"),
        (True, "parse_json(cast(v as string)) v", "StatefulProcessorHandle"),
    ],
)
def test_what_cannot_run_in_band_runs_on_sparks_operator(
    spark: SparkSession, tmp_path: Path, caplog, enabled, value, name
) -> None:
    def transform(df: DataFrame) -> DataFrame:
        sparkckpt.accelerate(df.sparkSession, enabled=enabled)
        rows = df.selectExpr("k", value)
        return rows.groupBy("k").transformWithState(Which(), "k string", "Update", "None")

    with caplog.at_level(logging.WARNING, "sparkckpt"):
        output = run(spark, job_of(transform), tmp_path, SPARKCKPT)
    assert {row for rows in output.values() for row in rows} == {f"(k={name!r})"}
    assert ("(Which) runs on Spark's own operator" in caplog.text) == (value != "v")


class Fetches(Which):
    """Says whether there is a server to fetch state from."""

    def __init__(self, kind):
        self.kind = kind

    def init(self, handle):
        super().init(handle)
        if self.kind == "list":
            self.list = handle.getListState("list", "n long")

    def handleInputRows(self, key, rows, timerValues):
        yield Row(k=str(Control.of_task().fetch is not None))


@pytest.mark.parametrize(
    ("kind", "time_mode", "expected"),
    [("value", "None", "False"), ("list", "None", "True"), ("value", "ProcessingTime", "True")],
)
def test_a_server_is_started_where_state_can_be_fetched(
    spark: SparkSession, tmp_path: Path, kind, time_mode, expected
) -> None:
    def transform(df: DataFrame) -> DataFrame:
        modes = ("k string", "Update", time_mode)
        return df.groupBy("k").transformWithState(Fetches(kind), *modes)

    job = replace(accelerated(job_of(transform)), batches=[{"in": BATCHES[0]}])
    assert set(run(spark, job, tmp_path, SPARKCKPT)[0]) == {f"(k={expected!r})"}


class Remembers(Which):
    def snapshot_state(self, context):
        context.get_list_state("seen").add(self.name)


def test_operator_state_is_not_left_out(spark: SparkSession) -> None:
    def define(df: DataFrame, initial=None) -> DataFrame:
        sparkckpt.accelerate(spark)
        modes = ("k string", "Update", "None", initial)
        return df.groupBy("k").transformWithState(Remembers(), *modes)

    rows = spark.readStream.format("rate").load().selectExpr("string(value) k", "value v")
    assert define(rows).isStreaming
    with pytest.raises(OperatorStateNotInBandError, match="variant, which cannot travel"):
        define(rows.selectExpr("k", "parse_json('1') v"))
    static = spark.createDataFrame([("a", 1)], "k string, v long")
    with pytest.raises(OperatorStateNotInBandError, match="initial state, is Spark's own"):
        define(rows, static.groupBy("k"))
    with pytest.raises(PythonException, match="or it is not a streaming query"):
        define(static).collect()


def test_what_our_own_apis_cannot_do_is_named(spark: SparkSession) -> None:
    rows = spark.readStream.format("rate").load().selectExpr("value k", "parse_json('1') v")
    with pytest.raises(UnsupportedTypeError, match="variant"):
        sparkckpt.apply_rows(rows.groupBy("k"), lambda k, r, s: (), "k long", "n long")
    with pytest.raises(FoldError, match="no column 'x'"):
        sparkckpt.fold(rows.groupBy("k"), total=sparkckpt.sum_("x"))
    with pytest.raises(ClassicSessionNeededError):
        sparkckpt.accelerate(object())  # type: ignore[arg-type]


class Calls(sparkckpt.VectorizedProcessor):
    """Notes every call in the state of its partition, and tells with each key what was noted."""

    def initialize_state(self, context):
        self.calls = context.get_list_state("calls")
        self.restored = sorted(self.calls.get())
        self.partition = TaskContext.get().partitionId()

    def process(self, touched):
        import pyarrow as pa

        what = [f"{self.partition} {self.restored}"] * touched.keys.num_rows
        return sparkckpt.Changes(touched.keys.append_column("what", pa.array(what)))

    def snapshot_state(self, context):
        self.calls.add(self.partition)


def test_operator_state_is_kept_and_rescaled(spark: SparkSession, tmp_path: Path) -> None:
    def transform(df: DataFrame) -> DataFrame:
        schemas = ("k string, what string", "n long")
        return sparkckpt.apply_vectorized(df.groupBy("k"), Calls(), *schemas)

    rows = [{"k": str(i), "v": i} for i in range(20)]
    job = replace(job_of(transform), batches=[{"in": rows}] * 4)
    output = run_rescaled(spark, job, tmp_path, SPARKCKPT, (3, 1))
    noted = [{row.rpartition("what=")[2].strip("')") for row in output[b]} for b in range(4)]
    assert noted == [
        {"0 []", "1 []", "2 []"},
        {"0 [0]", "1 [1]", "2 [2]"},
        {"0 [0, 0, 1, 1, 2, 2]"},
        {"0 [0, 0, 0, 1, 1, 2, 2]"},
    ]
