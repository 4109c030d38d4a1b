"""Compares sparkckpt with Spark's own state stores on the same streaming job.

    python -m benchmarks.backend --keys 100k,1m --changes 10k,100k --batches 50 --repeat 3
    python -m benchmarks.backend --workloads 100k/10k,1m/100k,5m/10k --warmup 30 --memory 8g

The job counts and sums per key. The state is filled with all keys, warm-up batches follow, then
the measured ones, each of which changes a given number of random keys; batches follow each other
without pause. Every run is a process of its own, contestants alternate, and their order rotates
from repeat to repeat; all workloads of a repeat come before the next repeat, so that what is
compared was measured close together. After it, another new process continues the checkpoint, which
gives the time of a cold load (cold process; the operating system may still have the files cached).
Checksums of the last batches' output must be the same for all contestants: they hold the same
state.

"State time" is what the stores themselves take of a batch, updates and commit, as Spark sums it up
over them; the rest of the batch is the same for all. Garbage is counted from the first measured
batch to the end of the last: time in the collectors, and bytes allocated on the heap by all
threads of the process, the driver's too, which are the same for all.

What is counted: every file that appears below the checkpoint's state directory from the first
measured batch until background work has come to rest after the last one: handles, deltas and merges
here, changelogs and snapshots (zip and SST files) there; no checksum sidecars on either side. "Log
only" leaves out merges and snapshots. What a backend writes to the executor's local disk is not
counted for any.

Maintenance: Spark takes a snapshot of a store after ten batches (minDeltasForSnapshot) and uploads
it when maintenance next runs, every 60 s by default. With triggers of six seconds or more, that is
one snapshot per ten batches. Here ten batches pass in a few seconds, and with 60 s a run would end
before the first upload; so the interval is shortened in proportion, to 2 s for all contestants, and
again it is the ten batches that decide. A stream with shorter triggers uploads less often: it lies
between "all files" and "log only". sparkckpt merges by the number of deltas, whatever the interval;
fifty batches hold five of Spark's snapshots and about three of these merges.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
from rich.console import Console

from benchmarks import output
from benchmarks.children import (
    ResultsDifferError,
    command_line,
    parse_counts,
    parse_workloads,
    rotated,
    run_child,
)
from benchmarks.contestants import CONTESTANTS, REFERENCE
from benchmarks.machine import Machine
from benchmarks.report import Report
from benchmarks.results import Job, Measured, Restart, Run
from benchmarks.workload import Workload, generate

CHILD = "benchmarks.run"


@dataclass(frozen=True)
class Settings:
    """What is the same for every run of a call."""

    workloads: list[Workload]
    contestants: list[str]
    repeat: int
    memory: str
    maintenance_seconds: float
    restart: bool


class Benchmark:
    """Runs every contestant on every workload, in child processes below one work directory."""

    def __init__(self, settings: Settings, directory: Path, console: Console) -> None:
        self._settings = settings
        self._directory = directory
        self._console = console

    def run(self) -> Iterator[list[Run]]:
        """All runs so far, whenever a workload is done in a repeat."""
        sources = {
            workload: self._directory / f"input-{number}"
            for number, workload in enumerate(self._settings.workloads)
        }
        for workload, source in sources.items():
            generate(workload, source)
        runs: list[Run] = []
        for repeat in range(self._settings.repeat):
            for workload, source in sources.items():
                of_workload = [
                    self._run_contestant(name, workload, source, repeat)
                    for name in rotated(self._settings.contestants, repeat)
                ]
                _require_equal_results(of_workload)
                runs += of_workload
                yield runs

    def _run_contestant(self, name: str, workload: Workload, source: Path, repeat: int) -> Run:
        begin = time.monotonic()
        directory = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self._directory))
        job = Job(
            name,
            workload.keys,
            workload.changes,
            str(source),
            str(directory),
            self._settings.memory,
            self._settings.maintenance_seconds,
        )
        measured = Measured.from_json(run_child(CHILD, "measure", job))
        restart = Restart(**run_child(CHILD, "restart", job)) if self._settings.restart else None
        shutil.rmtree(directory)
        self._console.print(
            f"{workload.label}, repeat {repeat + 1} of {self._settings.repeat}: "
            f"{CONTESTANTS[name].title} done in {time.monotonic() - begin:.0f} s",
            highlight=False,
        )
        return Run(name, workload.label, workload.keys, workload.changes, repeat, measured, restart)


def _require_equal_results(runs: Sequence[Run]) -> None:
    checksums = {run.contestant: run.checksums for run in runs}
    if len(set(checksums.values())) > 1:
        raise ResultsDifferError(
            f"After {runs[0].workload} the contestants put out different rows: {checksums}. One of "
            "the state stores has lost or changed state; its figures would mean nothing."
        )


@click.command(context_settings={"show_default": True})
@click.option("--keys", callback=parse_counts, default="100k,1m", help="Keys in the state.")
@click.option("--changes", callback=parse_counts, default="10k,100k", help="Keys a batch changes.")
@click.option(
    "--workloads",
    "pairs",
    callback=parse_workloads,
    help="Keys/changes pairs such as 1m/100k,5m/10k, instead of each of --keys with each of "
    "--changes.",
)
@click.option("--batches", type=click.IntRange(1), default=50, help="Measured batches of a run.")
@click.option("--warmup", type=click.IntRange(0), default=10, help="Batches before these.")
@click.option("--repeat", type=click.IntRange(1), default=1, help="Runs of each contestant.")
@click.option("--quick", is_flag=True, help="100k keys, 10k changes, 30 batches, once.")
@click.option(
    "--contestants",
    default=",".join(name for name, c in CONTESTANTS.items() if not c.on_request),
    help=f"Which of {', '.join(CONTESTANTS)} to run; {REFERENCE} always does.",
)
@click.option("--sparse", is_flag=True, help="Keys are random 64-bit numbers, not 0, 1, 2, ...")
@click.option("--memory", default="4g", help="Heap of each run's JVM.")
@click.option("--maintenance", type=float, default=2.0, help="Maintenance interval in seconds.")
@click.option("--restart/--no-restart", default=True, help="Time a restart after each run.")
@click.option("--profile", is_flag=True, help="Show the phases of sparkckpt's commits.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write all to a file.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Where checkpoints are written, by default the system's temporary directory.",
)
def main(
    keys: list[int],
    changes: list[int],
    pairs: list[tuple[int, int]],
    batches: int,
    warmup: int,
    repeat: int,
    quick: bool,
    contestants: str,
    sparse: bool,
    memory: str,
    maintenance: float,
    restart: bool,
    profile: bool,
    json_path: Path | None,
    directory: Path | None,
) -> None:
    """Compare sparkckpt with Spark's RocksDB and HDFS-backed state stores; figures are ratios."""
    if quick:
        keys, changes, pairs, batches, repeat = [100_000], [10_000], [], 30, 1
    names = [name.strip() for name in contestants.split(",")]
    if unknown := set(names) - set(CONTESTANTS):
        raise click.BadParameter(f"{unknown} not among {list(CONTESTANTS)}")
    sizes = pairs or [(count, changed) for count in keys for changed in changes]
    workloads = [
        Workload(count, changed, batches, warmup, sparse)
        for count, changed in dict.fromkeys(sizes)
        if changed <= count
    ]
    if not workloads:
        raise click.BadParameter("no --changes is as small as one of --keys")
    settings = Settings(
        workloads,
        [name for name in CONTESTANTS if name in names or name == REFERENCE],
        repeat,
        memory,
        maintenance,
        restart,
    )
    console = output.console()
    command = command_line("benchmarks.backend", sys.argv[1:])
    machine = Machine.here()
    output.show_start(console, command, machine)
    described = {
        "batches": batches,
        "warmup": warmup,
        "repeat": repeat,
        "sparse": sparse,
        "memory": memory,
        "maintenance_seconds": maintenance,
    }
    with tempfile.TemporaryDirectory(
        prefix="sparkckpt-bench-", dir=directory, ignore_cleanup_errors=True
    ) as work:
        for runs in Benchmark(settings, Path(work), console).run():
            report = Report(described, runs, profile)
            # Now and not at the end: what hours have measured survives what fails after them.
            if json_path is not None:
                machine = replace(machine, java=runs[0].measured.java_version)
                output.write(json_path, command, machine, report.findings(), report.data())
    output.show(console, report.findings())


if __name__ == "__main__":
    main()
