"""The suite: what it calls, what it makes of an outcome, and what it writes."""

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import click
import pytest
from click.testing import CliRunner

from benchmarks import __main__ as command
from benchmarks import flink, plots, suite
from benchmarks.children import command_line, parse_workloads, rotated
from benchmarks.findings import Chart, Curve, Point
from benchmarks.suite import BENCHMARKS, Benchmark, Effort, Outcome

TINY = "--partitions 2 --stores 1 --files 2 --batches 1 --latency 0"
COORDINATOR = Benchmark("coordinator", "Coordinator", TINY)
BROKEN = Benchmark("acks", "Acknowledgements", "--tasks none")
ABSENT = Benchmark("absent", "Absent", "")
CHART = Chart(
    "cost", "cost", "keys", "ms", (Curve("ours", (Point(10, 1, 0, 2), Point(99, 1, 1, 1))),)
)


@pytest.mark.parametrize("effort", Effort)
@pytest.mark.parametrize("benchmark", suite.benchmarks(), ids=lambda benchmark: benchmark.name)
def test_every_benchmark_accepts_the_arguments_of_the_suite(
    benchmark: Benchmark, effort: Effort
) -> None:
    if not benchmark.exists:
        pytest.skip(f"there is no {benchmark.module}")
    main = getattr(__import__(benchmark.module, fromlist=["main"]), "main")  # noqa: B009
    options = suite.options_of(benchmark.module)
    main.make_context(benchmark.name, suite.accepted(benchmark.arguments(effort), options))
    assert "--json" in options


def test_a_benchmark_is_run_and_its_findings_are_read(tmp_path: Path) -> None:
    shown: list[str] = []
    result = suite.run(COORDINATOR, Effort.QUICK, tmp_path, shown.append)
    assert result.outcome is Outcome.DONE
    assert result.command == f"python -m benchmarks.coordinator {TINY}"
    assert result.findings is not None
    assert [row[0] for row in result.findings.grids[0].rows] == ["local disk", "0 ms a call"]
    assert any("local disk: 1 checkpoints done" in line for line in shown)


def test_what_failed_or_is_missing_is_named_and_does_not_end_the_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "benchmarks", lambda: (ABSENT, BROKEN, COORDINATOR))
    places = {name: tmp_path / f"out.{name}" for name in ("json", "markdown")}
    arguments = [word for name, path in places.items() for word in (f"--{name}", str(path))]
    outcome = CliRunner().invoke(command.main, arguments)
    assert outcome.exit_code == 1
    written = json.loads(places["json"].read_text())
    assert [found["outcome"] for found in written["benchmarks"]] == ["skipped", "failed", "done"]
    assert "no module benchmarks.absent" in written["benchmarks"][0]["reason"]
    assert "'none' is not a valid integer" in written["benchmarks"][1]["reason"]
    assert "| local disk |" in places["markdown"].read_text()
    assert "acks failed: " in outcome.output


def test_a_command_that_is_not_listed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "BENCHMARKS", BENCHMARKS[:2])
    found = {benchmark.name: benchmark for benchmark in suite.benchmarks()[2:]}
    assert {"rescale", "lookup", "flink"} <= found.keys()
    assert not found.keys() & {"backend", "run", "suite", "flink_job", "__main__"}
    assert found["rescale"].arguments(Effort.QUICK) == ["--quick"]


def test_an_unknown_benchmark_is_refused() -> None:
    outcome = CliRunner().invoke(command.main, ["--only", "backend,backends"])
    assert outcome.exit_code == 2
    assert "backends not among backend, recovery" in outcome.output


def test_plots_are_drawn_as_svg_and_png(tmp_path: Path) -> None:
    drawn = plots.draw([CHART], tmp_path / "plots")
    assert [path.name for path in drawn] == ["cost.svg", "cost.png"]
    assert ElementTree.parse(drawn[0]).getroot().tag.endswith("svg")
    assert drawn[1].read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_plots_are_refused_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(plots, "find_spec", lambda _: None)
    outcome = CliRunner().invoke(command.main, ["--plots", "plots"])
    assert outcome.exit_code == 1
    assert "pip install 'sparkckpt[bench]'" in outcome.output
    assert "Command:" not in outcome.output


def test_without_pyflink_its_benchmark_is_skipped_with_the_way_to_install_it(
    tmp_path: Path,
) -> None:
    benchmark = Benchmark("flink", "Flink", f"--environment {tmp_path / 'none'}")
    result = suite.run(benchmark, Effort.QUICK, tmp_path, lambda _: None)
    assert result.outcome is Outcome.SKIPPED
    assert "--setup" in result.reason


def test_an_environment_that_lacks_pyflink_is_no_reason_to_fail(tmp_path: Path) -> None:
    python = flink.python_of(tmp_path)
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    assert "No module named 'pyflink'" in (flink.why_not(tmp_path) or "")


def test_workloads_are_pairs_of_keys_and_changes() -> None:
    context, option = click.Context(command.main), click.Option(["--workloads"])
    assert parse_workloads(context, option, "1m/100k,5k/1k") == [(10**6, 10**5), (5000, 1000)]
    assert parse_workloads(context, option, None) == []
    for wrong in ("1m", "1k/2k", "1m/1k/1", "a/b", "1m/"):
        with pytest.raises(click.BadParameter):
            parse_workloads(context, option, wrong)


def test_contestants_take_turns_in_being_first() -> None:
    assert [rotated("abc", repeat) for repeat in range(4)] == [
        ["a", "b", "c"],
        ["b", "c", "a"],
        ["c", "a", "b"],
        ["a", "b", "c"],
    ]


def test_the_command_to_repeat_leaves_out_places() -> None:
    arguments = ["--keys", "1m", "--json", "a.json", "--plots=p", "--directory", "d", "--profile"]
    assert command_line("benchmarks.x", arguments) == "python -m benchmarks.x --keys 1m --profile"
