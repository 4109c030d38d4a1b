"""How a command's result is shown: for people, through rich, or as JSON, for programs.

Commands hand over values and never format them. What a program may want to pipe (a path, arguments)
is printed as it is, with no markup, colour or line breaks of a terminal's width.
"""

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from sparkckpt.cli.cells import heading_of, json_of, text_of, with_ranges
from sparkckpt.cli.values import is_number, json_value, python_rows, value_text

Row = Mapping[str, object]

_FULL_WIDTH = 10_000
"""Into a file or a pipe tables are written as wide as they are."""
_WIDEST_NAME = 32
"""Up to so many characters the first column, which says what a row is about, is not broken."""


@dataclass(frozen=True)
class ForPeople:
    """What of a report fits a terminal: some columns of some tables, so many rows of all, and not
    the facts that are told otherwise."""

    columns: Mapping[str, Sequence[str]]
    rows: int | None = None
    told: Sequence[str] = ()


class Output(ABC):
    """One form of output."""

    @abstractmethod
    def value(self, name: str, value: str) -> None:
        """A single value, alone on standard output."""

    @abstractmethod
    def settings(self, settings: Mapping[str, str], text: str) -> None:
        """Spark settings, for people in the given textual form."""

    @abstractmethod
    def rows(self, title: str, rows: Sequence[Row]) -> None:
        """A table; all rows have the same columns."""

    @abstractmethod
    def table(self, title: str, table: pa.Table, empty: str, spared: Sequence[str] = ()) -> None:
        """An Arrow table; `empty` is what it means if it has no rows. `spared` are the columns that
        people can do without where there is no room for all, in the order in which they go."""

    @abstractmethod
    def data(self, title: str, rows: pa.Table, empty: str) -> None:
        """Rows of a user's own: what a column is called says nothing about its values."""

    @abstractmethod
    def report(
        self,
        facts: Mapping[str, object],
        tables: Mapping[str, pa.Table],
        people: ForPeople,
    ) -> None:
        """Facts and tables about one thing, all of them for programs."""

    @abstractmethod
    @contextmanager
    def progress(self, title: str) -> Iterator[Callable[[int, int], None]]:
        """Shows how far something is, as it is told: how many are done of how many."""

    @abstractmethod
    def note(self, text: str) -> None:
        """What goes on, for a person who watches."""

    def warning(self, text: str) -> None:
        """What to be aware of, on standard error."""
        print(f"warning: {text}", file=sys.stderr)

    @abstractmethod
    def error(self, error: Exception) -> None:
        """Why the command failed, on standard error."""


class TextOutput(Output):
    def __init__(self, console: Console | None = None) -> None:
        console = console or Console(highlight=False)
        if not console.is_terminal:
            console.width = _FULL_WIDTH
        self._console = console

    def value(self, name: str, value: str) -> None:
        print(value)

    def settings(self, settings: Mapping[str, str], text: str) -> None:
        print(text)

    def rows(self, title: str, rows: Sequence[Row]) -> None:
        table = Table(title=title, title_justify="left", title_style="bold")
        for number, column in enumerate(rows[0] if rows else ()):
            numeric = all(isinstance(row[column], int | float) for row in rows)
            name_width = max(len(str(row[column])) for row in rows) if number == 0 else 0
            table.add_column(
                column,
                justify="right" if numeric else "left",
                overflow="fold",
                min_width=min(name_width, _WIDEST_NAME),
            )
        for row in rows:
            table.add_row(*(str(cell) for cell in row.values()))
        self._console.print(table)

    def table(self, title: str, table: pa.Table, empty: str, spared: Sequence[str] = ()) -> None:
        if not table.num_rows:
            self.note(empty)
            return
        left_out: list[str] = []
        for name in (name for name in spared if name in table.column_names):
            if self._fits(_rich_table(title, table)):
                break
            left_out.append(heading_of(name))
            table = table.drop_columns(name)
        self._console.print(_rich_table(title, table))
        if left_out:
            self.note(f"Not shown for want of room: {', '.join(left_out)}.")

    def data(self, title: str, rows: pa.Table, empty: str) -> None:
        if not rows.num_rows:
            self.note(empty)
            return
        self._console.print(Text(title, "bold"), soft_wrap=True)
        shown = Table()
        for field in rows.schema:
            right = is_number(field.type)
            shown.add_column(
                Text(field.name), justify="right" if right else "left", overflow="fold"
            )
        for row in python_rows(rows):
            shown.add_row(*(Text(value_text(row[name])) for name in rows.column_names))
        self._console.print(shown)

    def report(
        self,
        facts: Mapping[str, object],
        tables: Mapping[str, pa.Table],
        people: ForPeople,
    ) -> None:
        grid = Table.grid(padding=(0, 2))
        for name, fact in facts.items():
            if name not in people.told:
                grid.add_row(heading_of(name), text_of(name, fact))
        self._console.print(grid)
        for name, table in tables.items():
            if table.num_rows:
                self._console.print()
                columns = people.columns.get(name, table.column_names)
                shown = table.select(columns).slice(0, people.rows)
                self._console.print(_rich_table(heading_of(name), shown))
                if shown.num_rows < table.num_rows:
                    self.note(f"... and {table.num_rows - shown.num_rows} more")

    def _fits(self, table: Table) -> bool:
        room = self._console.options.update(width=_FULL_WIDTH)
        return self._console.measure(table, options=room).maximum <= self._console.width

    @contextmanager
    def progress(self, title: str) -> Iterator[Callable[[int, int], None]]:
        columns = (TextColumn(title), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        console = Console(stderr=True)
        with Progress(
            *columns, console=console, disable=not console.is_terminal, transient=True
        ) as bar:
            task = bar.add_task(title, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)

    def note(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def error(self, error: Exception) -> None:
        print(f"error: {error}", file=sys.stderr)


class JsonOutput(Output):
    def value(self, name: str, value: str) -> None:
        self._print({name: value})

    def settings(self, settings: Mapping[str, str], text: str) -> None:
        self._print(dict(settings))

    def rows(self, title: str, rows: Sequence[Row]) -> None:
        self._print([dict(row) for row in rows])

    def table(self, title: str, table: pa.Table, empty: str, spared: Sequence[str] = ()) -> None:
        self._print(json_of(table))

    def data(self, title: str, rows: pa.Table, empty: str) -> None:
        self._print([json_value(row) for row in python_rows(rows)])

    def report(
        self,
        facts: Mapping[str, object],
        tables: Mapping[str, pa.Table],
        people: ForPeople,
    ) -> None:
        self._print(json_of({**facts, **tables}))

    @contextmanager
    def progress(self, title: str) -> Iterator[Callable[[int, int], None]]:
        yield lambda done, total: None

    def note(self, text: str) -> None:
        print(text, file=sys.stderr)

    def error(self, error: Exception) -> None:
        message = {"error": type(error).__name__, "message": str(error)}
        print(json.dumps(message), file=sys.stderr)

    def _print(self, value: object) -> None:
        print(json.dumps(value, indent=2))


def _rich_table(title: str, table: pa.Table) -> Table:
    """Columns that have no value at all are left out."""
    table = with_ranges(table)
    shown = Table(title=title, title_justify="left", title_style="bold")
    filled = [name for name in table.column_names if table[name].null_count < table.num_rows]
    for name in filled:
        numeric = pa.types.is_integer(table.schema.field(name).type)
        shown.add_column(heading_of(name), justify="right" if numeric else "left", overflow="fold")
    for row in table.to_pylist():
        shown.add_row(*(Text(text_of(name, row[name])) for name in filled))
    return shown
