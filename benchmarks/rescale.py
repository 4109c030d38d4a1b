"""Compares rescaling with Spark's own repartitioning of a checkpoint, on the same state.

    python -m benchmarks.rescale --keys 100k,1m,5m --to 6

A query counts and sums per key in four partitions, is stopped, rescaled, and started again with
one batch of changes waiting. Measured are the rescaling and the time from the restart to the end of
that batch. sparkckpt's rescaling is timed as the whole command, `sparkckpt rescale`, with the start
of its interpreter. Spark's (`_streamingCheckpointManager.repartition`) is a job of a session, and
the start of that session is not counted; both sides have rescaled and continued a small
checkpoint before. A checksum of the batch's output must be the same for both.

Then the command alone on a synthetic checkpoint of many partitions, stores and files, on the local
disk and on storage in which every call takes a while: what it costs must depend on files, not rows.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import click

from benchmarks import output
from benchmarks.children import (
    ResultsDifferError,
    command_line,
    environment,
    parse_counts,
    rotated,
    run_child,
)
from benchmarks.contestants import CONTESTANTS, PARTITIONS, REFERENCE
from benchmarks.coordinator import Size, SlowMemory, SyntheticQuery
from benchmarks.findings import Chart, Curve, Findings, Grid
from benchmarks.machine import Machine
from benchmarks.ratios import Ratio
from benchmarks.rescale_run import First
from benchmarks.results import Job
from benchmarks.workload import Workload, count_label, generate
from sparkckpt.restoration.inplace import rescale_in
from sparkckpt.storage import Storage

CHILD = "benchmarks.rescale_run"
SUBJECTS = ("sparkckpt", "memory")
WARMUP_BATCHES = 5
MEMORY = "4g"
MAINTENANCE_SECONDS = 2.0


@dataclass(frozen=True)
class Run:
    """One rescaling, and the batch after it; seconds."""

    contestant: str
    keys: int
    repeat: int
    rescale_seconds: float
    batch_seconds: float
    checksum: int

    @property
    def seconds(self) -> float:
        return self.rescale_seconds + self.batch_seconds


@dataclass(frozen=True)
class Synthetic:
    """The command alone, in seconds, on so many file references."""

    storage: str
    partitions: int
    stores: int
    references: int
    seconds: float
    calls: int | None


def run(
    keys: int, changes: int, contestant: str, repeat: int, target: int, source: Path, work: Path
) -> Run:
    directory = Path(tempfile.mkdtemp(prefix=f"{contestant}-", dir=work))
    job = Job(
        contestant,
        keys,
        changes,
        str(source),
        str(directory),
        MEMORY,
        MAINTENANCE_SECONDS,
        target,
    )
    run_child(CHILD, "fill", job)
    seconds = 0.0
    if CONTESTANTS[contestant].is_sparkckpt:
        seconds = rescale_command(directory / "checkpoint", target)
    first = First(**run_child(CHILD, "first", job))
    shutil.rmtree(directory)
    rescale_seconds = seconds + first.rescale_seconds
    return Run(contestant, keys, repeat, rescale_seconds, first.batch_seconds, first.checksum)


def rescale_command(checkpoint: Path, target: int) -> float:
    command = [sys.executable, "-m", "sparkckpt", "rescale", str(checkpoint)]
    begin = time.perf_counter()
    subprocess.run(
        [*command, "--parallelism", str(target)],
        check=True,
        env=environment(),
        stdout=subprocess.DEVNULL,
    )
    return time.perf_counter() - begin


def synthetic(size: Size, target: int, slow_seconds: float) -> Iterator[Synthetic]:
    with tempfile.TemporaryDirectory(prefix="sparkckpt-bench-") as directory:
        yield _synthetic("local disk", Storage.at(directory), None, size, target)
    memory = SlowMemory(0)
    label = f"{slow_seconds * 1000:.0f} ms a call"
    yield _synthetic(label, Storage(memory, "/checkpoint"), (memory, slow_seconds), size, target)


def _synthetic(
    label: str,
    storage: Storage,
    slow: tuple[SlowMemory, float] | None,
    size: Size,
    target: int,
) -> Synthetic:
    query = SyntheticQuery(storage, size)
    for _ in range(2):
        batch_id, _ = query.next_batch()
        query.commit(batch_id)
    query.write_handles()
    if slow is not None:
        slow[0].seconds, slow[0].calls = slow[1], 0
    begin = time.perf_counter()
    rescale_in(storage, target)
    seconds = time.perf_counter() - begin
    calls = slow[0].calls if slow is not None else None
    return Synthetic(label, size.partitions, size.stores, size.references, seconds, calls)


def findings_of(runs: Sequence[Run], alone: Sequence[Synthetic], target: int) -> Findings:
    grids = (_synthetic_grid(alone), _grid(runs, target)) if runs else (_synthetic_grid(alone),)
    several = len({run.keys for run in runs}) > 1
    return Findings(grids, charts=(_chart(runs, target),) if several else ())


def _grid(runs: Sequence[Run], target: int) -> Grid:
    rows = []
    for keys, name in dict.fromkeys((run.keys, run.contestant) for run in runs):
        own = {r.repeat: r for r in runs if (r.keys, r.contestant) == (keys, name)}
        others = {r.repeat: r for r in runs if (r.keys, r.contestant) == (keys, REFERENCE)}
        ratio = Ratio.of([own[n].seconds / others[n].seconds for n in own if n in others])
        rows.append(
            (
                f"{count_label(keys)}, {CONTESTANTS[name].title}",
                f"{median(run.rescale_seconds for run in own.values()):.2f}",
                f"{median(run.batch_seconds for run in own.values()):.2f}",
                f"{median(run.seconds for run in own.values()):.2f}",
                str(ratio or "-"),
            )
        )
    return Grid(
        f"{PARTITIONS} -> {target} partitions: seconds, and ratio to "
        f"{CONTESTANTS[REFERENCE].title} [lowest-highest]",
        ("keys, backend", "rescale", "first batch", "both", "ratio"),
        tuple(rows),
    )


def _synthetic_grid(rows: Sequence[Synthetic]) -> Grid:
    return Grid(
        "the command alone, on a synthetic checkpoint",
        ("storage", "partitions", "stores", "file references", "seconds", "calls"),
        tuple(
            (
                row.storage,
                str(row.partitions),
                str(row.stores),
                f"{row.references:,}",
                f"{row.seconds:.2f}",
                "-" if row.calls is None else str(row.calls),
            )
            for row in rows
        ),
    )


def _chart(runs: Sequence[Run], target: int) -> Chart:
    names = dict.fromkeys(run.contestant for run in runs)
    curves = (
        Curve.through(
            CONTESTANTS[name].title,
            ((run.keys, run.seconds) for run in runs if run.contestant == name),
        )
        for name in names
    )
    return Chart(
        "rescale",
        f"rescaling {PARTITIONS} -> {target} partitions, and the next batch",
        "keys in the state",
        "s",
        tuple(curves),
    )


@click.command(context_settings={"show_default": True})
@click.option("--keys", callback=parse_counts, default="100k,1m,5m", help="Keys in the state.")
@click.option("--changes", type=click.IntRange(1), default=10_000, help="Keys a batch changes.")
@click.option("--to", "target", type=click.IntRange(1), default=6, help="The new parallelism.")
@click.option("--repeat", type=click.IntRange(1), default=1, help="Runs of each contestant.")
@click.option(
    "--contestants",
    default=",".join(SUBJECTS),
    help=f"Which of {', '.join(SUBJECTS)} to run; {REFERENCE} always does.",
)
@click.option("--partitions", type=click.IntRange(1), default=200, help="Of the synthetic one.")
@click.option("--stores", type=click.IntRange(1), default=4, help="Of the synthetic one.")
@click.option("--files", type=click.IntRange(1), default=16, help="Of each of its stores.")
@click.option("--latency", type=float, default=0.03, help="Seconds a call to slow storage takes.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write all to a file.")
def main(
    keys: list[int],
    changes: int,
    target: int,
    repeat: int,
    contestants: str,
    partitions: int,
    stores: int,
    files: int,
    latency: float,
    json_path: Path | None,
) -> None:
    """Compare `sparkckpt rescale` with Spark's own repartitioning of a checkpoint."""
    named = [name.strip() for name in contestants.split(",")]
    if unknown := set(named) - {*SUBJECTS, REFERENCE}:
        raise click.BadParameter(f"{unknown} not among {[*SUBJECTS, REFERENCE]}")
    names = [name for name in SUBJECTS if name in named] + [REFERENCE]
    console, machine = output.console(), Machine.here()
    command = command_line("benchmarks.rescale", sys.argv[1:])
    output.show_start(console, command, machine)
    alone = list(synthetic(Size(partitions, stores, files), target * 10, latency))
    runs: list[Run] = []
    with tempfile.TemporaryDirectory(
        prefix="sparkckpt-bench-", ignore_cleanup_errors=True
    ) as directory:
        work = Path(directory)
        for count in keys:
            source = work / f"input-{count}"
            generate(Workload(count, min(changes, count), 1, WARMUP_BATCHES), source)
            for number in range(repeat):
                of_repeat = [
                    run(count, min(changes, count), name, number, target, source, work)
                    for name in rotated(names, number)
                ]
                if len({each.checksum for each in of_repeat}) > 1:
                    raise ResultsDifferError(f"With {count} keys the rows put out differ")
                runs += of_repeat
                console.print(f"{count_label(count)} keys, repeat {number + 1} done")
            shutil.rmtree(source)
    findings = findings_of(runs, alone, target)
    output.show(console, findings)
    if json_path is not None:
        values = {"runs": list(map(asdict, runs)), "synthetic": list(map(asdict, alone))}
        output.write(json_path, command, machine, findings, values)


if __name__ == "__main__":
    main()
