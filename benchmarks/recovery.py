"""Compares how soon a query is back after its processes have been killed.

    python -m benchmarks.recovery --keys 1m --changes 10k --rounds 5 --repeat 3

The counting job of the backend benchmark runs on a cluster of real processes (local-cluster: a
driver and two executors of one core each). Two things are done to it, each with kill -9:

- an executor, while a batch runs. Measured is the time from the kill to the commit of that batch:
  Spark notices, repeats tasks, and loads the lost stores somewhere else. The executor that takes
  the place of the killed one is waited for before the next round.
- the driver, and its executors with it. A new driver is then started; measured is the time from
  start() to its first committed batch, in which every store is loaded. Processes have been started
  by then, but nothing is warm.

Contestants alternate, and their order rotates from repeat to repeat. Nothing is tuned: intervals,
heartbeats and retries are Spark's defaults. What is common to all, like noticing that an executor
is gone, is part of the figures and draws the ratios towards 1; what the stores themselves report of
loading, summed over them, is shown beside it. The batches before the kills and the
one after the restart must put out the same rows for all contestants.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import click
from rich.console import Console

from benchmarks import output
from benchmarks.children import (
    ResultsDifferError,
    command_line,
    parse_counts,
    rotated,
    run_child,
)
from benchmarks.contestants import CONTESTANTS, PARTITIONS, REFERENCE
from benchmarks.findings import Chart, Curve, Findings, Grid
from benchmarks.machine import Machine
from benchmarks.ratios import Ratio
from benchmarks.recovery_run import ColdStart, Kills, RecoveryJob
from benchmarks.workload import Workload, count_label, generate

CHILD = "benchmarks.recovery_run"
DEFAULT_CONTESTANTS = "memory,sparkckpt,rocksdb"
STEADY_BATCHES = 3
"""Before each kill, so that the batch that it strikes is an ordinary one."""
WARMUP_BATCHES = 5


@dataclass(frozen=True)
class Recovery:
    """One contestant's run; seconds."""

    contestant: str
    keys: int
    repeat: int
    kills: Kills
    cold: ColdStart


EXECUTOR_KILLED = "executor killed, to commit"
DRIVER_KILLED = "driver killed, restart to commit"
FIGURES: dict[str, Callable[[Recovery], Sequence[float]]] = {
    "ordinary batch": lambda run: run.kills.ordinary_seconds,
    EXECUTOR_KILLED: lambda run: run.kills.recovery_seconds,
    "of it, loading the stores": lambda run: run.kills.load_seconds,
    DRIVER_KILLED: lambda run: [run.cold.seconds],
}


def seconds_of(runs: Sequence[Recovery], contestant: str, figure: str) -> list[float]:
    return [value for run in runs if run.contestant == contestant for value in FIGURES[figure](run)]


def ratio_of(runs: Sequence[Recovery], contestant: str, figure: str) -> Ratio | None:
    """Of medians, run by run of the same repeat; the runs are of one size."""
    medians = {
        (run.contestant, run.repeat): median(seconds)
        for run in runs
        if (seconds := FIGURES[figure](run))
    }
    return Ratio.of(
        [
            seconds / medians[REFERENCE, repeat]
            for (name, repeat), seconds in medians.items()
            if name == contestant and medians.get((REFERENCE, repeat))
        ]
    )


def findings_of(runs: Sequence[Recovery]) -> Findings:
    sizes = sorted({run.keys for run in runs})
    grids = [_grid(keys, [run for run in runs if run.keys == keys]) for keys in sizes]
    return Findings(tuple(grids), charts=_charts(runs) if len(sizes) > 1 else ())


def _contestants_of(runs: Sequence[Recovery]) -> list[str]:
    return [name for name in CONTESTANTS if any(run.contestant == name for run in runs)]


def _grid(keys: int, runs: Sequence[Recovery]) -> Grid:
    rows = []
    for name in _contestants_of(runs):
        cells: list[str] = []
        for figure in FIGURES:
            seconds = Ratio.of(seconds_of(runs, name, figure))
            cells += [str(seconds or "-"), str(ratio_of(runs, name, figure) or "-")]
        rows.append((CONTESTANTS[name].title, *cells))
    return Grid(
        f"{count_label(keys)} keys in {PARTITIONS} partitions: seconds, and ratio to "
        f"{CONTESTANTS[REFERENCE].title} [lowest-highest]",
        ("backend", *(column for figure in FIGURES for column in (figure, "ratio"))),
        tuple(rows),
    )


