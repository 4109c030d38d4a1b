"""Compares stateful jobs on sparkckpt with the same jobs on Flink, written in Python for both.

    python -m benchmarks.flink --setup      # PyFlink from PyPI into an environment of its own
    python -m benchmarks.flink --keys 100k,1m --seconds 30 --repeat 3

The job is `totals` of the benchmark of processors: sum and count per key, of keys drawn at random.
An aggregation of the engine (SQL there, groupBy().agg() here) is compared with its like, and so is
a function in Python: a KeyedProcessFunction in thread mode, where Python runs within the JVM, with
an unchanged StatefulProcessor, accelerated. Two partitions and the same heap for all; state in
RocksDB for both, and for Flink also on the heap.

What differs in kind cannot be made equal, and the figures say no more than that: Flink handles one
record at a time and takes a checkpoint every second, Spark batches of two rows per key, each of
which ends with one. Flink's source generates rows within the JVM, Spark's reads Parquet files.
What a batch costs by itself weighs on Spark's rate where keys are few and batches therefore small.

Without that environment there is nothing to compare with: the benchmark says so and ends well.
"""

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import click
from rich.console import Console

from benchmarks import output, processors
from benchmarks.children import LOG_TAIL_LINES, ROOT, command_line, parse_counts, rotated
from benchmarks.findings import Findings, Grid
from benchmarks.machine import Machine
from benchmarks.ratios import Ratio
from benchmarks.workload import count_label

FLINK_VERSION = "2.3.0"
ENVIRONMENT = ROOT / "build" / "flink"
JOB = ROOT / "benchmarks" / "flink_job.py"
MEMORY = "4g"
PARALLELISM = 2
BATCHES = 5
TIMEOUT_SECONDS = 2400


@dataclass(frozen=True)
class FlinkSubject:
    """A job on Flink; `rival` is the subject of the benchmark of processors that is its like."""

    title: str
    api: str
    state_backend: str
    rival: str


FLINK_SUBJECTS: dict[str, FlinkSubject] = {
    "flink-sql": FlinkSubject("Flink SQL, RocksDB", "sql", "rocksdb", "aggregate"),
    "flink-sql-heap": FlinkSubject("Flink SQL, heap", "sql", "hashmap", "aggregate"),
    "flink-python": FlinkSubject("PyFlink thread mode, RocksDB", "python", "rocksdb", "tws"),
    "flink-python-heap": FlinkSubject("PyFlink thread mode, heap", "python", "hashmap", "tws"),
}
OWN_SUBJECTS = ("aggregate", "tws")
SUBJECTS = (*OWN_SUBJECTS, *FLINK_SUBJECTS)


class FlinkFailedError(click.ClickException):
    """A job on Flink ended without a result."""


@dataclass(frozen=True)
class Rate:
    """One run of one subject; checkpoints only where they are apart from the rows, on Flink."""

    subject: str
    keys: int
    repeat: int
    rows_per_second: float
    checkpoint_ms: float | None = None
    checkpoint_bytes: float | None = None


def python_of(environment: Path) -> Path:
    return environment / "bin" / "python"


def set_up(environment: Path) -> None:
    """PyFlink in an environment of its own: its dependencies are not those of Spark."""
    venv.create(environment, with_pip=True, clear=True)
    python = str(python_of(environment))
    install = [python, "-m", "pip", "install", f"apache-flink=={FLINK_VERSION}"]
    if subprocess.run(install, check=False).returncode != 0:
        raise FlinkFailedError(
            f"pip could not install apache-flink {FLINK_VERSION} with Python "
            f"{sysconfig.get_python_version()}. Run this with a Python that it has wheels for."
        )


def why_not(environment: Path) -> str | None:
    """Why no job can run on Flink here, if so."""
    python = python_of(environment)
    if not python.is_file():
        return (
            f"there is no PyFlink in {environment}: `make flink`, or `python -m benchmarks.flink "
            "--setup`, installs it from PyPI (some 850 MB)"
        )
    probe = subprocess.run([python, "-c", "import pyflink, pemja"], capture_output=True, text=True)
    if probe.returncode != 0:
        return f"{python} cannot import PyFlink and pemja: {probe.stderr.strip()[-200:]}"
    return None


def run_flink(name: str, keys: int, repeat: int, seconds: float, environment: Path) -> Rate:
    subject = FLINK_SUBJECTS[name]
    with tempfile.TemporaryDirectory(prefix="sparkckpt-bench-") as directory:
        job, result, log = (Path(directory, n) for n in ("job.json", "result.json", "job.log"))
        described = {
            "api": subject.api,
            "state_backend": subject.state_backend,
            "keys": keys,
            "seconds": seconds,
            "parallelism": PARALLELISM,
            "directory": directory,
        }
        job.write_text(json.dumps(described))
        with log.open("w") as out:
            process = subprocess.run(
                [python_of(environment), JOB, job, result],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=_environment_of(environment),
                timeout=TIMEOUT_SECONDS,
                check=False,
            )
        if process.returncode != 0 or not result.is_file():
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])
            raise FlinkFailedError(f"{subject.title} with {keys} keys failed:\n{tail}")
        found = json.loads(result.read_text())
    return Rate(
        name,
        keys,
        repeat,
        found["rows_per_second"],
        median(found["checkpoint_ms"]),
        median(found["checkpoint_bytes"]),
    )


