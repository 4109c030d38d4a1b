"""Charts as SVG: bars over time, and a heat map of key groups.

They need no script: what a mark stands for is in its title, which browsers show on hovering.
Colours are those of the page's style sheet.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from sparkckpt.pages.html import element, text

_WIDTH, _HEIGHT = 520, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 6, 10, 24
_LINES = 4
_GAP = 0.22
"""Of a bar's room."""
_MAP_COLUMNS, _MAP_ROWS = 64, 8
_CELL = 16


def bars(
    values: Sequence[float],
    titles: Sequence[str],
    labels: Sequence[str],
    shown: Callable[[int], str],
    *,
    name: str,
    inner: Sequence[float] = (),
    base: int = 10,
) -> str:
    """Bars from left to right; `inner` is a part of each that stands out. `shown` puts a value of
    the scale into words, whose units are powers of `base`."""
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    top = _round_up(max([*values, _LINES]), base)
    marks = []
    for line in range(_LINES + 1):
        y = _TOP + height - height * line / _LINES
        marks.append(
            element("line", class_="grid", x1=_LEFT, x2=_WIDTH - _RIGHT, y1=_n(y), y2=_n(y))
        )
        label = text(shown(round(top * line / _LINES)))
        marks.append(
            element("text", label, class_="axis", x=_LEFT - 6, y=_n(y + 3.5), text_anchor="end")
        )
    room = width / max(len(values), 1)
    thick = min(room * (1 - _GAP), 56)
    for index, (value, title) in enumerate(zip(values, titles, strict=True)):
        x = _LEFT + room * index + (room - thick) / 2
        parts = [_bar("bar", x, thick, height * value / top, height)]
        if inner:
            parts.append(_bar("bar part", x, thick, height * inner[index] / top, height))
        marks.append(element("g", element("title", text(title)), *parts))
    for index in _spread(len(labels)):
        x = _LEFT + room * (index + 0.5)
        marks.append(
            element(
                "text", text(labels[index]), class_="axis", x=_n(x), y=_HEIGHT - 8,
                text_anchor="middle",
            )
        )  # fmt: skip
    return element(
        "svg",
        *marks,
        viewBox=f"0 0 {_WIDTH} {_HEIGHT}",
        role="img",
        aria_label=name,
        class_="chart",
    )


def in_cells(counts: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], int]:
    """The counts of a heat map's cells, and of how many key groups each is."""
    size = max(1, -(-len(counts) // (_MAP_COLUMNS * _MAP_ROWS)))
    return np.add.reduceat(counts, np.arange(0, len(counts), size)), size


def heat_map(counts: npt.NDArray[np.int64], what: str, *, name: str) -> str:
    """Cells of as many key groups each as it takes, from the first to the last, row by row."""
    cells, size = in_cells(counts)
    hottest = max(int(cells.max()), 1)
    columns = min(_MAP_COLUMNS, len(cells))
    marks = []
    for index, count in enumerate(cells.tolist()):
        row, column = divmod(index, columns)
        first, last = index * size, min((index + 1) * size, len(counts)) - 1
        groups = f"key group {first}" if first == last else f"key groups {first} to {last}"
        marks.append(
            element(
                "rect", element("title", f"{groups}: {count:,} {text(what)}"),
                class_="heat" if count else "heat none", x=column * _CELL, y=row * _CELL,
                width=_CELL - 1.5, height=_CELL - 1.5, rx=2,
                fill_opacity=_n(0.1 + 0.9 * count / hottest) if count else None,
            )
        )  # fmt: skip
    rows = -(-len(cells) // columns)
    return element(
        "svg", *marks, viewBox=f"0 0 {columns * _CELL} {rows * _CELL}", role="img",
        aria_label=name, class_="map",
    )  # fmt: skip


def _bar(kind: str, x: float, thick: float, tall: float, height: float) -> str:
    tall = max(tall, 0.0)
    return element(
        "rect", class_=kind, x=_n(x), y=_n(_TOP + height - tall), width=_n(thick),
        height=_n(tall), rx=_n(min(2.0, thick / 4)),
    )  # fmt: skip


def _round_up(value: float, base: int) -> float:
    """A number not far above, whose quarters are round in units of the base."""
    unit = base ** math.floor(math.log(value, base)) if base > 10 else 1
    magnitude: float = unit * 10 ** max(0, math.floor(math.log10(value / unit)))
    return next(m * magnitude for m in (1, 2, 4, 6, 8, 10, 12, 20) if m * magnitude >= value)


def _spread(count: int) -> list[int]:
    """Some of so many labels that do not stand in each other's way."""
    step = max(1, -(-count // 10))
    return list(range(count - 1, -1, -step))[::-1]


def _n(number: float) -> str:
    return f"{number:.2f}".rstrip("0").rstrip(".")
