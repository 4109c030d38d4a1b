"""State as tables, where Spark's own reader cannot say what is right: hashes, types, TTL and time.

What joins, windows and state variables look like is compared with Spark's reader in
test_state_reader.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.types import ArrayType, StructType, YearMonthIntervalType

import sparkckpt
from sparkckpt.coordinator.pins import pin_names
from sparkckpt.murmur3 import hash_columns
from sparkckpt.storage import Storage
from tests.spark import jobs, python_jobs
from tests.spark.faults import wait_until
from tests.spark.leases import await_release, newest_batch
from tests.spark.sqltypes import NESTED, NUMBERS, TEXTS, TIMES, VALUES_ONLY, column_of, typed
from tests.spark.streams import (
    CONTINUALLY,
    STATE_STORE,
    Backend,
    Job,
    canonical,
    checkpoint_of,
    feed,
    run,
    session_for,
    start,
)
from tests.spark.test_types import NUMBERED, TIME_TYPE, numbered
from tests.spark.totals import CONFS, TOTALS, RunningTotals, Totals, totals_after

RETAINED = {
    STATE_STORE + "sparkckpt.checkpoint.retained": "2",
    "spark.sql.streaming.minBatchesToRetain": "2",
}


def totals_in(rows: pa.Table) -> Totals:
    found = {(row["k"], row["g"]): (row["count"], row["sum"]) for row in rows.to_pylist()}
    assert len(found) == rows.num_rows
    return found


def test_hashes_are_those_of_spark(spark: SparkSession) -> None:
    """Of every type that can be a key: alone, and all in a row."""
    types = (*NUMBERS, *TIMES, *TEXTS, *NESTED)
    names = [column_of(index) for index in range(len(types))]
    rows = typed(spark.range(24).withColumnRenamed("id", "i"), types)
    hashes = [sf.hash(name).alias(f"h{name}") for name in names]
    hashed = rows.withColumns({"all": sf.hash(*names)}).select("all", *names, *hashes)
    table = arrow_of(hashed).combine_chunks()
    columns = [table[name].combine_chunks() for name in names]
    for sql_type, name, column in zip(types, names, columns, strict=True):
        found = hash_columns([column], table.num_rows)
        assert found.tolist() == table[f"h{name}"].to_pylist(), sql_type.name
    assert hash_columns(columns, table.num_rows).tolist() == table["all"].to_pylist()


def arrow_of(rows: DataFrame) -> pa.Table:
    """PySpark has no Arrow type for intervals of months: as in state files, they are numbers. Nor
    does it let a struct be null whose fields are not."""
    nested = [f for f in rows.schema if isinstance(f.dataType, StructType | ArrayType)]
    rows = rows.withColumns({f.name: rows[f.name].cast(f.dataType.simpleString()) for f in nested})
    names = [f.name for f in rows.schema if isinstance(f.dataType, YearMonthIntervalType)]
    whole = rows.withColumns({name: rows[name].cast(YearMonthIntervalType(0, 1)) for name in names})
    months = "cast(extract(year from {0}) * 12 + extract(month from {0}) as int)"
    return whole.withColumns({name: sf.expr(months.format(name)) for name in names}).toArrow()


def test_rows_of_spark_become_values(spark: SparkSession, backend: Backend, tmp_path: Path) -> None:
    """One type that Arrow cannot hold, and all values beside it are kept as Spark's own bytes."""
    types = (*NUMBERS, *TIMES, *TEXTS[1:], *NESTED, *VALUES_ONLY[:3])
    names = [column_of(index) for index in range(len(types))]

    def transform(df: DataFrame) -> DataFrame:
        rows = typed(df, types).withColumn("json", sf.expr("parse_json(concat('[', i, ']'))"))
        last = [sf.last(name).alias(name) for name in (*names, "json", "i")]
        shown = [sql_type.show(name) for sql_type, name in zip(types, names, strict=True)]
        return rows.groupBy("k").agg(*last).select("k", *shown, sf.expr("to_json(json)"), "i")

    run(spark, Job.of(NUMBERED, numbered(2), transform, "update", TIME_TYPE), tmp_path, backend)
    await_release(checkpoint_of(tmp_path))
    table = sparkckpt.state(checkpoint_of(tmp_path)).operator().table()
    assert table.family.footer.value_encoding == "unsaferow"
    # Each aggregate keeps its value, and whether there has been one.
    states = [list(row.values())[1::2] for row in table.to_arrow().to_pylist()]
    numbers = [state[-1] for state in states]
    assert [state[-2] for state in states] == [f"[{number}]" for number in numbers]
    rows = spark.createDataFrame([(number,) for number in numbers], "i int")
    expected = {
        row["i"]: list(row.values())[1:] for row in arrow_of(typed(rows, types)).to_pylist()
    }
    for state in states:
        assert canonical(state[:-2]) == canonical(expected[state[-1]])
    assert len(states) == 4


