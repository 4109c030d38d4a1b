"""Spark's own state reader shows in a sparkckpt checkpoint what it shows in one of Spark's RocksDB.

Partition ids are left out of the comparison: which partition owns a key is the backend's affair.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from tests.spark import jobs, python_jobs
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
