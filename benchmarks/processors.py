"""Compares stateful Python on sparkckpt with Spark's own operators and its JVM aggregation.

    python -m benchmarks.processors --keys 20k,200k

Two jobs, `totals` (sum and count per key) and `sessions` (sessions by event time, closed by
timers), are written in every API as a user would write them. A batch has two rows for each key, on
average. Every run is a process of its own. Spark's operators run on Spark's RocksDB store with
changelog, ours on our backend with its default engine; cores, partitions and memory are the same.
Figures are rows a second, by the time of the whole batch, and ratios to what Spark has for the
same. Batches that begin in the first `--warmup` seconds are not measured. Spark's operators are
slow: they are stopped after `--seconds`, with fewer batches measured.

All APIs of a job must put out the same rows in their second batch.
"""

import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import output
from benchmarks.children import ResultsDifferError, command_line, parse_counts, run_child
from benchmarks.contestants import REFERENCE
from benchmarks.findings import Findings, Grid
from benchmarks.machine import Machine
from benchmarks.processors_run import ProcessorJob, Speed
from benchmarks.workload import count_label

CHILD = "benchmarks.processors_run"
OURS = "memory"
"""The contestant with the default engine."""
MEMORY = "4g"
ROWS_PER_KEY = 2
SECONDS_PER_BATCH = 20
"""Of event time: longer than the gap of a session, so that every batch closes some."""
WARMUP_BATCHES_PER_SECOND = 4
"""No API is faster: there is input for the whole time."""


@dataclass(frozen=True)
class Subject:
    """An API on a backend; `rival` is what it is compared with."""

    title: str
    api: str
    backend: str
    accelerated: bool = False
    rival: str | None = None


SUBJECTS: dict[str, Subject] = {
    "aggregate": Subject("JVM aggregation, sparkckpt", "aggregate", OURS),
    "spark-aggregate": Subject("JVM aggregation, Spark RocksDB", "aggregate", REFERENCE),
    "spark-pandas": Subject("applyInPandasWithState, Spark", "pandas", REFERENCE),
    "pandas": Subject("applyInPandasWithState, accelerated", "pandas", OURS, True, "spark-pandas"),
    "spark-tws-pandas": Subject("transformWithStateInPandas, Spark", "tws-pandas", REFERENCE),
    "tws-pandas": Subject(
        "transformWithStateInPandas, accelerated",
        "tws-pandas",
        OURS,
        True,
        "spark-tws-pandas",
    ),
    "spark-tws": Subject("transformWithState, Spark", "tws", REFERENCE),
    "tws": Subject("transformWithState, accelerated", "tws", OURS, True, "spark-tws"),
    "rows": Subject("apply_rows", "rows", OURS, True, "spark-pandas"),
    "fold": Subject("fold (vectorized)", "fold", OURS, True, "aggregate"),
}
OF_JOB = {
    "totals": tuple(SUBJECTS),
    "sessions": ("spark-pandas", "pandas", "spark-tws", "tws"),
}


@dataclass(frozen=True)
class Result:
    job: str
    subject: str
    keys: int
    speed: Speed

    @property
    def rows_per_second(self) -> float:
        pairs = zip(self.speed.rows, self.speed.milliseconds, strict=True)
        return median(rows * 1000 / ms for rows, ms in pairs)


def generate(keys: int, batches: int, directory: Path) -> None:
    """One file a batch, in the order of their names and of event time."""
    directory.mkdir(parents=True)
    random = np.random.default_rng(keys)
    for batch in range(batches):
        rows = ROWS_PER_KEY * keys
        offsets = np.sort(random.integers(0, SECONDS_PER_BATCH * 1_000_000, rows))
        micros = 1_700_000_000_000_000 + batch * SECONDS_PER_BATCH * 1_000_000 + offsets
        pq.write_table(
            pa.table(
                {
                    "k": random.integers(0, keys, rows),
                    "v": random.integers(0, 1000, rows),
                    "ts": pa.array(micros, pa.timestamp("us", "UTC")),
                }
            ),
            directory / f"{batch:04d}.parquet",
        )
        # Spark reads files in the order of their age.
        time.sleep(0.01)