def _charts(runs: Sequence[Recovery]) -> tuple[Chart, ...]:
    names = {"executor-killed": EXECUTOR_KILLED, "driver-killed": DRIVER_KILLED}
    return tuple(
        Chart(
            f"recovery-{name}",
            figure,
            "keys in the state",
            "s",
            tuple(_curve(runs, contestant, figure) for contestant in _contestants_of(runs)),
        )
        for name, figure in names.items()
    )


def _curve(runs: Sequence[Recovery], contestant: str, figure: str) -> Curve:
    own = [run for run in runs if run.contestant == contestant]
    values = ((run.keys, seconds) for run in own for seconds in FIGURES[figure](run))
    return Curve.through(CONTESTANTS[contestant].title, values)


def run(job: RecoveryJob, repeat: int, console: Console) -> Recovery:
    begin = time.monotonic()
    kills = Kills(**run_child(CHILD, "kills", job))
    cold = ColdStart(**run_child(CHILD, "cold", job))
    console.print(
        f"{count_label(job.keys)} keys, repeat {repeat + 1}: "
        f"{CONTESTANTS[job.contestant].title} done in {time.monotonic() - begin:.0f} s",
        highlight=False,
    )
    return Recovery(job.contestant, job.keys, repeat, kills, cold)


def require_equal_results(runs: Sequence[Recovery]) -> None:
    checksums = {run.contestant: (*run.kills.checksums, run.cold.checksum) for run in runs}
    if len(set(checksums.values())) > 1:
        raise ResultsDifferError(
            f"With {runs[0].keys} keys the contestants put out different rows: {checksums}. One of "
            "them has lost state in a kill; its figures would mean nothing."
        )


@click.command(context_settings={"show_default": True})
@click.option("--keys", callback=parse_counts, default="100k,1m", help="Keys in the state.")
@click.option("--changes", type=click.IntRange(1), default=10_000, help="Keys a batch changes.")
@click.option("--rounds", type=click.IntRange(1), default=5, help="Executors killed in a run.")
@click.option("--repeat", type=click.IntRange(1), default=1, help="Runs of each contestant.")
@click.option("--quick", is_flag=True, help="50k keys, two kills, once.")
@click.option(
    "--contestants",
    default=DEFAULT_CONTESTANTS,
    help=f"Which of {', '.join(CONTESTANTS)} to run; {REFERENCE} always does.",
)
@click.option("--memory", default="2g", help="Heap of the driver and of each executor.")
@click.option("--maintenance", type=float, default=2.0, help="Maintenance interval in seconds.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write all to a file.")
def main(
    keys: list[int],
    changes: int,
    rounds: int,
    repeat: int,
    quick: bool,
    contestants: str,
    memory: str,
    maintenance: float,
    json_path: Path | None,
) -> None:
    """Compare the time to recover from killed executors and drivers; figures are ratios."""
    if quick:
        keys, rounds, repeat = [50_000], 2, 1
    named = [name.strip() for name in contestants.split(",")]
    if unknown := set(named) - set(CONTESTANTS):
        raise click.BadParameter(f"{unknown} not among {list(CONTESTANTS)}")
    names = [name for name in CONTESTANTS if name in named or name == REFERENCE]
    console, machine = output.console(), Machine.here()
    command = command_line("benchmarks.recovery", sys.argv[1:])
    output.show_start(console, command, machine)
    runs: list[Recovery] = []
    with tempfile.TemporaryDirectory(
        prefix="sparkckpt-bench-", ignore_cleanup_errors=True
    ) as directory:
        work = Path(directory)
        batches = rounds * (STEADY_BATCHES + 1)
        for count in keys:
            source = work / f"input-{count}"
            generate(Workload(count, min(changes, count), batches, WARMUP_BATCHES), source)
            for number in range(repeat):
                of_repeat = []
                for name in rotated(names, number):
                    place = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=work))
                    job = RecoveryJob(
                        name,
                        count,
                        min(changes, count),
                        str(source),
                        str(place),
                        memory,
                        maintenance,
                        rounds,
                    )
                    of_repeat.append(run(job, number, console))
                    shutil.rmtree(place, ignore_errors=True)
                require_equal_results(of_repeat)
                runs += of_repeat
            shutil.rmtree(source)
    findings = findings_of(runs)
    output.show(console, findings)
    if json_path is not None:
        output.write(json_path, command, machine, findings, {"runs": [asdict(run) for run in runs]})


if __name__ == "__main__":
    main()
