"""Charts of the backend benchmark: cost against state size and against change rate. Pure.

A curve needs two points: workloads are grouped by what they have in common, and a group of one is
no chart. The points are absolute, medians over the repeats, since a slope is what they are to show.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.contestants import CONTESTANTS
from benchmarks.findings import Chart, Curve
from benchmarks.ratios import BATCH_TIME, BYTES_WRITTEN, COLD_LOAD, GC_TIME, STATE_TIME, Metric
from benchmarks.results import Run
from benchmarks.workload import count_label

CHARTED = {
    "batch-time": BATCH_TIME,
    "state-time": STATE_TIME,
    "gc-time": GC_TIME,
    "bytes-written": BYTES_WRITTEN,
    "cold-load": COLD_LOAD,
}


@dataclass(frozen=True)
class Axis:
    """What the curves run along, while the other size of the workload is held."""

    name: str
    title: str
    along: Callable[[Run], int]
    held: Callable[[Run], int]
    held_title: str


AXES = (
    Axis("keys", "keys in the state", lambda r: r.keys, lambda r: r.changes, "{} changed a batch"),
    Axis(
        "changes", "keys changed a batch", lambda r: r.changes, lambda r: r.keys, "{} keys in state"
    ),
)


def charts(runs: Sequence[Run]) -> tuple[Chart, ...]:
    return tuple(chart for axis in AXES for chart in _along(axis, runs))


def _along(axis: Axis, runs: Sequence[Run]) -> Iterator[Chart]:
    for held in sorted({axis.held(run) for run in runs}):
        chosen = [run for run in runs if axis.held(run) == held]
        for name, metric in CHARTED.items():
            curves = tuple(_curves(axis, metric, chosen))
            if curves:
                yield Chart(
                    f"{name}-by-{axis.name}-{count_label(held)}",
                    f"{metric.title}, {axis.held_title.format(count_label(held))}",
                    axis.title,
                    metric.unit,
                    curves,
                )


def _curves(axis: Axis, metric: Metric, runs: Sequence[Run]) -> Iterator[Curve]:
    for name, contestant in CONTESTANTS.items():
        own = [run for run in runs if run.contestant == name]
        values = ((axis.along(run), metric.of_run(run)) for run in own)
        curve = Curve.through(contestant.title, ((x, y) for x, y in values if y is not None))
        if len(curve.points) > 1:
            yield curve
