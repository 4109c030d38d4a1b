"""Savepoints of real queries: taken, moved, restored at another parallelism, and gone on from.

Every kind of operator with `make test-full`; otherwise some, with an example and a parallelism
drawn at random.
"""

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

import sparkckpt
from sparkckpt.errors import SavepointExistsError, StopRefusedError
from tests.spark.faults import wait_until
from tests.spark.leases import await_release
from tests.spark.rescaling import KINDS, when_stopped
from tests.spark.restored_totals import PATH
from tests.spark.streams import (
    CONTINUALLY,
    FULL,
    ORACLE,
    PARTITIONS,
    Backend,
    Job,
    Output,
    canonical_rows,
    feed,
    open_sources,
    run,
    session_for,
    unload_state,
)
from tests.spark.test_restore import Runner, is_complete

SEED = int(os.environ.get("SPARKCKPT_TEST_SEED", "20240301"))
QUICK = ("session window", "join", "transformWithStateInPandas")

Case = tuple[str, str, int]


def cases() -> Iterator[Case]:
    chosen = random.Random(SEED)
    for kind, examples in KINDS.items():
        for name in sorted(examples) if FULL else [chosen.choice(sorted(examples))]:
            if FULL or kind in QUICK:
                yield kind, name, chosen.choice([1, 2, 5, 7, 12])


@pytest.mark.parametrize(("kind", "name", "parallelism"), list(cases()))
def test_the_query_goes_on_from_a_savepoint_elsewhere(
    spark: SparkSession,
    backend: Backend,
    tmp_path: Path,
    kind: str,
    name: str,
    parallelism: int,
) -> None:
    print(f"SPARKCKPT_TEST_SEED={SEED}")
    job = KINDS[kind][name]
    expected = run(spark, job, tmp_path / "oracle", ORACLE)
    runner = Runner(spark, job, tmp_path, backend)
    middle = len(job.batches) // 2
    checkpoint = tmp_path / "checkpoint"
    runner.run(checkpoint, range(middle))
    wait_until(lambda: is_complete(checkpoint))
    report = when_stopped(lambda: sparkckpt.savepoint(checkpoint, tmp_path / "sp"))
    assert report.batch_id == middle - 1
    shutil.rmtree(checkpoint)
    moved = shutil.move(tmp_path / "sp", tmp_path / "moved")
    assert sparkckpt.verify(moved).to_pylist() == []
    sparkckpt.restore(moved, tmp_path / "restored", parallelism=parallelism)
    runner.run(tmp_path / "restored", range(middle, len(job.batches)))
    assert runner.output == expected
    assert sparkckpt.verify(tmp_path / "restored").to_pylist() == []


def test_a_savepoint_by_a_spark_job(spark: SparkSession, backend: Backend, tmp_path: Path) -> None:
    job = next(iter(KINDS["aggregation"].values()))
    runner = Runner(spark, job, tmp_path, backend)
    checkpoint = tmp_path / "checkpoint"
    runner.run(checkpoint, range(2))
    wait_until(lambda: is_complete(checkpoint))
    told: list[tuple[int, int]] = []
    by_threads = sparkckpt.savepoint(checkpoint, tmp_path / "sp1")
    by_spark = sparkckpt.savepoint(
        checkpoint, tmp_path / "sp2", spark=spark, progress=lambda *now: told.append(now)
    )
    assert told[-1] == (3, 3)
    assert by_spark.rows == by_threads.rows > 0
    assert [(o.files, o.bytes) for o in by_spark.operators] == [
        (o.files, o.bytes) for o in by_threads.operators
    ]
    assert sparkckpt.verify(tmp_path / "sp2").to_pylist() == []


