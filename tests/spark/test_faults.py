"""Whatever fails, and wherever, the results are those of a run in which nothing failed, exactly."""

import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.spark.fault_driver import windows
from tests.spark.fault_runs import run_with_faults, run_with_kills
from tests.spark.faults import Fault, Faults, InjectedError, running_sums
from tests.spark.jobs import EVENTS, events, unbounded_join
from tests.spark.streams import (
    ORACLE,
    Backend,
    Job,
    Output,
    canonical_rows,
    checkpoint_of,
    feed,
    open_sources,
    run,
    session_for,
    start,
    unload_state,
)

SEED = int(os.environ.get("SPARKCKPT_TEST_SEED", "20240301"))


@pytest.fixture(scope="module")
def expected_sums(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Output:
    return run(spark, running_sums(), tmp_path_factory.mktemp("sums"), ORACLE)


def run_until_it_succeeds(
    spark: SparkSession, backend: Backend, workdir: Path, faults: Faults, failures: set[int]
) -> tuple[Output, int]:
    """Restart the query as often as it fails; in these batches the driver's own code fails, too."""
    job = running_sums(faults)
    feed(job, workdir, range(len(job.batches)))
    output: Output = {}
    left = set(failures)

    def collect(rows: DataFrame, batch: int) -> None:
        collected = rows.rdd.mapPartitions(faults.after_commit).collect()
        if batch in left:
            left.remove(batch)
            raise InjectedError(f"driver in batch {batch}")
        output[batch] = canonical_rows(collected)

    for attempt in range(20):
        try:
            start(session_for(spark, backend.confs), job, workdir, collect).awaitTermination()
        except StreamingQueryException as failure:
            assert "InjectedError" in str(failure)
            unload_state(spark)
        else:
            return output, attempt
    raise AssertionError("the query did not get to its end")


@pytest.mark.parametrize("inline", ["20k", "0"])
def test_failed_batches_and_restarts(
    spark: SparkSession, backend: Backend, tmp_path: Path, expected_sums: Output, inline: str
) -> None:
    """A task fails for good, and the batch with it, when others may have committed theirs."""
    markers = tmp_path / "markers"
    markers.mkdir()
    planned = {
        (0, 1): Fault.FAIL_BEFORE_COMMIT,
        (2, 0): Fault.FAIL_AFTER_COMMIT,
        (2, 2): Fault.FAIL_AFTER_COMMIT,
        (4, 2): Fault.FAIL_BEFORE_COMMIT,
    }
    faults = Faults(str(markers), planned)
    confs = {**backend.confs, "spark.sql.streaming.stateStore.sparkckpt.inlineThreshold": inline}
    output, failures = run_until_it_succeeds(
        spark, replace(backend, confs=confs), tmp_path, faults, failures={1, 3}
    )
    assert output == expected_sums
    assert faults.struck() == len(planned)
    assert failures >= 4


@pytest.mark.parametrize("batch", [0, 2])
@pytest.mark.parametrize("operator", ["deduplication", "join"])
def test_batch_that_the_sink_has_already(
    spark: SparkSession, backend: Backend, tmp_path: Path, operator: str, batch: int
) -> None:
    """The driver dies between the sink's commit and Spark's own: the sink skips the batch.

    Such a batch is not run again, and yet the next one needs its state.
    """
    job = {
        "deduplication": Job.of(EVENTS, events(5), lambda df: df.dropDuplicates(["k"])),
        "join": unbounded_join(state_format=2),
    }[operator]
    expected = run(spark, job, tmp_path / "oracle", ORACLE)
    workdir = tmp_path / "subject"

    def go() -> None:
        session = session_for(spark, {**backend.confs, **job.confs})
        (
            job.transform(open_sources(session, job, workdir))
            .writeStream.format("parquet")
            .option("path", str(workdir / "output"))
            .option("checkpointLocation", str(checkpoint_of(workdir)))
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )
        unload_state(spark)

    feed(job, workdir, range(batch + 1))
    go()
    latest = max(int(entry.name) for entry in (checkpoint_of(workdir) / "commits").glob("[0-9]*"))
    for entry in (checkpoint_of(workdir) / "commits").glob(f"*{latest}*"):
        entry.unlink()
    feed(job, workdir, range(batch + 1, len(job.batches)))
    go()
    written = canonical_rows(spark.read.parquet(str(workdir / "output")).collect())
    assert written == sorted(row for rows in expected.values() for row in rows)


@pytest.mark.usefixtures("jars")
def test_failed_tasks_are_retried(tmp_path: Path, expected_sums: Output) -> None:
    """The retry of a task starts from the state before it, not from what the task has committed."""
    planned = {
        (0, 0): Fault.FAIL_AFTER_COMMIT,
        (1, 0): Fault.FAIL_BEFORE_COMMIT,
        (1, 1): Fault.FAIL_AFTER_COMMIT,
        (1, 2): Fault.FAIL_AFTER_COMMIT,
        (3, 2): Fault.FAIL_AFTER_COMMIT,
        (4, 1): Fault.FAIL_BEFORE_COMMIT,
    }
    assert run_with_faults(tmp_path, "local[2,4]", planned) == expected_sums


@pytest.mark.usefixtures("jars")
def test_killed_executors(tmp_path: Path, expected_sums: Output) -> None:
    planned = {(1, 1): Fault.KILL_AFTER_COMMIT, (3, 2): Fault.KILL_BEFORE_COMMIT}
    assert run_with_faults(tmp_path, "local-cluster[2,1,1024]", planned) == expected_sums


@pytest.mark.usefixtures("jars")
def test_speculative_tasks(tmp_path: Path, expected_sums: Output) -> None:
    """The copy wins, although the original has committed its state long before."""
    planned = {(1, 0): Fault.OUTRUN_AFTER_COMMIT, (3, 2): Fault.OUTRUN_AFTER_COMMIT}
    output = run_with_faults(
        tmp_path,
        "two-hosts",
        planned,
        **{
            "speculation": "true",
            "speculation.interval": "100ms",
            "speculation.multiplier": "1.5",
            "speculation.quantile": "0.5",
            "locality.wait": "0s",
        },
    )
    assert output == expected_sums


@pytest.mark.usefixtures("jars")
def test_killed_drivers(spark: SparkSession, tmp_path: Path) -> None:
    """kill -9 at random moments of two queries, then a restart: again, and again."""
    print(f"SPARKCKPT_TEST_SEED={SEED}")
    batches = 6
    sums = run(spark, running_sums(batches=batches), tmp_path / "oracle-sums", ORACLE)
    windowed = run(spark, windows(batches), tmp_path / "oracle-windows", ORACLE)
    outputs = run_with_kills(tmp_path, random.Random(SEED), batches, kills=2)
    assert outputs == (sums, windowed)
