"""Spark's own state reader shows in a sparkckpt checkpoint what it shows in one of Spark's RocksDB.

Partition ids are left out of the comparison: which partition owns a key is the backend's affair.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.types import StructField, StructType

import sparkckpt
from tests.spark import jobs, python_jobs
from tests.spark.faults import wait_until
from tests.spark.leases import newest_batch
from tests.spark.streams import (
    ORACLE,
    PARTITIONS,
    RUN_CONFS,
    STATE_STORE,
    Backend,
    Job,
    canonical,
    canonical_rows,
    checkpoint_of,
    feed,
    run,
    session_for,
    start,
)

JOBS: Mapping[str, Job] = {
    "aggregation": jobs.AGGREGATIONS["update"],
    "window": jobs.AGGREGATIONS["window append"],
    "session window": jobs.SESSION_WINDOWS["append"],
    "deduplication": jobs.DEDUPLICATIONS["within watermark"],
    "join": jobs.time_range_join("left_outer", 2),
    "join in column families": jobs.time_range_join("left_outer", 4),
    "chain": jobs.COMBINATIONS["window of window"],
    "processor": python_jobs.with_state(python_jobs.Variables(pandas=False)),
    "timers": python_jobs.with_state(python_jobs.Timed(False, True), "EventTime"),
}


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint and a session with the confs it was written under, which the reader looks at."""

    session: SparkSession
    path: Path

    def read(self, **options: Any) -> DataFrame:
        rows = self.session.read.format("statestore").options(**options).load(str(self.path))
        return rows.drop("partition_id")

    def checkpoint_of(self, batch: int | None) -> int | None:
        """The checkpoint that is the end of a batch; None: the newest."""
        if batch is None:
            return None
        found = sparkckpt.list_checkpoints(self.path).to_pylist()
        return next(row["checkpoint_id"] for row in found if row["batch_id"] == batch)

    def state(self, **options: Any) -> list[str]:
        return canonical_rows(self.read(**options).collect())

    def folded_changes(self, batches: int, **options: Any) -> dict[int, list[str]]:
        """The state after each batch as the changes make it, at most one change a batch and key."""
        changes = self.read(readChangeFeed=True, changeStartBatchId=0, **options).collect()
        state: dict[str, str] = {}
        after: dict[int, list[str]] = {}
        for batch in range(batches):
            of_batch = [change for change in changes if change.batch_id == batch]
            assert len({canonical(change.key) for change in of_batch}) == len(of_batch)
            for change in of_batch:
                if change.change_type == "delete":
                    state.pop(canonical(change.key), None)
                else:
                    row = Row("key", "value")(change.key, change.value)
                    state[canonical(change.key)] = canonical(row)
            after[batch] = sorted(state.values())
        return after


Checkpoints = Callable[[str], tuple[Checkpoint, Checkpoint]]


@pytest.fixture(scope="module")
def checkpoints(
    spark: SparkSession, backend: Backend, tmp_path_factory: pytest.TempPathFactory
) -> Checkpoints:
    """The oracle's and the backend's checkpoint of a job, which are made once."""
    made: dict[str, tuple[Checkpoint, Checkpoint]] = {}

    def make(name: str, on: Backend, restart_after: set[int]) -> Checkpoint:
        workdir = tmp_path_factory.mktemp("state-reader")
        run(spark, JOBS[name], workdir, on, restart_after)
        return Checkpoint(session_for(spark, on.confs), checkpoint_of(workdir))

    def of(name: str) -> tuple[Checkpoint, Checkpoint]:
        if name not in made:
            made[name] = make(name, ORACLE, set()), make(name, backend, {1})
            last = len(JOBS[name].batches) - 1
            wait_until(lambda: newest_batch(made[name][1].path) >= last)
        return made[name]

    return of


CHANGES = {"readChangeFeed": True, "changeStartBatchId": 0}

