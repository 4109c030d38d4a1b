"""Shows comparisons: tables in the terminal, the same as Markdown, and everything as JSON."""

import json
import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.contestants import CONTESTANTS, REFERENCE
from benchmarks.ratios import Comparison, compare
from benchmarks.results import Run

PROFILE_METRICS = (
    "sparkckptWriteTimeMs",
    "sparkckptMergeTimeMs",
    "sparkckptMergedBytes",
    "sparkckptDeltaBytes",
    "sparkckptHandleBytes",
)


@dataclass(frozen=True)
class Machine:
    """What the figures were taken on."""

    cores: int
    memory_gib: int
    system: str
    java: str
    spark: str
    python: str

    @staticmethod
    def of(run: Run) -> "Machine":
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return Machine(
            os.cpu_count() or 0,
            round(memory / 2**30),
            f"{platform.system()} {platform.machine()}",
            run.measured.java_version,
            run.measured.spark_version,
            platform.python_version(),
        )

    def __str__(self) -> str:
        return (
            f"{self.cores} cores, {self.memory_gib} GiB, {self.system}, "
            f"Java {self.java}, Spark {self.spark}, Python {self.python}"
        )


@dataclass(frozen=True)
class Report:
    """All runs of one call, and how it was called."""

    command: str
    settings: Mapping[str, Any]
    runs: Sequence[Run]
    profile: bool

    @property
    def machine(self) -> Machine:
        return Machine.of(self.runs[0])

    def by_workload(self) -> dict[str, list[Run]]:
        workloads: dict[str, list[Run]] = {}
        for run in self.runs:
            workloads.setdefault(run.workload, []).append(run)
        return workloads

    def print(self, console: Console) -> None:
        console.print(f"\nMachine: {self.machine}\nCommand: {self.command}\n", highlight=False)
        for label, runs in self.by_workload().items():
            console.print(_ratio_table(label, runs))
            console.print(_written_table(runs))
            if self.profile:
                console.print(_profile_table(runs))
        console.print("\nMarkdown:\n", highlight=False)
        console.out(self.markdown(), highlight=False)

    def markdown(self) -> str:
        lines = [f"`{self.command}` on {self.machine}:", ""]
        workloads = self.by_workload().items()
        names = list(dict.fromkeys(run.contestant for run in self.runs if run.repeat == 0))
        titles = [CONTESTANTS[name].title for name in CONTESTANTS if name in names]
        lines.append("| " + " | ".join(["workload", "figure", *titles]) + " |")
        lines.append("|" + "---|" * (len(titles) + 2))
        for label, runs in workloads:
            for number, comparison in enumerate(compare(runs, REFERENCE)):
                cells = _cells(comparison, [name for name in CONTESTANTS if name in names])
                first = label if number == 0 else ""
                lines.append("| " + " | ".join([first, comparison.metric.title, *cells]) + " |")
        return "\n".join(lines)

    def write_json(self, path: Path) -> None:
        value = {
            "command": self.command,
            "machine": asdict(self.machine),
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
        path.write_text(json.dumps(value, indent=1) + "\n")


def _cells(comparison: Comparison, names: Sequence[str]) -> list[str]:
    def cell(name: str) -> str:
        ratio = comparison.ratios.get(name)
        if ratio is None:
            return "-"
        return "1" if name == REFERENCE else str(ratio)

    return [cell(name) for name in names]


def _ratio_table(label: str, runs: Sequence[Run]) -> Table:
    names = [name for name in CONTESTANTS if any(run.contestant == name for run in runs)]
    table = Table(title=f"{label}: ratios to {CONTESTANTS[REFERENCE].title} \\[lowest-highest]")
    table.add_column("figure")
    for name in names:
        table.add_column(CONTESTANTS[name].title, justify="right")
    table.add_column("1 is", justify="right")
    for comparison in compare(runs, REFERENCE):
        unit = comparison.metric.unit
        absolute = "-" if comparison.reference is None else f"{comparison.reference:.4g} {unit}"
        table.add_row(comparison.metric.title, *_cells(comparison, names), absolute)
    return table


def _written_table(runs: Sequence[Run]) -> Table:
    """Where the bytes went: each kind's share of all the reference wrote, and the files a batch."""
    table = Table(title="written, as a share of the reference's bytes; files a batch in brackets")
    names = [name for name in CONTESTANTS if any(run.contestant == name for run in runs)]
    totals: dict[str, Counter[str]] = {name: Counter() for name in names}
    files: dict[str, Counter[str]] = {name: Counter() for name in names}
    batches: Counter[str] = Counter()
    for run in runs:
        totals[run.contestant].update(run.measured.written.bytes)
        files[run.contestant].update(run.measured.written.files)
        batches[run.contestant] += len(run.measured.batches)
    reference = totals[REFERENCE].total() / batches[REFERENCE] if batches[REFERENCE] else 0
    table.add_column("kind of file")
    for name in names:
        table.add_column(CONTESTANTS[name].title, justify="right")
    for kind in sorted({kind for total in totals.values() for kind in total}):
        cells = [
            f"{totals[name][kind] / batches[name] / reference:.3f} "
            f"[{files[name][kind] / batches[name]:.2f}]"
            if kind in totals[name] and reference
            else "-"
            for name in names
        ]
        table.add_row(kind, *cells)
    return table


def _profile_table(runs: Sequence[Run]) -> Table:
    """The phases of sparkckpt's commits; times are sums over its stores, as Spark reports them."""
    batches = [
        batch for run in runs if run.contestant == "sparkckpt" for batch in run.measured.batches
    ]
    table = Table(title="sparkckpt by phase, per batch")
    for column in ("metric", "median", "mean", "highest", "mean as a share of"):
        table.add_column(column, justify="left" if column == "metric" else "right")
    if not batches:
        return table
    commit = fmean(batch.commit_ms for batch in batches)
    written = fmean(
        sum(batch.metrics.get(name, 0) for name in PROFILE_METRICS if name.endswith("Bytes"))
        for batch in batches
    )
    for name in PROFILE_METRICS:
        values = [batch.metrics.get(name, 0) for batch in batches]
        whole, title = (commit, "commit") if name.endswith("Ms") else (written, "bytes")
        share = f"{fmean(values) / whole:.2f} {title}" if whole else "-"
        unit = "ms" if name.endswith("Ms") else "B"
        cells = (median(values), fmean(values), max(values))
        table.add_row(name, *(f"{value:,.0f} {unit}" for value in cells), share)
    return table