@pytest.fixture(scope="module")
def totals(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> RunningTotals:
    query = RunningTotals(spark, tmp_path_factory.mktemp("totals"), {})
    query.advance(5)
    query.settle()
    return query


def test_rescaled_and_restored_checkpoints_are_read(totals: RunningTotals, tmp_path: Path) -> None:
    """Where a commit names a manifest, where files are cut into slices, and where they lie in
    another directory."""
    expected = totals_after(5)
    whole = sparkckpt.state(totals.checkpoint).operator().table()
    assert totals_in(whole.to_arrow()) == expected
    restored = tmp_path / "restored"
    sparkckpt.restore(totals.checkpoint, restored, parallelism=7)
    reader = sparkckpt.state(restored)
    assert reader.checkpoint_id is None
    assert totals_in(reader.operator().table().to_arrow()) == expected
    for (k, g), (count, total) in list(expected.items())[:10]:
        found = reader.operator().table().lookup({"k": k, "g": g}).to_pylist()
        assert found == [{"k": k, "g": g, "count": count, "sum": total}]
    sparkckpt.rescale(totals.checkpoint, 2)
    totals.advance(1, {"spark.sql.shuffle.partitions": "2"})
    totals.settle()
    assert totals_in(sparkckpt.state(totals.checkpoint).operator().table().to_arrow()) == (
        totals_after(6)
    )
    difference = sparkckpt.diff(restored, totals.checkpoint).to_arrow().to_pylist()
    changed = {(row["k"], row["g"]) for row in difference}
    after = totals_after(6)
    assert changed == {key for key in after if after[key] != expected.get(key)}


def test_a_running_query_is_read_as_of_a_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    """Its cleaner leaves alone what is being read, and nothing is left of the reader."""

    def ignore(rows: DataFrame, batch: int) -> None:
        rows.count()

    query = start(session_for(spark, {**CONFS, **RETAINED}), TOTALS, tmp_path, ignore, CONTINUALLY)
    checkpoint = tmp_path / "checkpoint"

    def advance(batches: range) -> None:
        feed(TOTALS, tmp_path, batches)
        query.processAllAvailable()
        wait_until(lambda: newest_batch(checkpoint) == batches[-1])

    advance(range(2))
    with sparkckpt.state(checkpoint) as reader:
        assert reader.batch_id == 1
        stream = reader.operator().table().to_reader()
        first = next(stream)
        advance(range(2, 7))
        assert not reader.snapshot.is_there
        rows = pa.Table.from_batches([first, *stream], stream.schema)
        assert totals_in(rows) == totals_after(2)
        assert totals_in(sparkckpt.state(checkpoint).operator().table().to_arrow()) == (
            totals_after(7)
        )
    query.stop()
    await_release(checkpoint, query.runId)
    assert pin_names(Storage.at(checkpoint)) == []
    assert sparkckpt.verify(checkpoint).num_rows == 0


OTHERS: Mapping[str, tuple[Job, Mapping[str, list[str]]]] = {
    "ttl": (
        python_jobs.with_state(python_jobs.Expiring(pandas=False), "ProcessingTime", batches=2),
        {
            "lateValue": ["k", "v", "ttl_expiration"],
            "lateList": ["k", "index", "v", "ttl_expiration"],
            "lateMap": ["k", "user_key_k", "v", "ttl_expiration"],
            "$ttl_lateMap": ["k", "expirationMs", "userKey"],
        },
    ),
    "groups": (
        python_jobs.PANDAS_WITH_STATE["event time"],
        {"default": ["k", "total", "last", "timeout", "exists"]},
    ),
    "limit": (jobs.LIMITS["of a deduplication"], {"default": ["rows"]}),
    "without a key": (jobs.AGGREGATIONS["global update"], {"default": ["count", "sum", "max"]}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_operators_have_columns_to_read(
    spark: SparkSession, backend: Backend, tmp_path: Path, name: str
) -> None:
    job, expected = OTHERS[name]
    run(spark, job, tmp_path, backend)
    await_release(checkpoint_of(tmp_path))
    reader = sparkckpt.state(checkpoint_of(tmp_path)).operator(0)
    for state, columns in expected.items():
        table = reader.table(state)
        rows = table.with_key_groups().to_arrow()
        assert rows.column_names == ["key_group", *columns]
        assert rows.num_rows
        check(name, state, rows)
        if reader.operator.keyed:
            keys = [rows[name].combine_chunks() for name in table.key_schema.names]
            groups = hash_columns(keys, rows.num_rows).astype(np.int64) % 32768
            assert groups.tolist() == rows["key_group"].to_pylist()


def check(name: str, state: str, rows: pa.Table) -> None:
    """What the job's own logic says of its state."""
    values: list[dict[str, Any]] = rows.to_pylist()
    if name == "limit":
        assert [row["rows"] for row in values] == [44]
    if name == "without a key":
        assert [row["count"] for row in values] == [47]
    if name == "groups":
        assert all(row["exists"] for row in values)
        assert all(row["timeout"].timestamp() * 1000 >= row["last"] + 15_000 for row in values)
    if state == "lateList":
        lists: dict[str, list[int]] = {}
        for row in values:
            lists.setdefault(row["k"], []).append(row["index"])
        assert all(places == list(range(len(places))) for places in lists.values())
    if state == "lateMap":
        assert all(row["v"] % 4 == row["user_key_k"] for row in values)