def _environment_of(environment: Path) -> dict[str, str]:
    """The interpreter inside of Flink's JVM is not told of its environment: the path tells it."""
    packages = next(environment.glob("lib/python*/site-packages"))
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYSPARK", "SPARK"))}
    return {**kept, "PYTHONPATH": str(packages), "JVM_ARGS": f"-Xmx{MEMORY}"}


def run_own(name: str, keys: int, repeat: int, seconds: float, work: Path) -> Rate:
    source = work / f"input-{keys}"
    if not source.exists():
        processors.generate(keys, BATCHES, source)
    result = processors.run("totals", name, keys, source, work, seconds)
    return Rate(name, keys, repeat, result.rows_per_second)


def findings_of(rates: Sequence[Rate]) -> Findings:
    sizes = sorted({rate.keys for rate in rates})
    return Findings(tuple(_grid(keys, [r for r in rates if r.keys == keys]) for keys in sizes))


def _grid(keys: int, rates: Sequence[Rate]) -> Grid:
    rows = []
    for name in [name for name in SUBJECTS if any(rate.subject == name for rate in rates)]:
        own = [rate for rate in rates if rate.subject == name]
        subject = FLINK_SUBJECTS.get(name)
        speed = f"{median(rate.rows_per_second for rate in own):,.0f}"
        if subject is None:
            rows.append((processors.SUBJECTS[name].title, speed, "", "", "", ""))
            continue
        rows.append(
            (
                subject.title,
                speed,
                processors.SUBJECTS[subject.rival].title,
                _ratio(rates, name, subject.rival),
                f"{median(rate.checkpoint_ms or 0 for rate in own):,.0f} ms",
                f"{median(rate.checkpoint_bytes or 0 for rate in own):,.0f} B",
            )
        )
    return Grid(
        f"{count_label(keys)} keys, {PARALLELISM} partitions",
        ("job", "rows/s", "against", "ratio [lowest-highest]", "checkpoint", "its bytes"),
        tuple(rows),
    )


def _ratio(rates: Sequence[Rate], name: str, rival: str) -> str:
    by_repeat = {(rate.subject, rate.repeat): rate.rows_per_second for rate in rates}
    ratios = [
        by_repeat[name, repeat] / by_repeat[rival, repeat]
        for subject, repeat in by_repeat
        if subject == name and (rival, repeat) in by_repeat
    ]
    return str(Ratio.of(ratios) or "-")


def _measure(
    keys: Sequence[int],
    names: Sequence[str],
    repeat: int,
    seconds: float,
    environment: Path,
    console: Console,
) -> list[Rate]:
    rates = []
    with tempfile.TemporaryDirectory(
        prefix="sparkckpt-bench-", ignore_cleanup_errors=True
    ) as directory:
        for count in keys:
            for number in range(repeat):
                for name in rotated(names, number):
                    if name in FLINK_SUBJECTS:
                        rate = run_flink(name, count, number, seconds, environment)
                    else:
                        rate = run_own(name, count, number, seconds, Path(directory))
                    rates.append(rate)
                    console.print(
                        f"{count_label(count)} keys, repeat {number + 1}: {name} "
                        f"{rate.rows_per_second:,.0f} rows/s",
                        highlight=False,
                    )
    return rates


@click.command(context_settings={"show_default": True})
@click.option("--keys", callback=parse_counts, default="100k", help="Keys in the state.")
@click.option("--seconds", type=float, default=20.0, help="Seconds of a measurement.")
@click.option("--repeat", type=click.IntRange(1), default=1, help="Runs of each subject.")
@click.option("--subjects", default=",".join(SUBJECTS), help="Which jobs to run.")
@click.option(
    "--environment",
    type=click.Path(path_type=Path),
    default=ENVIRONMENT,
    help="The virtual environment that has PyFlink.",
)
@click.option("--setup", is_flag=True, help="Create that environment, and measure nothing.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write all to a file.")
def main(
    keys: list[int],
    seconds: float,
    repeat: int,
    subjects: str,
    environment: Path,
    setup: bool,
    json_path: Path | None,
) -> None:
    """Compare the same stateful jobs on sparkckpt and on PyFlink; figures are rows a second."""
    names = [name.strip() for name in subjects.split(",")]
    if unknown := set(names) - set(SUBJECTS):
        raise click.BadParameter(f"{unknown} not among {list(SUBJECTS)}")
    if setup:
        set_up(environment)
        return
    data: dict[str, Any] = {}
    console, machine = output.console(), Machine.here()
    command = command_line("benchmarks.flink", sys.argv[1:])
    output.show_start(console, command, machine)
    findings = Findings()
    if reason := why_not(environment):
        console.print(f"Skipped: {reason}", highlight=False, markup=False)
        data["skipped"] = reason
    else:
        rates = _measure(keys, names, repeat, seconds, environment.resolve(), console)
        findings = findings_of(rates)
        output.show(console, findings)
        data["runs"] = [asdict(rate) for rate in rates]
    if json_path is not None:
        output.write(json_path, command, machine, findings, data)


if __name__ == "__main__":
    main()