class Running:
    """A job that runs on and on, one file a batch."""

    def __init__(self, spark: SparkSession, job: Job, workdir: Path, backend: Backend) -> None:
        self.output: Output = {}
        self.checkpoint = workdir / "checkpoint"
        session = session_for(spark, {**backend.confs_of(0), **job.confs})

        def collect(rows: DataFrame, batch: int) -> None:
            self.output[batch] = canonical_rows(rows.collect())

        self.query: StreamingQuery = (
            job.transform(open_sources(session, job, workdir))
            .writeStream.outputMode(job.output_mode)
            .option("checkpointLocation", str(self.checkpoint))
            .trigger(**CONTINUALLY)
            .foreachBatch(collect)
            .start()
        )

    def await_batch(self, batch: int) -> None:
        wait_until(lambda: batch in self.output or not self.query.isActive)
        assert self.query.isActive


@pytest.mark.parametrize("by", ["query", "path"])
def test_a_query_is_stopped_with_a_savepoint(
    spark: SparkSession, backend: Backend, tmp_path: Path, by: str
) -> None:
    """In full run, with batches waiting: the savepoint is of the very last one that ran."""
    job = next(iter(KINDS["aggregation"].values()))
    expected = run(spark, job, tmp_path / "oracle", ORACLE)
    count = len(job.batches)
    feed(job, tmp_path, range(count if by == "path" else 2))
    running = Running(spark, job, tmp_path, backend)
    running.await_batch(1)
    wait_until(lambda: (running.checkpoint / "_sparkckpt/owner").exists())
    what = running.query if by == "query" else running.checkpoint
    report = sparkckpt.stop_with_savepoint(what, tmp_path / "sp")
    assert not running.query.isActive and running.query.exception() is None
    assert report.batch_id == max(running.output)
    committed = [int(path.name) for path in (running.checkpoint / "commits").glob("[0-9]*")]
    assert report.batch_id == max(committed)
    assert not (running.checkpoint / "_sparkckpt/stop-request.json").exists()
    unload_state(spark)
    shutil.rmtree(running.checkpoint)
    sparkckpt.restore(tmp_path / "sp", tmp_path / "restored", parallelism=5)
    runner = Runner(spark, job, tmp_path, backend)
    runner.run(tmp_path / "restored", range(count))
    assert sorted(runner.output) == list(range(report.batch_id + 1, count))
    assert {**running.output, **runner.output} == expected


def test_without_a_savepoint_the_query_goes_on(
    spark: SparkSession, backend: Backend, tmp_path: Path
) -> None:
    job = next(iter(KINDS["aggregation"].values()))
    feed(job, tmp_path, range(1))
    running = Running(spark, job, tmp_path, backend)
    running.await_batch(0)
    wait_until(lambda: (running.checkpoint / "_sparkckpt/owner").exists())
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    with pytest.raises(SavepointExistsError):
        sparkckpt.stop_with_savepoint(running.query, tmp_path / "full")
    feed(job, tmp_path, range(1, 2))
    running.await_batch(1)
    running.query.stop()
    await_release(running.checkpoint, running.query.runId)
    with pytest.raises(StopRefusedError, match="without --stop"):
        sparkckpt.stop_with_savepoint(running.checkpoint, tmp_path / "sp")


def test_a_savepoint_is_no_place_to_run_on_but_to_start_from(
    spark: SparkSession, backend: Backend, tmp_path: Path
) -> None:
    job = next(iter(KINDS["aggregation"].values()))
    runner = Runner(spark, job, tmp_path, backend)
    runner.run(tmp_path / "checkpoint", range(2))
    wait_until(lambda: is_complete(tmp_path / "checkpoint"))
    sparkckpt.savepoint(tmp_path / "checkpoint", tmp_path / "sp")
    with pytest.raises(StreamingQueryException, match="SPARKCKPT_START_ON_SAVEPOINT"):
        runner.run(tmp_path / "sp", range(2, 3))
    by_conf = Backend("by conf", {**backend.confs, PATH: str(tmp_path / "sp"), PARTITIONS: "4"})
    runner.backend = by_conf
    runner.run(tmp_path / "restored", range(2, 3))
    assert sorted(runner.output) == [0, 1, 2]
    with pytest.raises(sparkckpt.errors.SavepointInUseError, match="restored"):
        sparkckpt.dispose(tmp_path / "sp")
    assert sparkckpt.dispose(tmp_path / "sp", force=True).complete
