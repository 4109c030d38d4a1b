"""Runs the benchmarks: `python -m benchmarks --quick`, or `--full`; `--only` chooses among them.

Nothing of what it writes is lost when a benchmark fails: the files hold what the others have found,
and the exit status is 1.
"""

import json
import sys
import tempfile
from pathlib import Path

import click

from benchmarks import output, plots
from benchmarks.children import command_line
from benchmarks.machine import Machine
from benchmarks.suite import Effort, Outcome, Result, SuiteReport, benchmarks, run


@click.command(context_settings={"show_default": True})
@click.option(
    "--quick",
    "effort",
    flag_value=Effort.QUICK.value,
    default=Effort.QUICK.value,
    help="Small states: minutes.",
)
@click.option(
    "--full", "effort", flag_value=Effort.FULL.value, help="Up to 5M keys, three times: hours."
)
@click.option("--only", help=f"Which to run, of {','.join(b.name for b in benchmarks())}.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write all to a file.")
@click.option("--markdown", type=click.Path(path_type=Path), help="Write the tables to a file.")
@click.option(
    "--plots",
    "plots_path",
    type=click.Path(path_type=Path, file_okay=False),
    help="Draw cost against state size and change rate, as SVG and PNG.",
)
def main(
    effort: str,
    only: str | None,
    json_path: Path | None,
    markdown: Path | None,
    plots_path: Path | None,
) -> None:
    """Run the benchmarks, each in processes of its own, and put their findings together."""
    known = {benchmark.name: benchmark for benchmark in benchmarks()}
    names = [name.strip() for name in only.split(",")] if only else list(known)
    if unknown := [name for name in names if name not in known]:
        raise click.BadParameter(f"{', '.join(unknown)} not among {', '.join(known)}")
    if plots_path is not None:
        plots.require_matplotlib()
    console, machine = output.console(), Machine.here()
    command = command_line("benchmarks", sys.argv[1:])
    output.show_start(console, command, machine)
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="sparkckpt-bench-") as directory:
        for benchmark in dict.fromkeys(known[name] for name in names):
            console.rule(benchmark.title)
            result = run(benchmark, Effort(effort), Path(directory), click.echo)
            console.print(f"{result.outcome.value} {result.reason}", highlight=False, markup=False)
            results.append(result)
            report = SuiteReport(command, machine, results)
            _write(report, json_path, markdown, plots_path)
    _show_end(report)
    if report.failed:
        sys.exit(1)


def _write(
    report: SuiteReport, json_path: Path | None, markdown: Path | None, plots_path: Path | None
) -> None:
    """After every benchmark: a call that is broken off leaves what it has found."""
    images: list[str] = []
    if plots_path is not None:
        drawn = plots.draw(report.charts, plots_path)
        images = [str(path) for path in drawn if path.suffix == ".svg"]
    if json_path is not None:
        json_path.write_text(json.dumps(report.to_json(), indent=1) + "\n")
    if markdown is not None:
        markdown.write_text(report.markdown(images))


def _show_end(report: SuiteReport) -> None:
    click.echo(f"\n{report.seconds:.0f} s")
    for result in report.results:
        if result.outcome is not Outcome.DONE:
            click.echo(f"{result.benchmark.name} {result.outcome.value}: {result.reason}")
    for bar in report.bars:
        click.echo(bar.line)


if __name__ == "__main__":
    main()
