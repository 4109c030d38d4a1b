"""States what the runs of the backend benchmark have shown: tables, bars, and charts. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median
from typing import Any

from benchmarks.bars import bars, growth
from benchmarks.charts import charts
from benchmarks.contestants import CONTESTANTS, REFERENCE
from benchmarks.findings import Findings, Grid
from benchmarks.ratios import Comparison, compare
from benchmarks.results import Run
from benchmarks.workload import count_label

PROFILE_METRICS = (
    "sparkckptWriteTimeMs",
    "sparkckptMergeTimeMs",
    "sparkckptMergedBytes",
    "sparkckptDeltaBytes",
    "sparkckptHandleBytes",
)


@dataclass(frozen=True)
class Report:
    """All runs of one call."""

    settings: Mapping[str, Any]
    runs: Sequence[Run]
    profile: bool = False

    def by_workload(self) -> dict[str, list[Run]]:
        workloads: dict[str, list[Run]] = {}
        for run in self.runs:
            workloads.setdefault(run.workload, []).append(run)
        return workloads

    def findings(self) -> Findings:
        grids: list[Grid] = []
        for label, runs in self.by_workload().items():
            grids += [_ratio_grid(label, runs), _written_grid(label, runs)]
            if self.profile:
                grids.append(_profile_grid(label, runs))
        grids += _growth_grids(self.runs)
        return Findings(tuple(grids), bars(self.runs), charts(self.runs), (_collectors(self.runs),))

    def data(self) -> dict[str, Any]:
        """The figures, for other programs."""
        return {
            "settings": dict(self.settings),
            "reference": REFERENCE,
            "workloads": {
                label: {
                    comparison.metric.title: {
                        "unit": comparison.metric.unit,
                        "reference": comparison.reference,
                        "ratios": {name: asdict(r) for name, r in comparison.ratios.items()},
                    }
                    for comparison in compare(runs, REFERENCE)
                }
                for label, runs in self.by_workload().items()
            },
            "runs": [asdict(run) for run in self.runs],
        }


def _names(runs: Sequence[Run]) -> list[str]:
    return [name for name in CONTESTANTS if any(run.contestant == name for run in runs)]


def _titles(names: Sequence[str]) -> list[str]:
    return [CONTESTANTS[name].title for name in names]


def _cells(comparison: Comparison, names: Sequence[str]) -> list[str]:
    def cell(name: str) -> str:
        ratio = comparison.ratios.get(name)
        if ratio is None:
            return "-"
        return "1" if name == REFERENCE else str(ratio)

    return [cell(name) for name in names]


def _ratio_grid(label: str, runs: Sequence[Run]) -> Grid:
    names = _names(runs)
    rows = []
    for comparison in compare(runs, REFERENCE):
        if not comparison.ratios and comparison.reference is None:
            continue
        unit = comparison.metric.unit
        absolute = "-" if comparison.reference is None else f"{comparison.reference:.4g} {unit}"
        rows.append((comparison.metric.title, *_cells(comparison, names), absolute))
    return Grid(
        f"{label}: ratios to {CONTESTANTS[REFERENCE].title} [lowest-highest]",
        ("figure", *_titles(names), "1 is"),
        tuple(rows),
    )


def _written_grid(label: str, runs: Sequence[Run]) -> Grid:
    """Where the bytes went: each kind's share of all the reference wrote, and the files a batch."""
    names = _names(runs)
    totals: dict[str, Counter[str]] = {name: Counter() for name in names}
    files: dict[str, Counter[str]] = {name: Counter() for name in names}
    batches: Counter[str] = Counter()
    for run in runs:
        totals[run.contestant].update(run.measured.written.bytes)
        files[run.contestant].update(run.measured.written.files)
        batches[run.contestant] += len(run.measured.batches)
    reference = totals[REFERENCE].total() / batches[REFERENCE] if batches[REFERENCE] else 0
    rows = []
    for kind in sorted({kind for total in totals.values() for kind in total}):
        cells = [
            f"{totals[name][kind] / batches[name] / reference:.3f} "
            f"[{files[name][kind] / batches[name]:.2f}]"
            if kind in totals[name] and reference
            else "-"
            for name in names
        ]
        rows.append((kind, *cells))
    return Grid(
        f"{label}: written, as a share of the reference's bytes; files a batch in brackets",
        ("kind of file", *_titles(names)),
        tuple(rows),
    )


def _growth_grids(runs: Sequence[Run]) -> list[Grid]:
    """How the batch time grows with the state, where the same changes met states of two sizes."""
    grids = []
    for changes in sorted({run.changes for run in runs}):
        sizes = sorted({run.keys for run in runs if run.changes == changes})
        if len(sizes) < 2:
            continue
        rows = []
        for name in _names(runs):
            cells = [growth(runs, name, changes, sizes[0], keys) for keys in sizes[1:]]
            rows.append((CONTESTANTS[name].title, *("-" if c is None else str(c) for c in cells)))
        title = f"growth: batch time over that with {count_label(sizes[0])} keys in the state, "
        grids.append(
            Grid(
                f"{title}{count_label(changes)} changed a batch",
                ("backend", *(f"{count_label(keys)} keys" for keys in sizes[1:])),
                tuple(rows),
            )
        )
    return grids


def _collectors(runs: Sequence[Run]) -> str:
    names = sorted({name for run in runs for name in run.measured.garbage.collectors})
    return (
        f"Collectors: {', '.join(names)}. Memory outside of the heap is not counted as allocated."
    )


def _profile_grid(label: str, runs: Sequence[Run]) -> Grid:
    """The phases of sparkckpt's commits; times are sums over its stores, as Spark reports them."""
    rows = []
    for name in _names(runs):
        batches = [
            batch for run in runs if run.contestant == name for batch in run.measured.batches
        ]
        if CONTESTANTS[name].is_sparkckpt and batches:
            for metric in PROFILE_METRICS:
                values = [batch.metrics.get(metric, 0) for batch in batches]
                unit = "ms" if metric.endswith("Ms") else "B"
                cells = (median(values), fmean(values), max(values))
                texts = (f"{value:,.0f} {unit}" for value in cells)
                rows.append((f"{CONTESTANTS[name].title}: {metric}", *texts))
    return Grid(
        f"{label}: sparkckpt by phase, per batch",
        ("metric", "median", "mean", "highest"),
        tuple(rows),
    )
