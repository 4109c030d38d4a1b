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

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks.children import (
    ResultsDifferError,
    command_line,
    environment,
    parse_counts,
    run_child,
)
from benchmarks.contestants import CONTESTANTS, PARTITIONS, REFERENCE
from benchmarks.coordinator import Size, SlowMemory, SyntheticQuery
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


def run(keys: int, changes: int, contestant: str, target: int, source: Path, work: Path) -> Run:
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
    return Run(
        contestant, keys, seconds + first.rescale_seconds, first.batch_seconds, first.checksum
    )


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


def table_of(runs: Sequence[Run], target: int) -> Table:
    table = Table(title=f"{PARTITIONS} -> {target} partitions; seconds")
    for column in ("keys", "backend", "rescale", "first batch", "both", "Spark's is so many times"):
        table.add_column(column, justify="left" if column == "backend" else "right")
    for each in runs:
        (reference,) = (r for r in runs if r.keys == each.keys and r.contestant == REFERENCE)
        table.add_row(
            count_label(each.keys),
            CONTESTANTS[each.contestant].title,
            f"{each.rescale_seconds:.2f}",
            f"{each.batch_seconds:.2f}",
            f"{each.seconds:.2f}",
            f"{reference.seconds / each.seconds:.1f}",
        )
    return table


def synthetic_table(rows: Sequence[Synthetic]) -> Table:
    table = Table(title="the command alone, on a synthetic checkpoint")
    for column in ("storage", "partitions", "stores", "file references", "seconds", "calls"):
        table.add_column(column, justify="left" if column == "storage" else "right")
    for row in rows:
        table.add_row(
            row.storage,
            str(row.partitions),
            str(row.stores),
            f"{row.references:,}",
            f"{row.seconds:.2f}",
            "-" if row.calls is None else str(row.calls),
        )
    return table


@click.command(context_settings={"show_default": True})
@click.option("--keys", callback=parse_counts, default="100k,1m,5m", help="Keys in the state.")
@click.option("--changes", type=click.IntRange(1), default=10_000, help="Keys a batch changes.")
@click.option("--to", "target", type=click.IntRange(1), default=6, help="The new parallelism.")
@click.option("--partitions", type=click.IntRange(1), default=200, help="Of the synthetic one.")
@click.option("--stores", type=click.IntRange(1), default=4, help="Of the synthetic one.")
@click.option("--files", type=click.IntRange(1), default=16, help="Of each of its stores.")
@click.option("--latency", type=float, default=0.03, help="Seconds a call to slow storage takes.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write all to a file.")
def main(
    keys: list[int],
    changes: int,
    target: int,
    partitions: int,
    stores: int,
    files: int,
    latency: float,
    json_path: Path | None,
) -> None:
    """Compare `sparkckpt rescale` with Spark's own repartitioning of a checkpoint."""
    console = Console()
    console.print(f"Command: {command_line('benchmarks.rescale', sys.argv[1:])}", highlight=False)
    alone = list(synthetic(Size(partitions, stores, files), target * 10, latency))
    console.print(synthetic_table(alone))
    runs: list[Run] = []
    with tempfile.TemporaryDirectory(
        prefix="sparkckpt-bench-", ignore_cleanup_errors=True
    ) as directory:
        work = Path(directory)
        for count in keys:
            source = work / f"input-{count}"
            generate(Workload(count, min(changes, count), 1, WARMUP_BATCHES), source)
            of_size = [
                run(count, min(changes, count), contestant, target, source, work)
                for contestant in (*SUBJECTS, REFERENCE)
            ]
            if len({each.checksum for each in of_size}) > 1:
                raise ResultsDifferError(f"With {count} keys the backends put out different rows")
            runs += of_size
            console.print(table_of(of_size, target))
            shutil.rmtree(source)
    if json_path is not None:
        values = {"runs": runs, "synthetic": alone}
        json_path.write_text(json.dumps(values, default=asdict, indent=1) + "\n")


if __name__ == "__main__":
    main()
