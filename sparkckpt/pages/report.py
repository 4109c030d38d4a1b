"""The report: one page of a query's checkpoints and its state, in one file without other assets.

Reads all state of one checkpoint, once. What it says of checkpoints comes from `checkpoints`, what
it says of state from `tables`; here they are put on a page.
"""

import os
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from importlib.resources import files
from pathlib import Path

import pyarrow as pa

import sparkckpt
from sparkckpt.checkpoints import list_checkpoints
from sparkckpt.checkpoints.directory import Location
from sparkckpt.checkpoints.listing import INCONSISTENT
from sparkckpt.cli.cells import duration_text, size_text
from sparkckpt.cli.values import value_text
from sparkckpt.errors import NotACheckpointError, UnwritableFileError
from sparkckpt.format.metadata import OperatorState
from sparkckpt.pages.charts import bars, heat_map, in_cells
from sparkckpt.pages.html import element, facts_of, table_of, text
from sparkckpt.pages.profile import StateProfile, profile_of
from sparkckpt.tables import StateReader
from sparkckpt.tables.reader import kept_state
from sparkckpt.tables.shapes import INTERNAL

Progress = Callable[[int, int], None]
"""Told, again and again, how many states are read, and how many there are."""

SKEWED = 2.0
"""A partition that has so many times the mean is pointed out."""
SHOWN_CHECKPOINTS = 100
"""So many of the newest are drawn."""


def write_report(
    path: Location,
    target: str | os.PathLike[str] = "report.html",
    checkpoint_id: int | None = None,
    progress: Progress | None = None,
) -> Path:
    """Makes a page of a query's checkpoints, and of the state in one, by default the newest."""
    page = report_page(path, checkpoint_id, progress)
    try:
        Path(target).write_text(page, encoding="utf-8")
    except OSError as error:
        raise UnwritableFileError.write(os.fspath(target), error.strerror or str(error)) from error
    return Path(target)


def report_page(
    path: Location, checkpoint_id: int | None = None, progress: Progress | None = None
) -> str:
    """The page as text."""
    with kept_state(path, checkpoint_id) as reader:
        history = _history(reader)
        profiles = _profiles(reader, progress)
    metadata = reader.snapshot.metadata
    sections = [_head(reader, profiles, history), _history_section(history)]
    for operator in metadata.operator_states:
        of_operator = [p for p in profiles if p.table.operator.operator_id == operator.operator_id]
        sections.append(_operator_section(operator, of_operator))
    made = f"Made by sparkckpt {sparkckpt.__version__} on {_time(datetime.now(timezone.utc))}."
    return _page(f"State of {reader.snapshot.where}", [*sections, element("footer", made)])


def _history(reader: StateReader) -> pa.Table | None:
    """The checkpoints of the query; None for a directory that has no history."""
    try:
        history = list_checkpoints(reader.snapshot.where)
    except NotACheckpointError:
        return None
    return history.slice(max(0, history.num_rows - SHOWN_CHECKPOINTS))


def _profiles(reader: StateReader, progress: Progress | None) -> list[StateProfile]:
    tables = [
        operator.table(name.name)
        for operator in reader.operators()
        for name in operator.names
        if name.kind != INTERNAL
    ]
    profiles = []
    for number, table in enumerate(tables):
        if progress:
            progress(number, len(tables))
        profiles.append(profile_of(table))
    if progress:
        progress(len(tables), len(tables))
    return profiles


def _head(reader: StateReader, profiles: Sequence[StateProfile], history: pa.Table | None) -> str:
    metadata = reader.snapshot.metadata
    taken = datetime.fromtimestamp(metadata.timestamp_ms / 1000, timezone.utc)
    facts = [f"batch {metadata.batch_id}", f"query <code>{text(metadata.query_id)}</code>"]
    if reader.checkpoint_id is not None:
        facts[:0] = [f"checkpoint {reader.checkpoint_id}", f"completed {_time(taken)}"]
    if metadata.watermark_ms:
        watermark = datetime.fromtimestamp(metadata.watermark_ms / 1000, timezone.utc)
        facts.append(f"watermark {_time(watermark)}")
    statistics = metadata.statistics
    tiles = [
        _counted(sum(p.rows for p in profiles), "row of state", "rows of state"),
        (size_text(sum(o["bytes"] for o in reader.states().to_pylist())), "in state files"),
        _counted(len(metadata.operator_states), "stateful operator", "stateful operators"),
    ]
    if statistics.files:
        tiles.append(_counted(statistics.files, "file", "files"))
    if statistics.duration_ms:
        tiles.append((duration_text(statistics.duration_ms), "to complete"))
    if history is not None:
        tiles.append(_counted(history.num_rows, "checkpoint", "checkpoints"))
    return element(
        "header",
        element("h1", text(_short(reader.snapshot.where))),
        element("div", element("code", text(reader.snapshot.where)), class_="soft"),
        element("div", " · ".join(facts), class_="soft"),
        element("div", *(_tile(*tile) for tile in tiles), class_="tiles"),
    )


def _counted(number: int, one: str, several: str) -> tuple[str, str]:
    return f"{number:,}", one if number == 1 else several


def _tile(value: str, what: str) -> str:
    return element("div", element("b", text(value)), element("span", text(what)), class_="tile")