READS: list[tuple[str, Mapping[str, Any]]] = [
    ("aggregation", {}),
    ("aggregation", {"batchId": 1}),
    ("window", {}),
    ("window", {"batchId": 2}),
    ("session window", {}),
    ("deduplication", {}),
    ("join", {"joinSide": "left"}),
    ("join", {"joinSide": "right", "batchId": 2}),
    ("join", {"storeName": "left-keyToNumValues"}),
    ("chain", {"operatorId": 0}),
    ("chain", {"operatorId": 1, "batchId": 3}),
    ("processor", {"stateVarName": "total"}),
    ("processor", {"stateVarName": "seen"}),
    ("processor", {"stateVarName": "byRest", "batchId": 2}),
    ("processor", {"stateVarName": "byRest", "flattenCollectionTypes": False}),
    ("timers", {"readRegisteredTimers": True}),
    ("aggregation", CHANGES),
    ("aggregation", {"readChangeFeed": True, "changeStartBatchId": 1, "changeEndBatchId": 2}),
    ("processor", {**CHANGES, "stateVarName": "seen"}),
]


@pytest.mark.parametrize(("name", "options"), READS, ids=str)
def test_read_state(checkpoints: Checkpoints, name: str, options: Mapping[str, Any]) -> None:
    oracle, subject = checkpoints(name)
    expected = oracle.state(**options)
    assert subject.state(**options) == expected
    assert expected


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("window", {}),
        ("join", {"storeName": "left-keyWithIndexToValue"}),
        ("processor", {"stateVarName": "total"}),
    ],
    ids=str,
)
def test_changes_are_net(checkpoints: Checkpoints, name: str, options: Mapping[str, Any]) -> None:
    """Spark's changelog has every write of a batch; ours what is left of them in the end."""
    oracle, subject = checkpoints(name)
    batches = len(JOBS[name].batches)
    expected = {batch: oracle.state(batchId=batch, **options) for batch in range(batches)}
    assert subject.folded_changes(batches, **options) == expected


@pytest.mark.parametrize("options", [{"joinSide": "left"}, {"joinSide": "right", "batchId": 1}])
def test_join_in_column_families(checkpoints: Checkpoints, options: Mapping[str, Any]) -> None:
    """The reader's schema has an event time in the key that it does not fill from the state."""
    oracle, subject = checkpoints("join in column families")
    if oracle.session.version.startswith("4.2"):
        pytest.skip("Spark 4.2 does not read the state it has written in this format")

    def rows(checkpoint: Checkpoint) -> list[str]:
        return canonical_rows(checkpoint.read(**options).select("key.field0", "value").collect())

    assert rows(subject) == rows(oracle)
    assert rows(subject)


@pytest.mark.parametrize("name", ["aggregation", "window"])
def test_read_state_from_an_earlier_snapshot(checkpoints: Checkpoints, name: str) -> None:
    """A partition's state as of batch 1, brought forward by the later batches' changes."""
    oracle, subject = checkpoints(name)
    parts = [
        subject.state(snapshotStartBatchId=1, snapshotPartitionId=partition)
        for partition in range(int(RUN_CONFS[PARTITIONS]))
    ]
    assert sorted(row for part in parts for row in part) == oracle.state()


def fields(*parts: str, without: Collection[str] = ()) -> Callable[[Any], list[Any]]:
    """The values of these structs of a row, one after the other."""
    return lambda row: [
        value for part in parts for name, value in row[part].items() if name not in without
    ]


def session_of(row: Any) -> list[Any]:
    window, _, *rest = row["value"].values()
    return [*row["key"].values(), window["end"], *rest]


def timestamp_of(value: int, scale: int) -> datetime:
    return datetime.fromtimestamp(0, timezone.utc) + timedelta(microseconds=value * scale)