def run(told: ProcessorJob, job: str, work: Path) -> Result:
    directory = Path(tempfile.mkdtemp(prefix=f"{told.contestant}-", dir=work))
    speed = Speed(**run_child(CHILD, job, replace(told, directory=str(directory))))
    shutil.rmtree(directory)
    return Result(job, told.contestant, told.keys, speed)


def require_equal_results(results: Sequence[Result]) -> None:
    checksums = {result.subject: result.speed.checksum for result in results}
    if len(set(checksums.values())) > 1:
        raise ResultsDifferError(f"{results[0].job}: the APIs put out different rows: {checksums}")


def grid_of(results: Sequence[Result]) -> Grid:
    first = results[0]
    by_subject = {result.subject: result for result in results}
    rows = []
    for name, result in by_subject.items():
        rival = by_subject.get(SUBJECTS[name].rival or "")
        rows.append(
            (
                SUBJECTS[name].title,
                f"{result.rows_per_second:,.0f}",
                str(len(result.speed.rows)),
                SUBJECTS[rival.subject].title if rival else "",
                f"{result.rows_per_second / rival.rows_per_second:.1f}" if rival else "",
            )
        )
    return Grid(
        f"{first.job}, {count_label(first.keys)} keys",
        ("API", "rows/s", "batches", "against", "times as fast"),
        tuple(rows),
    )


@click.command(context_settings={"show_default": True})
@click.option("--keys", callback=parse_counts, default="20k,200k", help="Keys in the state.")
@click.option("--jobs", default=",".join(OF_JOB), help="Which jobs to run.")
@click.option("--subjects", default=",".join(SUBJECTS), help="Which APIs to run.")
@click.option("--batches", type=click.IntRange(1), default=8, help="Measured batches.")
@click.option("--warmup", type=float, default=20.0, help="Seconds before these.")
@click.option("--seconds", type=float, default=60.0, help="After which a slow run is stopped.")
@click.option("--quick", is_flag=True, help="20k keys, 4 batches, 5 seconds before, 20 in all.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write all to a file.")
def main(
    keys: list[int],
    jobs: str,
    subjects: str,
    batches: int,
    warmup: float,
    seconds: float,
    quick: bool,
    json_path: Path | None,
) -> None:
    """Compare stateful Python on sparkckpt with Spark's own; figures are rows a second."""
    if quick:
        keys, batches, warmup, seconds = [20_000], 4, 5.0, 20.0
    chosen = [name.strip() for name in subjects.split(",")]
    if unknown := (set(chosen) - set(SUBJECTS)) | (set(jobs.split(",")) - set(OF_JOB)):
        raise click.BadParameter(f"{unknown} not among {list(SUBJECTS)} and {list(OF_JOB)}")
    console, machine = output.console(), Machine.here()
    command = command_line("benchmarks.processors", sys.argv[1:])
    output.show_start(console, command, machine)
    grids: list[Grid] = []
    results: list[Result] = []
    with tempfile.TemporaryDirectory(
        prefix="sparkckpt-bench-", ignore_cleanup_errors=True
    ) as directory:
        for count in keys:
            source = Path(directory) / f"input-{count}"
            generate(count, 1 + batches + round(WARMUP_BATCHES_PER_SECOND * warmup), source)
            for job in jobs.split(","):
                names = [name for name in OF_JOB[job] if name in chosen]
                of_job = [
                    run(
                        ProcessorJob(n, count, str(source), "", MEMORY, batches, warmup, seconds),
                        job,
                        Path(directory),
                    )
                    for n in names
                ]
                require_equal_results(of_job)
                grids.append(grid_of(of_job))
                console.print(output.table_of(grids[-1]))
                results += of_job
    if json_path is not None:
        values = {"runs": [asdict(result) for result in results]}
        output.write(json_path, command, machine, Findings(tuple(grids)), values)


if __name__ == "__main__":
    main()