def _history_section(history: pa.Table | None) -> str:
    if history is None or not history.num_rows:
        return ""
    rows = [row for row in history.to_pylist() if row["status"] != INCONSISTENT]
    labels = [str(row["checkpoint_id"]) for row in rows]
    size_titles = [
        f"Checkpoint {row['checkpoint_id']}: {size_text(row['state_bytes'])} of state, "
        f"{size_text(row['delta_bytes'])} of it written by batch {row['batch_id']}"
        for row in rows
    ]
    duration_titles = [
        f"Checkpoint {row['checkpoint_id']}: {duration_text(row['duration_ms'])}" for row in rows
    ]
    size_chart = bars(
        [row["state_bytes"] for row in rows], size_titles, labels, size_text,
        name="State size by checkpoint", inner=[row["delta_bytes"] for row in rows], base=1024,
    )  # fmt: skip
    duration_chart = bars(
        [row["duration_ms"] for row in rows], duration_titles, labels, duration_text,
        name="Duration by checkpoint",
    )  # fmt: skip
    legend = (
        '<small><span class="key" style="background:var(--accent)"></span>all files'
        '<span class="key" style="background:var(--part)"></span>written by its batch</small>'
    )
    return "".join(
        [
            element("h2", "Checkpoints"),
            element(
                "div",
                element("div", element("h3", "State size ", legend), size_chart, class_="card"),
                element(
                    "div",
                    element("h3", "Duration <small>first acknowledgement to completion</small>"),
                    duration_chart,
                    class_="card",
                ),
                class_="pair",
            ),
            element(
                "details",
                element("summary", "As a table"),
                element("div", facts_of(history), class_="card wide"),
            ),
        ]
    )


def _operator_section(operator: OperatorState, profiles: Sequence[StateProfile]) -> str:
    heading = element(
        "h2",
        f"Operator {operator.operator_id} ",
        element("span", text(operator.operator_name), class_="soft"),
    )
    shape = (
        f"{operator.parallelism} partitions, {operator.max_parallelism:,} key groups"
        if operator.keyed
        else "all state in one partition"
    )
    if not profiles:
        return heading + element("div", f"{shape}, no state yet", class_="card soft")
    headings = ["state", "kind", "rows", "keys", "in memory", "in files", "fullest partition"]
    rows = [
        [
            element("b", text(profile.table.name.name)),
            text(profile.table.name.kind) + (" with TTL" if profile.table.name.ttl else ""),
            f"{profile.rows:,}",
            f"{profile.keys:,}",
            size_text(profile.bytes),
            size_text(profile.table.family.bytes),
            _skew(profile),
        ]
        for profile in profiles
    ]
    numeric = [False, False, True, True, True, True, True]
    table = element("div", table_of(headings, rows, numeric), class_="wide")
    summary = element("div", element("p", shape, class_="soft"), table, class_="card")
    return heading + summary + "".join(map(_state_card, profiles))


def _skew(profile: StateProfile) -> str:
    if not profile.table.operator.keyed or not profile.rows:
        return "-"
    shown = f"{profile.skew:.2f}\N{MULTIPLICATION SIGN} the mean"
    return element("span", shown, class_="skewed") if profile.skew >= SKEWED else shown


def _state_card(profile: StateProfile) -> str:
    if not profile.rows:
        return ""
    name = profile.table.name.name
    operator = profile.table.operator
    parts = [element("h3", f"{text(name)} <small>{profile.rows:,} rows</small>")]
    if operator.keyed:
        map_name = f"Rows of {name} by key group"
        cells, size = in_cells(profile.rows_by_key_group)
        of_cell = f"a cell of {size} key groups" if size > 1 else "a key group"
        legend = f'0 <span class="ramp"></span> {int(cells.max()):,} rows in {of_cell}'
        last = f"from 0 at the top left to {operator.max_parallelism - 1:,}"
        parts.append(element("h3", f"<small>Rows by key group, {last}: {legend}</small>"))
        parts.append(heat_map(profile.rows_by_key_group, "rows", name=map_name))
    largest = _largest(profile)
    if operator.keyed and operator.parallelism > 1:
        rows = profile.rows_by_partition.tolist()
        titles = [f"Partition {number}: {count:,} rows" for number, count in enumerate(rows)]
        chart = bars(
            rows, titles, list(map(str, range(len(rows)))), lambda n: f"{n:,}",
            name=f"Rows of {name} by partition",
        )  # fmt: skip
        by_partition = element("div", element("h3", "<small>Rows by partition</small>"), chart)
        parts.append(element("div", by_partition, largest, class_="pair", style="margin-top:18px"))
    else:
        parts.append(largest)
    return element("div", *parts, class_="card")


def _largest(profile: StateProfile) -> str:
    if not profile.table.operator.keyed:
        return ""
    rows = [
        [
            element("code", text(" ".join(f"{n}={value_text(v)}" for n, v in one.key.items()))),
            f"{one.rows:,}",
            size_text(one.bytes),
        ]
        for one in profile.largest
    ]
    table = table_of(["key", "rows", "in memory"], rows, [False, True, True])
    heading = element("h3", "<small>Largest keys</small>")
    return element("div", heading, element("div", table, class_="wide"))


def _page(title: str, sections: Sequence[str]) -> str:
    style = files("sparkckpt.pages").joinpath("report.css").read_text(encoding="utf-8")
    head = (
        '<meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"{element('title', text(title))}{element('style', style)}"
    )
    body = element("body", element("main", *sections))
    return f'<!doctype html>\n<html lang="en">{element("head", head)}{body}</html>\n'


def _short(where: str) -> str:
    """The last two names of a path."""
    return "/".join(where.rstrip("/").rsplit("/", 2)[-2:])


def _time(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
