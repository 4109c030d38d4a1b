"""From runs to ratios against the reference. Pure: no I/O, no printing.

A ratio is the median over the repeats of (contestant / reference), run by run of the same repeat.
Its spread is the lowest and highest such ratio; figures that exist per batch are also compared
fifth by fifth of the measured batches, so that even a single repeat shows how steady they are.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median

from benchmarks.results import Batch, Run

PIECES = 5
Average = Callable[[Iterable[float]], float]


@dataclass(frozen=True)
class Metric:
    """A figure of a run, taken from its batches or from the run as a whole."""

    title: str
    unit: str
    of_run: Callable[[Run], float | None]
    of_batches: Callable[[Sequence[Batch]], float] | None = None


@dataclass(frozen=True)
class Ratio:
    """Contestant against reference, with the lowest and the highest ratio seen."""

    value: float
    low: float
    high: float

    @staticmethod
    def of(ratios: Sequence[float]) -> "Ratio | None":
        return Ratio(median(ratios), min(ratios), max(ratios)) if ratios else None

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}-{self.high:.2f}]"


@dataclass(frozen=True)
class Comparison:
    """One metric of one workload: what 1.00 is, and the ratio of each contestant that has it."""

    metric: Metric
    reference: float | None
    ratios: dict[str, Ratio]


def _per_batch(title: str, value: Callable[[Batch], float], average: Average) -> Metric:
    def of_batches(batches: Sequence[Batch]) -> float:
        return average(value(batch) for batch in batches)

    return Metric(title, "ms", lambda run: of_batches(run.measured.batches), of_batches)


def _net_seconds(run: Run) -> float | None:
    return run.restart.net_seconds if run.restart else None


BATCH_TIME = _per_batch("batch time, median", lambda batch: batch.trigger_ms, median)
STATE_TIME = _per_batch(
    "state time (updates and commit), median",
    lambda batch: batch.updates_ms + batch.commit_ms,
    median,
)
BYTES_WRITTEN = Metric(
    "bytes per changed key, all files",
    "B",
    lambda run: run.measured.bytes_written() / run.changed_keys,
)
COLD_LOAD = Metric("restart to first batch, net of empty", "s", _net_seconds)
GC_TIME = Metric(
    "GC time per batch", "ms", lambda run: run.measured.garbage.gc_ms / len(run.measured.batches)
)

METRICS: tuple[Metric, ...] = (
    BATCH_TIME,
    _per_batch("batch time, mean", lambda batch: batch.trigger_ms, fmean),
    _per_batch("addBatch, median", lambda batch: batch.add_batch_ms, median),
    _per_batch("state updates, median", lambda batch: batch.updates_ms, median),
    _per_batch("state commit, median", lambda batch: batch.commit_ms, median),
    _per_batch("state commit, mean", lambda batch: batch.commit_ms, fmean),
    STATE_TIME,
    GC_TIME,
    Metric(
        "bytes allocated per changed key",
        "B",
        lambda run: run.measured.garbage.allocated_bytes / run.changed_keys,
    ),
    BYTES_WRITTEN,
    Metric(
        "bytes per changed key, log only",
        "B",
        lambda run: run.measured.bytes_written(log_only=True) / run.changed_keys,
    ),
    COLD_LOAD,
    Metric(
        "restart to first batch", "s", lambda run: run.restart.full_seconds if run.restart else None
    ),
    Metric(
        "cold load, store metric", "ms", lambda run: run.restart.load_ms if run.restart else None
    ),
)


def compare(runs: Sequence[Run], reference: str) -> list[Comparison]:
    """Every metric of the runs of one workload, against the reference contestant's."""
    names = list(dict.fromkeys(run.contestant for run in runs))
    return [
        Comparison(
            metric,
            _typical([metric.of_run(run) for run in runs if run.contestant == reference]),
            {
                name: found
                for name in names
                if (found := ratio(metric, runs, name, reference)) is not None
            },
        )
        for metric in METRICS
    ]


def ratio(metric: Metric, runs: Sequence[Run], name: str, reference: str) -> Ratio | None:
    """One metric of one contestant against another's, in the runs of one workload."""
    return _ratio(metric, _pairs(runs, name, reference))


def _pairs(runs: Sequence[Run], name: str, reference: str) -> list[tuple[Run, Run]]:
    references = {run.repeat: run for run in runs if run.contestant == reference}
    return [
        (run, references[run.repeat])
        for run in runs
        if run.contestant == name and run.repeat in references
    ]


def _ratio(metric: Metric, pairs: Sequence[tuple[Run, Run]]) -> Ratio | None:
    """None unless every pair has a ratio: leaving out the odd ones would be a choice of results."""
    ratios = [_divide(metric.of_run(run), metric.of_run(other)) for run, other in pairs]
    spread = list(ratios)
    if metric.of_batches is not None:
        for run, other in pairs:
            pieces = zip(_pieces(run), _pieces(other), strict=True)
            spread += [_divide(metric.of_batches(a), metric.of_batches(b)) for a, b in pieces]
    known = [ratio for ratio in ratios if ratio is not None]
    known_spread = [ratio for ratio in spread if ratio is not None]
    if not known or len(known_spread) < len(spread):
        return None
    return Ratio(median(known), min(known_spread), max(known_spread))


def _pieces(run: Run) -> list[Sequence[Batch]]:
    batches = run.measured.batches
    borders = [len(batches) * piece // PIECES for piece in range(PIECES + 1)]
    pieces = (batches[start:end] for start, end in pairwise(borders))
    return [piece for piece in pieces if piece]


def _divide(value: float | None, by: float | None) -> float | None:
    """None where no ratio exists; a net restart time lost in the noise can be below zero."""
    if value is None or by is None or value < 0 or by <= 0:
        return None
    return value / by


def _typical(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
