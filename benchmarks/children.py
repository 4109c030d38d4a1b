"""Child processes of benchmarks: every run is one, so that its JVM ends with it."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import click

from benchmarks.results import write_json

ROOT = Path(__file__).resolve().parent.parent
CHILD_TIMEOUT_SECONDS = 1800
LOG_TAIL_LINES = 40
PLACES = ("--json", "--markdown", "--plots", "--directory")
"""Options that say where something goes, and nothing of what is measured."""


class Job(Protocol):
    """What a child process is told: a dataclass that says at least whose run it is, and where."""

    @property
    def contestant(self) -> str: ...
    @property
    def keys(self) -> int: ...
    @property
    def directory(self) -> str: ...


class ChildFailedError(click.ClickException):
    """A child process ended without a result."""

    @staticmethod
    def of(job: Job, mode: str, log: Path) -> "ChildFailedError":
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])
        return ChildFailedError(
            f"The {mode} run of {job.contestant} with {job.keys} keys failed. Its log ends with:\n"
            f"{tail}\nFix the cause, or leave it out with --contestants."
        )


class ResultsDifferError(click.ClickException):
    """Two contestants put out different rows for the same input."""


def run_child(module: str, mode: str, job: Job) -> dict[str, Any]:
    """What one child process reports; its JVM ends with it, so runs never overlap."""
    directory = Path(job.directory)
    job_path, result = directory / "job.json", directory / f"{mode}.json"
    log = directory / f"{mode}.log"
    write_json(job, job_path)
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", module, mode, str(job_path), str(result)],
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment(),
        )
        try:
            code = process.wait(CHILD_TIMEOUT_SECONDS)
        except BaseException:
            process.terminate()
            process.wait()
            raise
    if code != 0 or not result.is_file():
        raise ChildFailedError.of(job, mode, log)
    report: dict[str, Any] = json.loads(result.read_text())
    return report


def environment() -> dict[str, str]:
    search_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": search_path, "PYSPARK_PYTHON": sys.executable}


def parse_counts(_context: click.Context, _option: click.Parameter, text: str) -> list[int]:
    """Counts such as `100k,1m`."""
    units = {"k": 1_000, "m": 1_000_000}
    try:
        return [
            int(float(item[:-1]) * units[item[-1]]) if item[-1] in units else int(item)
            for item in (part.strip().lower() for part in text.split(","))
        ]
    except (ValueError, IndexError):
        raise click.BadParameter(f"{text!r} is not a list of counts such as 100k,1m") from None


def parse_workloads(
    context: click.Context, option: click.Parameter, text: str | None
) -> list[tuple[int, int]]:
    """Pairs of keys and changes such as `1m/100k`."""
    pairs = []
    for item in text.split(",") if text else ():
        counts = parse_counts(context, option, item.replace("/", ","))
        if len(counts) != 2 or counts[1] > counts[0]:
            raise click.BadParameter(
                f"{item!r} is not keys/changes, with no more changes than keys"
            )
        pairs.append((counts[0], counts[1]))
    return pairs


def rotated(names: Sequence[str], by: int) -> list[str]:
    """The order of contestants in a repeat, so that none is always the first."""
    shift = by % len(names)
    return [*names[shift:], *names[:shift]]


def command_line(module: str, arguments: Sequence[str]) -> str:
    """The command to repeat the figures, without the options that only name places."""
    kept: list[str] = []
    skip = False
    for argument in arguments:
        if not skip and argument.partition("=")[0] not in PLACES:
            kept.append(argument)
        skip = argument in PLACES
    return shlex.join(["python", "-m", module, *kept])
