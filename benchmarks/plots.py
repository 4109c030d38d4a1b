"""Draws charts as SVG and PNG. The only module that needs matplotlib, the `bench` extra.

The cost axis starts at zero: what is flat looks flat, and what is twice as high is twice as much.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from benchmarks.findings import Chart
from benchmarks.workload import count_label

FORMATS = ("svg", "png")


class PlottingUnavailableError(click.ClickException):
    """matplotlib is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "--plots needs matplotlib, which is not installed here. Install it with "
            "`pip install 'sparkckpt[bench]'`, or leave --plots out."
        )


def require_matplotlib() -> None:
    """Asked before anything is measured: hours of figures must not end without their plots."""
    if find_spec("matplotlib") is None:
        raise PlottingUnavailableError


def draw(charts: Sequence[Chart], directory: Path) -> list[Path]:
    """One file of each format for every chart; returns their paths."""
    require_matplotlib()
    directory.mkdir(parents=True, exist_ok=True)
    return [path for chart in charts for path in _draw(chart, directory)]


def _draw(chart: Chart, directory: Path) -> list[Path]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for curve in chart.curves:
        xs = [point.x for point in curve.points]
        (line,) = axes.plot(xs, [point.y for point in curve.points], marker="o", label=curve.label)
        axes.fill_between(
            xs,
            [point.low for point in curve.points],
            [point.high for point in curve.points],
            color=line.get_color(),
            alpha=0.15,
        )
    _label(axes, chart)
    paths = [directory / f"{chart.name}.{kind}" for kind in FORMATS]
    for path in paths:
        figure.savefig(path, dpi=144)
    return paths


def _label(axes: Any, chart: Chart) -> None:
    ticks = sorted({point.x for curve in chart.curves for point in curve.points})
    axes.set_xscale("log")
    axes.set_xticks(ticks, [count_label(int(tick)) for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_ylim(bottom=0)
    axes.set_title(chart.title)
    axes.set_xlabel(chart.x_title)
    axes.set_ylabel(chart.y_title)
    axes.grid(alpha=0.3)
    axes.legend()
