"""Python's stateful operators, restarted in the middle, give the rows of an undisturbed run."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark import python_jobs
from tests.spark.streams import FULL, Backend, assert_same_after_restart

ROWS = python_jobs.transform_with_state(pandas=False)
FRAMES = python_jobs.transform_with_state(pandas=True)
SOME_FRAMES = ("value, list and map", "ttl", "event-time timers")
"""To the state backend, frames and rows are the same."""


@pytest.mark.parametrize("name", python_jobs.PANDAS_WITH_STATE)
def test_apply_in_pandas_with_state(
    spark: SparkSession, backend: Backend, tmp_path: Path, name: str
) -> None:
    job = python_jobs.PANDAS_WITH_STATE[name]
    output = assert_same_after_restart(spark, job, tmp_path, backend)
    if name != "no timeout":
        assert any(
            "timed out" in row or "closed" in row for rows in output.values() for row in rows
        )


@pytest.mark.parametrize("name", ROWS)
def test_transform_with_state(
    spark: SparkSession, backend: Backend, tmp_path: Path, name: str
) -> None:
    assert_same_after_restart(spark, ROWS[name], tmp_path, backend)


@pytest.mark.parametrize("name", FRAMES if FULL else SOME_FRAMES)
def test_transform_with_state_in_pandas(
    spark: SparkSession, backend: Backend, tmp_path: Path, name: str
) -> None:
    assert_same_after_restart(spark, FRAMES[name], tmp_path, backend)
