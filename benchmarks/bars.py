"""The bars that the memory engine is held to, and how its cost grows. Pure: from runs to figures.

A bar names a workload, a figure, and the contestant that it is a ratio to, from the same call. One
whose workload a call did not run is listed as not measured, so that none is forgotten.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.contestants import CONTESTANTS
from benchmarks.findings import Bar
from benchmarks.ratios import (
    BATCH_TIME,
    BYTES_WRITTEN,
    COLD_LOAD,
    GC_TIME,
    STATE_TIME,
    Metric,
    Ratio,
    ratio,
)
from benchmarks.results import Run
from benchmarks.workload import count_label

SUBJECT = "memory"
GROWTH_CHANGES, GROWTH_FROM, GROWTH_TO, GROWTH_LIMIT = 10_000, 100_000, 5_000_000, 1.2
GC_BATCHES = 50


@dataclass(frozen=True)
class Demand:
    """The subject's figure is at most this share of another contestant's."""

    keys: int
    changes: int
    metric: Metric
    reference: str
    limit: float
    batches: int = 1
    """How many measured batches a run must have for it to count."""

    def bar(self, runs: Sequence[Run]) -> Bar:
        chosen = [
            run
            for run in runs
            if (run.keys, run.changes) == (self.keys, self.changes)
            and len(run.measured.batches) >= self.batches
        ]
        found = ratio(self.metric, chosen, SUBJECT, self.reference)
        batches = f", {self.batches} batches" if self.batches > 1 else ""
        title = (
            f"{self.metric.title}: {CONTESTANTS[SUBJECT].title} / "
            f"{CONTESTANTS[self.reference].title}, {count_label(self.keys)} keys, "
            f"{count_label(self.changes)} changed a batch{batches}"
        )
        return _bar(title, self.limit, found)


DEMANDS = (
    Demand(1_000_000, 100_000, BATCH_TIME, "rocksdb", 0.75),
    Demand(1_000_000, 100_000, BATCH_TIME, "hdfs", 0.95),
    Demand(1_000_000, 100_000, STATE_TIME, "rocksdb", 0.4),
    Demand(1_000_000, 100_000, STATE_TIME, "hdfs", 0.8),
    Demand(5_000_000, 100_000, BATCH_TIME, "hdfs", 0.6),
    Demand(1_000_000, 100_000, BYTES_WRITTEN, "rocksdb", 0.5),
    Demand(1_000_000, 100_000, COLD_LOAD, "rocksdb", 0.5),
    Demand(5_000_000, 100_000, GC_TIME, "hdfs", 0.2, GC_BATCHES),
)


def bars(runs: Sequence[Run]) -> tuple[Bar, ...]:
    """Every bar, in the order of the demands; the growth of the cost comes last."""
    return (*(demand.bar(runs) for demand in DEMANDS), growth_bar(runs))


def growth_bar(runs: Sequence[Run]) -> Bar:
    found = growth(runs, SUBJECT, GROWTH_CHANGES, GROWTH_FROM, GROWTH_TO)
    title = (
        f"{BATCH_TIME.title}: {CONTESTANTS[SUBJECT].title}, {count_label(GROWTH_TO)} keys / "
        f"{count_label(GROWTH_FROM)} keys, {count_label(GROWTH_CHANGES)} changed a batch"
    )
    return _bar(title, GROWTH_LIMIT, found, below=True)


def growth(
    runs: Sequence[Run], name: str, changes: int, smallest: int, largest: int
) -> Ratio | None:
    """Batch time with many keys in the state over that with few, repeat by repeat."""

    def by_repeat(keys: int) -> Mapping[int, float]:
        values: dict[int, float] = {}
        for run in runs:
            if (run.contestant, run.keys, run.changes) == (name, keys, changes):
                value = BATCH_TIME.of_run(run)
                if value:
                    values[run.repeat] = value
        return values

    few, many = by_repeat(smallest), by_repeat(largest)
    return Ratio.of([many[repeat] / few[repeat] for repeat in sorted(few.keys() & many.keys())])


def _bar(title: str, limit: float, found: Ratio | None, below: bool = False) -> Bar:
    if found is None:
        return Bar(title, limit, None, None, below)
    return Bar(title, limit, found.value, (found.low, found.high), below)
