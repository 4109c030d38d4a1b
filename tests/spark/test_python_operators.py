"""Python's stateful operators, restarted in the middle, give the rows of an undisturbed run.

So they do when they run in-band, and when they do so before one restart and not after it.
"""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark import python_jobs
from tests.spark.accelerated import by_turns
from tests.spark.streams import FULL, Backend, Job, Output, assert_same_after_restart, run

ROWS = python_jobs.transform_with_state(pandas=False)
FRAMES = python_jobs.transform_with_state(pandas=True)
SOME_FRAMES = ("value, list and map", "ttl", "event-time timers")
"""To the state backend, frames and rows are the same."""


def assert_same(spark: SparkSession, job: Job, directory: Path, backend: Backend) -> Output:
    expected = assert_same_after_restart(spark, job, directory, backend)
    in_band = run(spark, by_turns(job), directory / "accelerated", backend, {0, 1})
    assert in_band == expected
    return expected


@pytest.mark.parametrize("name", python_jobs.PANDAS_WITH_STATE)
def test_apply_in_pandas_with_state(
    spark: SparkSession, backend: Backend, tmp_path: Path, name: str
) -> None:
    output = assert_same(spark, python_jobs.PANDAS_WITH_STATE[name], tmp_path, backend)
    if name != "no timeout":
        assert any(
            "timed out" in row or "closed" in row for rows in output.values() for row in rows
        )


@pytest.mark.parametrize("name", ROWS)
def test_transform_with_state(
    spark: SparkSession, backend: Backend, tmp_path: Path, name: str
) -> None:
    assert_same(spark, ROWS[name], tmp_path, backend)


@pytest.mark.parametrize("name", FRAMES if FULL else SOME_FRAMES)
def test_transform_with_state_in_pandas(
    spark: SparkSession, backend: Backend, tmp_path: Path, name: str
) -> None:
    assert_same(spark, FRAMES[name], tmp_path, backend)
