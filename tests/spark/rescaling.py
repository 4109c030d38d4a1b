"""Runs jobs whose parallelism changes from restart to restart."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from pyspark.sql import SparkSession

import sparkckpt
from sparkckpt.errors import NewerOwnerError, QueryRunningError
from tests.spark import jobs, python_jobs
from tests.spark.faults import wait_until
from tests.spark.leases import await_release
from tests.spark.streams import PARTITIONS, Backend, Job, Output, run

Report = TypeVar("Report")

CHAINS: Sequence[tuple[int, ...]] = ((4, 6), (7, 12), (21, 20), (5, 1), (1, 8), (3, 5, 2))

KINDS: Mapping[str, Mapping[str, Job]] = {
    "aggregation": jobs.AGGREGATIONS,
    "session window": jobs.SESSION_WINDOWS,
    "deduplication": jobs.DEDUPLICATIONS,
    "limit": jobs.LIMITS,
    "combination": jobs.COMBINATIONS,
    "join": {
        f"{join_type}, state format {state_format}": jobs.time_range_join(join_type, state_format)
        for join_type in jobs.JOIN_TYPES
        for state_format in jobs.JOIN_STATE_FORMATS
    },
    "join without a watermark": {
        f"state format {state_format}": jobs.unbounded_join(state_format)
        for state_format in jobs.JOIN_STATE_FORMATS
    },
    "applyInPandasWithState": python_jobs.PANDAS_WITH_STATE,
    "transformWithState": python_jobs.transform_with_state(pandas=False),
    "transformWithStateInPandas": python_jobs.transform_with_state(pandas=True),
}
"""Every kind of stateful operator."""


def run_rescaled(
    spark: SparkSession, job: Job, workdir: Path, backend: Backend, chain: Sequence[int]
) -> Output:
    """The output of a job that is stopped and rescaled along the chain."""
    begun = replace(backend, confs={**backend.confs, PARTITIONS: str(chain[0])})
    count = len(job.batches)
    stops = {count * step // len(chain) - 1 for step in range(1, len(chain))}
    return run(
        spark,
        job,
        workdir,
        begun,
        stops,
        lambda number, checkpoint, run_id: rescale_when_stopped(
            checkpoint, chain[number + 1], run_id
        ),
    )


def when_stopped(command: Callable[[], Report]) -> Report:
    """What the command returns once the query it is for does not count as running any more.

    One that has just stopped is busy for a moment: its last checkpoint is completed.
    """
    reports: list[Report] = []

    def succeeds() -> bool:
        try:
            reports.append(command())
        except (QueryRunningError, NewerOwnerError):
            return False
        return True

    wait_until(succeeds)
    return reports[0]


def rescale_when_stopped(
    checkpoint: Path, parallelism: int, run_id: object = None
) -> sparkckpt.RescaleReport:
    """With the id of the last run, its coordinator is surely done before anything is changed."""
    await_release(checkpoint, run_id)
    return when_stopped(lambda: sparkckpt.rescale(checkpoint, parallelism))
