"""What a benchmark has found, in the one form that the suite, Markdown, JSON and plots share.

A benchmark measures and compares in its own way; in the end it states its findings: tables of text,
charts of numbers, and bars, each with the figure that it asks for. Plain values: no I/O here, and
nothing is measured or judged but whether a bar was met.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from statistics import median
from typing import Any


class Verdict(Enum):
    """What became of a bar."""

    MET = "met"
    MISSED = "missed"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Bar:
    """A figure that must not be above a limit; `value` is None where this call has not taken it."""

    title: str
    limit: float
    value: float | None
    spread: tuple[float, float] | None = None
    below: bool = False
    """The value must be below the limit, not at it."""

    @property
    def verdict(self) -> Verdict:
        if self.value is None:
            return Verdict.NOT_MEASURED
        met = self.value < self.limit if self.below else self.value <= self.limit
        return Verdict.MET if met else Verdict.MISSED

    @property
    def demand(self) -> str:
        return f"{'<' if self.below else '<='} {self.limit:g}"

    @property
    def measured(self) -> str:
        if self.value is None:
            return "-"
        if self.spread is None:
            return f"{self.value:.2f}"
        return f"{self.value:.2f} [{self.spread[0]:.2f}-{self.spread[1]:.2f}]"

    @property
    def line(self) -> str:
        return f"{self.verdict.value:12}  {self.measured:>18} {self.demand:>7}  {self.title}"


@dataclass(frozen=True)
class Point:
    """A median, with the lowest and the highest value seen."""

    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True)
class Curve:
    label: str
    points: tuple[Point, ...]

    @staticmethod
    def through(label: str, values: Iterable[tuple[float, float]]) -> "Curve":
        """From pairs of x and y, of which several may have the same x."""
        by_x: dict[float, list[float]] = {}
        for x, y in values:
            by_x.setdefault(x, []).append(y)
        points = (Point(x, median(ys), min(ys), max(ys)) for x, ys in sorted(by_x.items()))
        return Curve(label, tuple(points))


@dataclass(frozen=True)
class Chart:
    """Curves over the same two axes; `name` is that of the file it is drawn to."""

    name: str
    title: str
    x_title: str
    y_title: str
    curves: tuple[Curve, ...]


@dataclass(frozen=True)
class Grid:
    """A table whose cells are text; the first column names the row."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def markdown(self) -> str:
        lines = [f"**{self.title}**", "", _line(self.columns)]
        lines.append("|---|" + "---:|" * (len(self.columns) - 1))
        return "\n".join([*lines, *map(_line, self.rows)])


@dataclass(frozen=True)
class Findings:
    """All that a benchmark has to say."""

    grids: tuple[Grid, ...] = ()
    bars: tuple[Bar, ...] = ()
    charts: tuple[Chart, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def markdown(self) -> str:
        parts = [grid.markdown for grid in self.grids]
        if self.bars:
            parts.append(bars_grid(self.bars).markdown)
        parts += self.notes
        return "\n\n".join(parts)

    def to_json(self) -> dict[str, Any]:
        value = asdict(self)
        for bar, described in zip(self.bars, value["bars"], strict=True):
            described["verdict"] = bar.verdict.value
        return value

    @staticmethod
    def from_json(value: Mapping[str, Any]) -> "Findings":
        return Findings(
            tuple(
                Grid(grid["title"], tuple(grid["columns"]), tuple(map(tuple, grid["rows"])))
                for grid in value["grids"]
            ),
            tuple(_bar(bar) for bar in value["bars"]),
            tuple(_chart(chart) for chart in value["charts"]),
            tuple(value["notes"]),
        )


def bars_grid(bars: Sequence[Bar]) -> Grid:
    return Grid(
        "bars",
        ("bar", "limit", "measured", "verdict"),
        tuple((bar.title, bar.demand, bar.measured, bar.verdict.value) for bar in bars),
    )


def _bar(value: Mapping[str, Any]) -> Bar:
    spread = value["spread"]
    return Bar(
        value["title"],
        value["limit"],
        value["value"],
        None if spread is None else (spread[0], spread[1]),
        value["below"],
    )


def _chart(value: Mapping[str, Any]) -> Chart:
    curves = tuple(
        Curve(curve["label"], tuple(Point(**point) for point in curve["points"]))
        for curve in value["curves"]
    )
    return Chart(value["name"], value["title"], value["x_title"], value["y_title"], curves)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
