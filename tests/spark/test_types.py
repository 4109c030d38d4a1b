"""Keys and values of every SQL type survive the state, its files and a cold load from them."""

import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from tests.spark.sqltypes import GROUPS, NESTED, NUMBERS, TEXTS, TIMES, SqlType, column_of, typed
from tests.spark.streams import Backend, Job, Rows, assert_same_after_restart

cloudpickle.register_pickle_by_value(sys.modules[__name__])

NUMBERED = "k int, i int"
KEYED_GROUPS = {name: types for name, types in GROUPS.items() if all(t.key for t in types)}
TIME_TYPE = {"spark.sql.timeType.enabled": "true"}


def numbered(batches: int = 4, rows: int = 12) -> list[Rows]:
    """Numbers for the picking of literals; every batch has all of them, in another order."""
    return [
        [{"k": i % 4 if i % 4 else None, "i": (i * 5 + batch) % rows} for i in range(rows)]
        for batch in range(batches)
    ]


def as_values(types: tuple[SqlType, ...]) -> Job:
    """All types of a group in one state row: as the first, the last, and the list of all."""

    def transform(df: DataFrame) -> DataFrame:
        names = [column_of(index) for index in range(len(types))]
        state = [
            function(name).alias(f"{function.__name__}_{name}")
            for name in names
            for function in (sf.first, sf.last, sf.collect_list)
        ]
        shown = [
            column
            for name, sql_type in zip(names, types, strict=True)
            for column in (
                sql_type.show(f"first_{name}").alias(f"first {sql_type.name}"),
                sql_type.show(f"last_{name}").alias(f"last {sql_type.name}"),
                sql_type.show_all(f"collect_list_{name}").alias(f"all {sql_type.name}"),
            )
        ]
        return typed(df, types).groupBy("k").agg(*state).select("k", *shown)

    return Job.of(NUMBERED, numbered(), transform, "update", TIME_TYPE)


def as_keys(types: tuple[SqlType, ...]) -> Job:
    """Each type of a group as the key of an aggregation of its own."""

    def aggregate(df: DataFrame, index: int, sql_type: SqlType) -> DataFrame:
        grouped = df.groupBy(column_of(index)).agg(sf.count("*").alias("n"), sf.max("i").alias("i"))
        shown = sql_type.show(column_of(index)).alias("key")
        return grouped.select(sf.lit(sql_type.name).alias("type"), shown, "n", "i")

    def transform(df: DataFrame) -> DataFrame:
        rows = typed(df, types)
        parts = [aggregate(rows, index, sql_type) for index, sql_type in enumerate(types)]
        return reduce(DataFrame.union, parts)

    return Job.of(NUMBERED, numbered(3), transform, "update", TIME_TYPE)


def as_composite_key(types: tuple[SqlType, ...]) -> Job:
    """All types of a group as one key; the fields that are null change from row to row."""

    def transform(df: DataFrame) -> DataFrame:
        names = [column_of(index) for index in range(len(types))]
        shown = [
            sql_type.show(name).alias(sql_type.name)
            for name, sql_type in zip(names, types, strict=True)
        ]
        return typed(df, types).dropDuplicates(names).select("k", "i", *shown)

    return Job.of(NUMBERED, numbered(4, 6), transform, confs=TIME_TYPE)


@pytest.mark.parametrize("name", GROUPS)
def test_values(spark: SparkSession, backend: Backend, tmp_path: Path, name: str) -> None:
    assert_same_after_restart(spark, as_values(GROUPS[name]), tmp_path, backend)


@pytest.mark.parametrize("name", KEYED_GROUPS)
def test_keys(spark: SparkSession, backend: Backend, tmp_path: Path, name: str) -> None:
    assert_same_after_restart(spark, as_keys(KEYED_GROUPS[name]), tmp_path, backend)


@pytest.mark.parametrize("name", KEYED_GROUPS)
def test_composite_keys(spark: SparkSession, backend: Backend, tmp_path: Path, name: str) -> None:
    assert_same_after_restart(spark, as_composite_key(KEYED_GROUPS[name]), tmp_path, backend)


def test_rows_of_a_join(spark: SparkSession, backend: Backend, tmp_path: Path) -> None:
    """A join keeps whole input rows, whatever their types, under a key of any type."""
    types = tuple(sql_type for group in GROUPS.values() for sql_type in group[::2])

    def transform(sources: Mapping[str, DataFrame]) -> DataFrame:
        left = typed(sources["left"], types).withColumn("key", NESTED[0].pick("i"))
        right = sources["right"].select(NESTED[0].pick("i").alias("key"), sf.col("i").alias("r"))
        shown = [
            sql_type.show(column_of(index)).alias(sql_type.name)
            for index, sql_type in enumerate(types)
        ]
        return left.join(right, "key").select("i", "r", *shown)

    schemas = {"left": NUMBERED, "right": NUMBERED}
    batches = [{"left": rows[:4], "right": rows[4:6]} for rows in numbered(4)]
    assert_same_after_restart(
        spark, Job(schemas, batches, transform, confs=TIME_TYPE), tmp_path, backend
    )


