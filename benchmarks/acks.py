"""Measures what an acknowledgement costs the task that sends it, in tasks of a real Spark.

    python -m benchmarks.acks --tasks 8 --acks 500 --bytes 2000

Each task sends so many acknowledgements with a handle of so many bytes. The first of a task is
shown apart: it looks up the driver's endpoint. The run is one that the coordinator does not know,
so what is measured is the task's own share. It needs the test harness: `make jar` builds it.
"""

import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from benchmarks import output
from benchmarks.children import command_line
from benchmarks.contestants import CONTESTANTS, start_session
from benchmarks.findings import Findings, Grid
from benchmarks.machine import Machine
from benchmarks.run import stop_jvm

HARNESSES = Path(__file__).resolve().parent.parent / "build" / "test-jars"


@click.command(help=__doc__.splitlines()[0])
@click.option("--tasks", type=click.IntRange(1), default=8, show_default=True)
@click.option("--acks", type=click.IntRange(2), default=500, show_default=True)
@click.option("--bytes", "size", type=click.IntRange(1), default=2000, show_default=True)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write all to a file.")
def main(tasks: int, acks: int, size: int, json_path: Path | None) -> None:
    console, machine = output.console(), Machine.here()
    command = command_line("benchmarks.acks", sys.argv[1:])
    output.show_start(console, command, machine)
    with tempfile.TemporaryDirectory(prefix="sparkckpt-bench-") as directory:
        session = start_session(CONTESTANTS["sparkckpt"], "1g", "60s", directory)
        harness = next(HARNESSES.glob(f"*-{session.version.rpartition('.')[0]}-tests.jar"), None)
        if harness is None:
            sys.exit(f"There is no test harness in {HARNESSES}: run make jar")
        session.sparkContext._jsc.addJar(str(harness))
        try:
            sends = sent(session, str(harness), tasks, acks, size)
        finally:
            stop_jvm(session)
    findings = findings_of(sends)
    output.show(console, findings)
    if json_path is not None:
        output.write(json_path, command, machine, findings, {"microseconds": sends})


def sent(session: Any, harness: str, tasks: int, acks: int, size: int) -> list[list[int]]:
    """Microseconds of each send, by task. The driver learns of the harness only now."""
    jvm = session._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    loader.addURL(jvm.java.io.File(harness).toURI().toURL())
    object_class = loader.loadClass("org.apache.spark.sql.sparkckpt.CoordinatorHarness$")
    instance = object_class.getField("MODULE$").get(None)
    return [
        list(task) for task in instance.sendMicros(session.sparkContext._jsc, tasks, acks, size)
    ]


def findings_of(sends: Sequence[Sequence[int]]) -> Findings:
    rows = (
        _row("first of a task", [task[0] for task in sends]),
        _row("all others", [micros for task in sends for micros in task[1:]]),
    )
    columns = ("sends", "number", "median", "99 %", "longest")
    return Findings((Grid("what an acknowledgement takes of its task", columns, rows),))


def _row(label: str, micros: Sequence[int]) -> tuple[str, ...]:
    ordered = sorted(micros)
    times = (statistics.median(ordered), ordered[int(0.99 * (len(ordered) - 1))], ordered[-1])
    return (label, str(len(ordered)), *(f"{time:.0f} us" for time in times))


if __name__ == "__main__":
    main()
