"""How a command's result is shown: for people, through rich, or as JSON, for programs.

Commands hand over values and never format them. What a program may want to pipe (a path, arguments)
is printed as it is, with no markup, colour or line breaks of a terminal's width.
"""

import json
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

Row = Mapping[str, object]


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
    def note(self, text: str) -> None:
        """What goes on, for a person who watches."""

    @abstractmethod
    def error(self, error: Exception) -> None:
        """Why the command failed, on standard error."""


class TextOutput(Output):
    def __init__(self) -> None:
        self._console = Console(highlight=False)

    def value(self, name: str, value: str) -> None:
        print(value)

    def settings(self, settings: Mapping[str, str], text: str) -> None:
        print(text)

    def rows(self, title: str, rows: Sequence[Row]) -> None:
        table = Table(title=title, title_justify="left", title_style="bold")
        for column in rows[0] if rows else ():
            numeric = all(isinstance(row[column], int | float) for row in rows)
            table.add_column(column, justify="right" if numeric else "left", overflow="fold")
        for row in rows:
            table.add_row(*(str(cell) for cell in row.values()))
        self._console.print(table)

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

    def note(self, text: str) -> None:
        print(text, file=sys.stderr)

    def error(self, error: Exception) -> None:
        message = {"error": type(error).__name__, "message": str(error)}
        print(json.dumps(message), file=sys.stderr)

    def _print(self, value: object) -> None:
        print(json.dumps(value, indent=2))