PYTHON_STATE = """
    boolean boolean, byte tinyint, short smallint, int int, long bigint, float float, double double,
    small decimal(5,2), large decimal(38,10), date date, timestamp timestamp, ntz timestamp_ntz,
    string string, binary binary, array array<int>, struct struct<a: int, b: array<string>>,
    map map<string, double>
"""


def python_state(seed: int) -> tuple[Any, ...]:
    """A row of PYTHON_STATE; every fifth has only nulls, every third some."""
    if seed % 5 == 0:
        return (None,) * 17
    instant = datetime(1900 + seed, 2, 3, 4, 5, 6, 789)
    scalars = (
        seed % 2 == 0,
        seed % 127 - 64,
        -seed,
        seed * 1_000_003,
        -seed * 10**15,
        0.5 * seed,
        -0.0 if seed % 2 else 1e300,
        Decimal(seed).scaleb(-2),
        Decimal(-seed) * 10**20,
        instant.date(),
        instant,
        instant,
        "ü" * (seed % 7),
        bytes(range(seed % 9)),
    )
    nested = ([seed, None], (seed, ["", None]), {"k": -0.0, "": float(seed)})
    return (*scalars, *((None, None, None) if seed % 3 == 0 else nested))


class TypedState(StatefulProcessor):
    """Rows of many types as a value, as the items of a list, and as values of a map."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.value = handle.getValueState("value", PYTHON_STATE)
        self.items = handle.getListState("items", PYTHON_STATE)
        self.entries = handle.getMapState("entries", "k string, n decimal(10,2)", PYTHON_STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        before = [
            repr(self.value.get()) if self.value.exists() else "none",
            repr(list(self.items.get())),
            repr(sorted(map(repr, self.entries.iterator()))),
        ]
        for row in rows:
            self.value.update(python_state(row.i))
            self.items.appendValue(python_state(row.i + 1))
            user_key = (None if row.i % 4 == 0 else str(row.i), Decimal(row.i).scaleb(-1))
            self.entries.updateValue(user_key, python_state(row.i + 2))
        yield from (Row(k=key[0], state=text) for text in before)

    def close(self) -> None:
        pass


def test_transform_with_state(spark: SparkSession, backend: Backend, tmp_path: Path) -> None:
    def transform(df: DataFrame) -> DataFrame:
        grouped = df.groupBy("k")
        return grouped.transformWithState(TypedState(), "k int, state string", "Update", "None")

    job = Job.of(NUMBERED, numbered(4, 8), transform, "update")
    assert_same_after_restart(spark, job, tmp_path, backend)


class KeyedState(StatefulProcessor):
    """Counts the rows of a key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        count = (self.count.get()[0] if self.count.exists() else 0) + len(list(rows))
        self.count.update((count,))
        yield Row(k=repr(key), n=count)

    def close(self) -> None:
        pass


def test_keys_of_transform_with_state(
    spark: SparkSession, backend: Backend, tmp_path: Path
) -> None:
    """The key travels to Python and back before the state sees it, and keeps its key group."""
    types = tuple(t for t in (*NUMBERS, *TIMES, *TEXTS) if t.name in PYTHON_KEYS)

    def transform(df: DataFrame) -> DataFrame:
        grouped = typed(df, types).groupBy(*(column_of(index) for index in range(len(types))))
        return grouped.transformWithState(KeyedState(), "k string, n long", "Update", "None")

    job = Job.of(NUMBERED, numbered(4, 6), transform, "update")
    assert_same_after_restart(spark, job, tmp_path, backend)


PYTHON_KEYS = {
    "boolean",
    "tinyint",
    "int",
    "bigint",
    "float",
    "double",
    "decimal(5,2)",
    "decimal(38,10)",
    "date",
    "timestamp",
    "timestamp_ntz",
    "string",
    "binary",
}


FLAT_STATE = """
    boolean boolean, byte tinyint, short smallint, int int, long bigint, float float, double double,
    small decimal(5,2), large decimal(38,10), date date, timestamp timestamp, ntz timestamp_ntz,
    string string, binary binary
"""


def remember(
    key: tuple[int], frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    before = repr(state.get) if state.exists else "none"
    seed = max(int(i) for frame in frames for i in frame["i"])
    state.update(python_state(seed)[:14])
    yield pd.DataFrame({"k": pd.Series([key[0]], dtype="Int32"), "state": [before]})


def test_apply_in_pandas_with_state(spark: SparkSession, backend: Backend, tmp_path: Path) -> None:
    def transform(df: DataFrame) -> DataFrame:
        return df.groupBy("k").applyInPandasWithState(
            remember, "k int, state string", FLAT_STATE, "update", GroupStateTimeout.NoTimeout
        )

    job = Job.of(NUMBERED, numbered(4, 8), transform, "update")
    assert_same_after_restart(spark, job, tmp_path, backend)
