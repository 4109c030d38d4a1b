"""Completed checkpoints of real queries: the coordinator beside a driver, killed and drained."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import sparkckpt
from sparkckpt.errors import ClassicSessionNeededError
from sparkckpt.format.metadata import CheckpointMetadata, read_metadata
from tests.spark.faults import wait_until
from tests.spark.leases import await_release
from tests.spark.streams import CONTINUALLY, STATE_STORE, feed, session_for, start
from tests.spark.totals import CONFS, NO_INLINING, PARALLELISM, TOTALS, RunningTotals

ROOT = Path(__file__).resolve().parents[2]
OFF = {STATE_STORE + "sparkckpt.coordinator.enabled": "false"}
RETAINED = "spark.sql.streaming.minBatchesToRetain"


def metadata_in(checkpoint: Path) -> dict[int, CheckpointMetadata]:
    """The completed checkpoints, by batch."""
    files = (checkpoint / "_sparkckpt").glob("chk-*/_metadata")
    found = [read_metadata(path.read_bytes(), str(path)) for path in files]
    return {metadata.batch_id: metadata for metadata in found}


def coordinator_pid(spark: SparkSession) -> int | None:
    jvm: Any = spark._jvm
    service = jvm.org.apache.spark.sql.sparkckpt.coordinator.CoordinatorService.active().get()
    pid = service.processId()
    return int(pid.get()) if pid.isDefined() else None


@contextmanager
def running(spark: SparkSession, workdir: Path) -> Iterator[StreamingQuery]:
    """The totals, batch by batch as their input comes."""

    def ignore(rows: DataFrame, batch: int) -> None:
        rows.count()

    query = start(session_for(spark, CONFS), TOTALS, workdir, ignore, CONTINUALLY)
    try:
        yield query
    finally:
        query.stop()


def process(query: StreamingQuery, workdir: Path, batch: int) -> None:
    feed(TOTALS, workdir, [batch])
    query.processAllAvailable()


def test_every_batch_becomes_a_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    totals = RunningTotals(spark, tmp_path, {})
    totals.advance(4)
    wait_until(lambda: 3 in metadata_in(totals.checkpoint))
    completed = metadata_in(totals.checkpoint)
    for batch, metadata in completed.items():
        (operator,) = metadata.operator_states
        assert (operator.operator_id, operator.parallelism) == (0, PARALLELISM)
        assert [s.handles[0] for s in operator.subtasks] == totals.handles(batch)
    assert sorted(m.checkpoint_id for m in completed.values()) == [
        m.checkpoint_id for _, m in sorted(completed.items())
    ]


def test_a_killed_coordinator_is_replaced_and_goes_on(spark: SparkSession, tmp_path: Path) -> None:
    with running(spark, tmp_path) as query:
        process(query, tmp_path, 0)
        checkpoint = tmp_path / "checkpoint"
        wait_until(lambda: 0 in metadata_in(checkpoint))
        for batch in (1, 2):
            pid = coordinator_pid(spark)
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            process(query, tmp_path, batch)
            wait_until(lambda batch=batch: batch in metadata_in(checkpoint))
            assert coordinator_pid(spark) not in (None, pid)
        assert query.exception() is None


def of_query(
    events: list[sparkckpt.CheckpointEvent], query: StreamingQuery
) -> list[sparkckpt.CheckpointEvent]:
    """The coordinator of another test's query may be at work for a while after its end."""
    return [event for event in events if event.query_id == query.id]


def test_callbacks_hear_of_every_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    heard: list[sparkckpt.CheckpointEvent] = []
    subscription = sparkckpt.on_checkpoint(spark, heard.append)
    deaf = sparkckpt.on_checkpoint(spark, lambda event: 1 / 0)
    with running(spark, tmp_path) as query:
        for batch in range(3):
            process(query, tmp_path, batch)
            wait_until(lambda batch=batch: any(e.batch_id == batch for e in of_query(heard, query)))
        ids = query.id, query.runId
        subscription.remove()
        process(query, tmp_path, 3)
        wait_until(lambda: 3 in metadata_in(tmp_path / "checkpoint"))
    deaf.remove()
    events = of_query(heard, query)
    assert [(event.kind, event.batch_id) for event in events] == [
        ("completed", 0),
        ("completed", 1),
        ("completed", 2),
    ]
    for event in events:
        assert (event.query_id, event.run_id) == ids
        assert event.path is not None
        assert Path(event.path.removeprefix("file:")).is_file()
        assert event.checkpoint_id is not None and f"chk-{event.checkpoint_id}" in event.path
        assert (event.state_bytes or 0) > 0 and (event.files or 0) > 0
        assert event.reason is None


def test_callbacks_need_the_driver(spark: SparkSession) -> None:
    class Remote:
        pass

    with pytest.raises(ClassicSessionNeededError, match=r"on_checkpoint needs a classic Spark"):
        sparkckpt.on_checkpoint(Remote(), print)  # type: ignore[arg-type]


def test_without_a_coordinator_executors_clean_up(spark: SparkSession, tmp_path: Path) -> None:
    """Handles without inlined files are no data, and go with their version."""
    totals = RunningTotals(spark, tmp_path, {**OFF, **NO_INLINING, RETAINED: "2"})
    handles = totals.checkpoint / "state" / "0" / "0"

    def ignore(rows: DataFrame, batch: int) -> None:
        rows.count()

    query = start(
        session_for(spark, {**CONFS, **totals.confs}), TOTALS, tmp_path, ignore, CONTINUALLY
    )
    for batch in range(6):
        process(query, tmp_path, batch)
    wait_until(lambda: not list(handles.glob("1_*.handle")))
    query.stop()
    assert not (totals.checkpoint / "_sparkckpt" / "owner").exists()
    assert metadata_in(totals.checkpoint) == {}


DRAINED_JOB = """
import sys
from pathlib import Path
from pyspark.sql import SparkSession
import sparkckpt
from tests.spark.totals import RunningTotals

builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
builder.config("spark.log.level", "WARN")
spark = sparkckpt.configure(builder).getOrCreate()
RunningTotals(spark, Path(sys.argv[1]), {}).advance(3)
if sys.argv[2] == "stop":
    spark.stop()
"""


@pytest.mark.parametrize("end", ["stop", "exit"])
def test_a_job_that_ends_at_once_has_its_last_checkpoint(
    jars: list[Path], tmp_path: Path, end: str
) -> None:
    """An AvailableNow job is over before its coordinator: the driver waits for it, for a while."""
    (tmp_path / "job.py").write_text(DRAINED_JOB)
    outcome = subprocess.run(
        [sys.executable, str(tmp_path / "job.py"), str(tmp_path / "query"), end],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert outcome.returncode == 0, outcome.stderr
    checkpoint = tmp_path / "query" / "checkpoint"
    # The JVM outlives a Python driver that just ends.
    wait_until(lambda: 2 in metadata_in(checkpoint))
    await_release(checkpoint)
    assert "SPARKCKPT" not in outcome.stderr
