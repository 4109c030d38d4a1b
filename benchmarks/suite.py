"""Which benchmarks there are, how the suite calls them, and what became of each.

A benchmark is a module of this package with a click command `main`. The suite runs it as a process
of its own with the arguments listed here, has it write `--json`, and reads its findings from there;
one that has no such option, or writes none, is quoted as the text it printed. A command that is not
listed is found all the same, and called with `--quick` if it has that. A module that this
checkout does not have is skipped with a reason, like one that cannot run here; one that fails does
not keep the others from running, and what it had written by then is kept. The suite measures
nothing itself.
"""

import importlib.util
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from benchmarks.children import ROOT, environment
from benchmarks.findings import Bar, Chart, Findings, bars_grid
from benchmarks.machine import Machine


class Effort(Enum):
    """How much is measured: minutes altogether, or hours."""

    QUICK = "quick"
    FULL = "full"


@dataclass(frozen=True)
class Benchmark:
    """A module of this package and its arguments; without any, those that it has by itself."""

    name: str
    title: str
    quick: str
    full: str = ""

    @property
    def module(self) -> str:
        return f"benchmarks.{self.name}"

    @property
    def exists(self) -> bool:
        return importlib.util.find_spec(self.module) is not None

    def arguments(self, effort: Effort) -> list[str]:
        return shlex.split(self.quick if effort is Effort.QUICK else self.full)


COMMAND = "@click.command("
BENCHMARKS: tuple[Benchmark, ...] = (
    Benchmark(
        "backend",
        "State backends",
        "--workloads 20k/5k,200k/5k --batches 10 --warmup 5 --maintenance 0.5 --memory 2g "
        "--no-restart --contestants memory,sparkckpt,rocksdb",
        "--workloads 100k/10k,1m/1k,1m/10k,1m/100k,5m/10k,5m/100k --batches 50 --warmup 30 "
        "--repeat 3 --memory 8g --contestants memory,sparkckpt,rocksdb,hdfs",
    ),
    Benchmark(
        "recovery",
        "Recovery from kills",
        "--keys 50k --changes 5000 --rounds 2 --memory 1g --contestants memory",
        "--keys 100k,1m --rounds 5 --repeat 3",
    ),
    Benchmark(
        "rescale",
        "Rescaling",
        "--keys 50k --contestants memory --partitions 50",
        "--keys 100k,1m,5m --repeat 3",
    ),
    Benchmark("savepoint", "Savepoints", "--quick"),
    Benchmark(
        "processors",
        "Stateful Python",
        "--keys 5k --batches 2 --warmup 0 --seconds 5 --jobs totals --subjects spark-pandas,pandas",
    ),
    Benchmark("lookup", "State as tables", "--keys 100k --lookups 50"),
    Benchmark("coordinator", "Coordinator", "--partitions 200 --batches 3"),
    Benchmark("acks", "Acknowledgements", "--tasks 4 --acks 200"),
    Benchmark(
        "flink",
        "PyFlink on the same job",
        "--keys 20k --seconds 5 --subjects tws,flink-python",
        "--keys 100k,1m --seconds 60 --repeat 3",
    ),
)


def benchmarks() -> tuple[Benchmark, ...]:
    """Those listed, then every other module of this package that is a command."""
    listed = {benchmark.name for benchmark in BENCHMARKS}
    found = sorted(
        path.stem
        for path in Path(__file__).parent.glob("*.py")
        if path.stem not in listed | {"__main__", "suite"} and COMMAND in path.read_text()
    )
    return (*BENCHMARKS, *(Benchmark(name, name.capitalize(), "--quick") for name in found))


class Outcome(Enum):
    DONE = "done"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True)
class Result:
    """What became of one benchmark."""

    benchmark: Benchmark
    outcome: Outcome
    command: str = ""
    seconds: float = 0.0
    reason: str = ""
    text: str = ""
    findings: Findings | None = None
    report: Any = field(default=None, repr=False)
    """The whole of what the benchmark has written."""

    @property
    def markdown(self) -> str:
        parts = [f"## {self.benchmark.title}"]
        if self.command:
            parts.append(f"`{self.command}`, {self.seconds:.0f} s")
        if self.outcome is not Outcome.DONE:
            parts.append(f"{self.outcome.value}: {self.reason}")
        if self.findings is not None:
            parts.append(self.findings.markdown)
        elif self.outcome is Outcome.DONE:
            parts.append(f"```\n{self.text.strip()}\n```")
        return "\n\n".join(filter(None, parts))

    def to_json(self) -> dict[str, Any]:
        return {
            "benchmark": self.benchmark.name,
            "outcome": self.outcome.value,
            "reason": self.reason,
            "command": self.command,
            "seconds": round(self.seconds, 1),
            "report": self.report if self.report is not None else self.text,
        }


