"""Jobs whose stateful Python runs in-band, in every run of the query or in every other."""

import itertools
from collections.abc import Iterator
from dataclasses import replace

from pyspark.sql import DataFrame

import sparkckpt
from tests.spark.streams import Job, Sources


def accelerated(job: Job) -> Job:
    return _with(job, itertools.repeat(True))


def by_turns(job: Job) -> Job:
    """In-band, and after each restart on Spark's own operator or in-band again."""
    return _with(job, itertools.cycle((True, False)))


def _with(job: Job, turns: Iterator[bool]) -> Job:
    def transform(sources: Sources) -> DataFrame:
        session = next(iter(sources.values())).sparkSession
        sparkckpt.accelerate(session, enabled=next(turns))
        return job.transform(sources)

    return replace(job, transform=transform)