KEY_AND_VALUE = fields("key", "value")
TABLES: list[tuple[str, Mapping[str, Any], str | None, Callable[[Any], list[Any]]]] = [
    ("aggregation", {}, None, KEY_AND_VALUE),
    ("aggregation", {"batchId": 1}, "default", KEY_AND_VALUE),
    ("window", {}, None, KEY_AND_VALUE),
    ("session window", {}, None, session_of),
    (
        "deduplication",
        {},
        None,
        lambda row: [row["key"]["k"], timestamp_of(row["value"]["expiresAtMicros"], 1)],
    ),
    ("join", {"storeName": "left-keyWithIndexToValue"}, "left", KEY_AND_VALUE),
    ("join", {"storeName": "right-keyWithIndexToValue", "batchId": 2}, "right", KEY_AND_VALUE),
    ("join", {"storeName": "left-keyToNumValues"}, "left-keyToNumValues", KEY_AND_VALUE),
    ("chain", {"operatorId": 0}, None, KEY_AND_VALUE),
    ("chain", {"operatorId": 1, "batchId": 3}, None, KEY_AND_VALUE),
    ("processor", {"stateVarName": "total"}, "total", KEY_AND_VALUE),
    ("processor", {"stateVarName": "seen"}, "seen", fields("key", "list_element")),
    (
        "processor",
        {"stateVarName": "byRest", "batchId": 2},
        "byRest",
        fields("key", "user_map_key", "user_map_value"),
    ),
    (
        "timers",
        {"readRegisteredTimers": True},
        "eventTimers",
        lambda row: [row["key"]["k"], timestamp_of(row["expiration_timestamp_ms"], 1000)],
    ),
]


@pytest.mark.parametrize(
    ("name", "options", "state", "flat"),
    TABLES,
    ids=[" ".join(map(str, (name, *options.values()))) for name, options, _, _ in TABLES],
)
def test_tables_show_the_same(
    checkpoints: Checkpoints,
    name: str,
    options: Mapping[str, Any],
    state: str | None,
    flat: Callable[[Any], list[Any]],
) -> None:
    """State as tables, and each of its keys looked up, is what Spark's reader shows."""
    oracle, subject = checkpoints(name)
    read = with_names_told_apart(oracle.read(**options)).toArrow()
    expected = [canonical(flat(row)) for row in read.to_pylist()]
    reader = sparkckpt.state(subject.path, subject.checkpoint_of(options.get("batchId")))
    table = reader.operator(options.get("operatorId", 0)).table(state)
    rows = table.to_arrow()
    places = ["index"] if table.shape.numbered else []
    assert rows_in(rows.drop_columns(places)) == sorted(expected)
    assert expected
    keys = {
        canonical(list(key.values())): key
        for key in rows.select(table.key_schema.names).to_pylist()
    }
    found = [table.lookup(key) for key in keys.values()]
    assert rows_in(pa.concat_tables(found)) == rows_in(rows)


def with_names_told_apart(rows: DataFrame) -> DataFrame:
    """Aggregates of the same name have the same name in the state; Arrow cannot have it so."""
    structs = [field for field in rows.schema if isinstance(field.dataType, StructType)]
    told_apart = {
        field.name: StructType(
            [replaced(f, f"{f.name}{number}") for number, f in enumerate(field.dataType)]
        )
        for field in structs
        if len(set(field.dataType.names)) < len(field.dataType.names)
    }
    return rows.withColumns({name: rows[name].cast(schema) for name, schema in told_apart.items()})


def replaced(field: StructField, name: str) -> StructField:
    return StructField(name, field.dataType, field.nullable)


def rows_in(rows: pa.Table) -> list[str]:
    return sorted(canonical(list(row.values())) for row in rows.to_pylist())


@pytest.mark.parametrize("side", ["left", "right"])
def test_tables_of_a_join_in_column_families(checkpoints: Checkpoints, side: str) -> None:
    """Spark's reader has an event time that it does not fill from the state, and no order."""
    oracle, subject = checkpoints("join in column families")
    rows = oracle.read(joinSide=side).toArrow().to_pylist()
    expected = sorted(canonical(list(row["value"].values())) for row in rows)
    table = sparkckpt.state(subject.path).operator(0).table(side).to_arrow()
    names = list(rows[0]["value"])
    assert rows_in(table.select(names)) == expected
    (time,) = [name for name in names if name.endswith("ts")]
    assert table["event_time"].to_pylist() == table[time].to_pylist()