def run(
    benchmark: Benchmark, effort: Effort, directory: Path, show: Callable[[str], None]
) -> Result:
    """Runs one benchmark, line by line shown while it runs."""
    if not benchmark.exists:
        return Result(
            benchmark, Outcome.SKIPPED, reason=f"this checkout has no module {benchmark.module}"
        )
    options = options_of(benchmark.module)
    arguments = accepted(benchmark.arguments(effort), options)
    command = shlex.join(["python", "-m", benchmark.module, *arguments])
    path = directory / f"{benchmark.name}.json"
    if "--json" in options:
        arguments += ["--json", str(path)]
    begin = time.monotonic()
    code, text = _stream([sys.executable, "-m", benchmark.module, *arguments], show)
    seconds = time.monotonic() - begin
    report = json.loads(path.read_text()) if path.is_file() else None
    found = _member(report, "findings")
    findings = Findings.from_json(found) if found else None
    outcome, reason = Outcome.DONE, ""
    if code != 0:
        outcome = Outcome.FAILED
        reason = f"it ended with exit status {code}; the last it said: {_last_lines(text)}"
    elif skipped := _member(report, "skipped"):
        outcome, reason = Outcome.SKIPPED, skipped
    return Result(benchmark, outcome, command, seconds, reason, text, findings, report)


def options_of(module: str) -> set[str]:
    """The options of a benchmark's command."""
    command = importlib.import_module(module).main
    return {name for parameter in command.params for name in parameter.opts}


def accepted(arguments: Sequence[str], options: set[str]) -> list[str]:
    """A bare --quick is a wish: a benchmark that has only one size need not have the option."""
    return [a for a in arguments if a != "--quick" or a in options]


def _stream(command: Sequence[str], show: Callable[[str], None]) -> tuple[int, str]:
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    lines = []
    try:
        for line in process.stdout:
            lines.append(line)
            show(line.rstrip("\n"))
        return process.wait(), "".join(lines)
    except BaseException:
        process.terminate()
        process.wait()
        raise


def _last_lines(text: str, count: int = 3) -> str:
    return " / ".join(line.strip() for line in text.strip().splitlines()[-count:])


def _member(report: Any, name: str) -> Any:
    return report.get(name) if isinstance(report, Mapping) else None


@dataclass(frozen=True)
class SuiteReport:
    """All results of one call."""

    command: str
    machine: Machine
    results: Sequence[Result]

    @property
    def bars(self) -> tuple[Bar, ...]:
        return tuple(bar for r in self.results if r.findings for bar in r.findings.bars)

    @property
    def charts(self) -> tuple[Chart, ...]:
        return tuple(chart for r in self.results if r.findings for chart in r.findings.charts)

    @property
    def failed(self) -> list[Result]:
        return [result for result in self.results if result.outcome is Outcome.FAILED]

    @property
    def seconds(self) -> float:
        return sum(result.seconds for result in self.results)

    def markdown(self, plots: Sequence[str] = ()) -> str:
        head = f"# Benchmarks\n\n`{self.command}`, {self.seconds:.0f} s on {self.machine}"
        parts = [head]
        if self.bars:
            parts.append(bars_grid(self.bars).markdown)
        parts += [result.markdown for result in self.results]
        if plots:
            images = "\n".join(f"![{Path(path).stem}]({path})" for path in plots)
            parts.append(f"## Plots\n\n{images}")
        return "\n\n".join(parts) + "\n"

    def to_json(self) -> dict[str, Any]:
        return {
            "command": self.command,
            "machine": vars(self.machine),
            "seconds": round(self.seconds, 1),
            "bars": Findings(bars=self.bars).to_json()["bars"],
            "benchmarks": [result.to_json() for result in self.results],
        }
