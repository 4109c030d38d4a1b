"""Spark SQL's stateful operators, restarted in the middle, give the rows of an undisturbed run."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark import jobs
from tests.spark.streams import FULL, ORACLE, Backend, Job, Output, assert_same_after_restart, run

NEAR_DOUBLES = {
    "aggregation: complete",
    "aggregation: global complete",
    "aggregation: window complete",
    "aggregation: distinct",
    "aggregation: rollup",
    "session window: complete",
    "deduplication: by row",
    "limit: reached after the restart",
    "combination: union of two streams",
    "combination: union below an aggregation",
}
"""Those that differ from another only in what Spark does after the state is read."""
SINGLE_STREAM: Mapping[str, Job] = {
    f"{kind}: {name}": job
    for kind, catalogue in {
        "aggregation": jobs.AGGREGATIONS,
        "session window": jobs.SESSION_WINDOWS,
        "deduplication": jobs.DEDUPLICATIONS,
        "limit": jobs.LIMITS,
        "combination": jobs.COMBINATIONS,
    }.items()
    for name, job in catalogue.items()
}


@pytest.mark.parametrize(
    "name", [name for name in SINGLE_STREAM if FULL or name not in NEAR_DOUBLES]
)
def test_operator(spark: SparkSession, backend: Backend, tmp_path: Path, name: str) -> None:
    assert_same_after_restart(spark, SINGLE_STREAM[name], tmp_path, backend)


@pytest.fixture(scope="module")
def joined(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Output]:
    """What Spark's RocksDB gives for each join; the state format must not change it."""
    return {
        join_type: run(
            spark, jobs.time_range_join(join_type, 3), tmp_path_factory.mktemp(join_type), ORACLE
        )
        for join_type in jobs.JOIN_TYPES
    }


JOINS = [
    (join_type, state_format)
    for join_type in jobs.JOIN_TYPES
    for state_format in jobs.JOIN_STATE_FORMATS
    if FULL
    or join_type in ("full_outer", "left_semi")
    or state_format == max(jobs.JOIN_STATE_FORMATS)
]
"""All kinds in the newest state format, and in all formats those that keep both sides, or one."""


@pytest.mark.parametrize(("join_type", "state_format"), JOINS)
def test_join(
    spark: SparkSession,
    backend: Backend,
    tmp_path: Path,
    joined: Mapping[str, Output],
    join_type: str,
    state_format: int,
) -> None:
    job = jobs.time_range_join(join_type, state_format)
    assert run(spark, job, tmp_path, backend, restart_after={1}) == joined[join_type]
    assert any(joined[join_type].values())


@pytest.mark.parametrize("state_format", jobs.JOIN_STATE_FORMATS)
def test_join_without_watermark(
    spark: SparkSession, backend: Backend, tmp_path: Path, state_format: int
) -> None:
    assert_same_after_restart(spark, jobs.unbounded_join(state_format), tmp_path, backend)


@pytest.mark.parametrize("state_format", [2, 4])
def test_join_on_window(
    spark: SparkSession, backend: Backend, tmp_path: Path, state_format: int
) -> None:
    assert_same_after_restart(
        spark, jobs.window_join("left_outer", state_format), tmp_path, backend
    )


def test_restart_after_every_batch(spark: SparkSession, backend: Backend, tmp_path: Path) -> None:
    job = jobs.Job.of(jobs.EVENTS, jobs.events(8), jobs.windowed)
    assert_same_after_restart(spark, job, tmp_path, backend, restart_after=range(7))


def test_join_in_state_format_1(
    spark: SparkSession, backend: Backend, tmp_path: Path, joined: Mapping[str, Output]
) -> None:
    """Spark starts no new query in this format outside its own tests, and only inner joins."""
    system = spark._jvm.java.lang.System
    system.setProperty("spark.testing", "true")
    try:
        job = jobs.time_range_join("inner", 1)
        assert run(spark, job, tmp_path, backend, restart_after={1}) == joined["inner"]
    finally:
        system.clearProperty("spark.testing")