def test_tables_tell_what_has_changed(checkpoints: Checkpoints) -> None:
    """The changes between two batches are what differs in what Spark's reader shows of them."""
    oracle, subject = checkpoints("processor")
    options = {"stateVarName": "total"}
    old, new = (
        {row.key.k: tuple(row.value) for row in oracle.read(batchId=batch, **options).collect()}
        for batch in (1, 3)
    )
    before, after = (sparkckpt.state(subject.path, subject.checkpoint_of(b)) for b in (1, 3))
    changes = sparkckpt.diff(before, after, 0, "total").to_arrow().to_pylist()
    found = {
        row["k"]: tuple(v and tuple(v.values()) for v in (row["before"], row["after"]))
        for row in changes
    }
    assert found == {
        key: (old.get(key), new.get(key)) for key in old | new if old.get(key) != new.get(key)
    }


def test_tables_become_data_frames(checkpoints: Checkpoints) -> None:
    _, subject = checkpoints("session window")
    table = sparkckpt.state(subject.path).operator().table()
    frame = table.to_spark(subject.session)
    assert frame.columns == table.schema.names
    assert rows_in(frame.toArrow()) == rows_in(table.to_arrow())
    assert rows_in(table.sql("from state")) == rows_in(table.to_arrow())


def test_state_metadata(checkpoints: Checkpoints) -> None:
    def metadata(checkpoint: Checkpoint) -> list[str]:
        rows = checkpoint.session.read.format("state-metadata").load(str(checkpoint.path))
        return canonical_rows(rows.select("operatorId", "operatorName", "stateStoreName").collect())

    oracle, subject = checkpoints("chain")
    assert metadata(subject) == metadata(oracle)


METRICS = {
    "sparkckptDeltaBytes",
    "sparkckptFilesWritten",
    "sparkckptMergeTimeMs",
    "sparkckptLoadTimeMs",
    "sparkckptKeyGroupSpan",
}


def test_progress_carries_the_backends_metrics(
    spark: SparkSession, backend: Backend, tmp_path: Path
) -> None:
    job = replace(JOBS["aggregation"], confs={STATE_STORE + "sparkckpt.inlineThreshold": "0"})
    feed(job, tmp_path, range(len(job.batches)))
    session = session_for(spark, {**backend.confs, **job.confs})
    query = start(session, job, tmp_path, lambda rows, _: rows.collect())
    query.awaitTermination()
    batches = [progress["stateOperators"][0] for progress in query.recentProgress]
    assert [batch["numRowsUpdated"] for batch in batches] == [11, 12, 13, 11]
    assert batches[-1]["numRowsTotal"] == 13
    for batch in batches:
        assert set(batch["customMetrics"]) >= METRICS
        assert batch["customMetrics"]["sparkckptDeltaBytes"] > 0
        assert batch["customMetrics"]["sparkckptFilesWritten"] > 0
        assert batch["customMetrics"]["sparkckptKeyGroupSpan"] > 0


def test_read_state_inside_a_batch(spark: SparkSession, backend: Backend, tmp_path: Path) -> None:
    """A batch that reads checkpoints, its own and one of other partitions, sees what they hold."""
    other = jobs.AGGREGATIONS["update"]
    run(
        spark, other, tmp_path / "other", replace(backend, confs={**backend.confs, PARTITIONS: "2"})
    )
    subject = jobs.AGGREGATIONS["update"]
    feed(subject, tmp_path, range(2))
    session = session_for(spark, backend.confs)
    seen: list[tuple[int, int]] = []

    def read_both(rows: DataFrame, batch: int) -> None:
        rows.collect()

        def state(workdir: Path) -> int:
            reader = rows.sparkSession.read.format("statestore")
            return reader.load(str(checkpoint_of(workdir))).count()

        seen.append((state(tmp_path / "other"), state(tmp_path) if batch else 0))

    start(session, subject, tmp_path, read_both).awaitTermination()
    of_other = Checkpoint(spark, checkpoint_of(tmp_path / "other")).read().count()
    after_first_batch = Checkpoint(spark, checkpoint_of(tmp_path)).read(batchId=0).count()
    assert seen == [(of_other, 0), (of_other, after_first_batch)]
