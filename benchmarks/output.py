"""Shows findings in the terminal and writes them to files: the same for every benchmark."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from benchmarks.findings import Findings, Grid
from benchmarks.machine import Machine

WIDTH = 132


def console() -> Console:
    """Wide enough for the tables, also where the output is a pipe."""
    return Console(width=max(Console().width, WIDTH))


def show_start(to: Console, command: str, machine: Machine) -> None:
    to.print(f"Command: {command}\nMachine: {machine}\n", highlight=False, markup=False)


def show(to: Console, findings: Findings) -> None:
    for grid in findings.grids:
        to.print(table_of(grid))
    for note in findings.notes:
        to.print(note, highlight=False, markup=False)
    if findings.bars:
        to.print(f"\n{'verdict':12}  {'measured':>18} {'limit':>7}  bar", highlight=False)
        for bar in findings.bars:
            to.print(bar.line, highlight=False, markup=False)


def table_of(grid: Grid) -> Table:
    table = Table(title=Text(grid.title))
    for number, column in enumerate(grid.columns):
        table.add_column(Text(column), justify="right" if number else "left")
    for row in grid.rows:
        table.add_row(*map(Text, row))
    return table


def write(
    path: Path, command: str, machine: Machine, findings: Findings, data: Mapping[str, Any]
) -> None:
    """One file that holds everything: what was found, and the figures that it comes from."""
    value = {
        "command": command,
        "machine": vars(machine),
        "findings": findings.to_json(),
        **data,
    }
    path.write_text(json.dumps(value, indent=1) + "\n")
