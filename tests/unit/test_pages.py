"""The report says what is true, is safe to open, and looks the same in a real browser."""

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import sparkckpt
from sparkckpt.cli.cells import size_text
from sparkckpt.errors import UnwritableFileError
from sparkckpt.pages.charts import bars, heat_map, in_cells
from sparkckpt.pages.profile import profile_of
from sparkckpt.tables.identity import sizes
from tests.unit.state_samples import KEYS, keyed_checkpoint, state_after

BATCHES = 7
VOID = {"meta"}
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint")
    keyed_checkpoint(path, BATCHES, operators=(0, 1))
    return path


@pytest.fixture(scope="module")
def report(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    told: list[tuple[int, int]] = []
    target = tmp_path_factory.mktemp("report") / "report.html"
    written = sparkckpt.write_report(
        checkpoint, target, progress=lambda done, total: told.append((done, total))
    )
    assert written == target
    assert told == [(0, 1), (1, 1)]
    return target


class Page(HTMLParser):
    """The text of a page, and what its elements refer to; every element must be closed."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(source)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def test_the_report_says_what_the_state_is(report: Path, checkpoint: Path) -> None:
    page = Page(report.read_text(encoding="utf-8"))
    rows = len(state_after(BATCHES))
    largest = profile_of(sparkckpt.state(checkpoint).operator(0).table()).largest
    sizes_in_files = sparkckpt.state(checkpoint).states()["bytes"].to_pylist()
    for text in (
        f"{rows} rows of state",
        f"{size_text(sum(sizes_in_files))} in state files",
        "2 stateful operators",
        "3 checkpoints",
        "checkpoint 7 · completed",
        "Operator 0 stateStoreSave",
        "Operator 1 symmetricHashJoin",
        "2 partitions, 64 key groups",
        "no state yet",
        *(f"k={one.key['k']} x=0.5 1 {one.bytes} B" for one in largest),
    ):
        assert text in page.text, text
    titles = " ".join(page.texts)
    groups = sparkckpt.state(checkpoint).operator(0).table().with_key_groups().to_arrow()
    first = groups["key_group"].to_pylist().count(0)
    assert f"key group 0: {first} rows" in titles
    for checkpoint_id in (5, 6, 7):
        assert f"Checkpoint {checkpoint_id}: " in titles


def test_the_report_needs_nothing_else(report: Path) -> None:
    """No script, and nothing is fetched: neither from a network nor from a disk."""
    source = report.read_text(encoding="utf-8")
    page = Page(source)
    assert not {"script", "link", "img", "iframe", "object", "embed"} & {
        tag for tag, _ in page.tags
    }
    assert not [
        attrs for _, attrs in page.tags if {"src", "href", "onload", "onclick"} & set(attrs)
    ]
    assert "url(" not in source and "@import" not in source
    assert "key <" not in source, "keys stand on the page as they are, not as text"
    assert "key &lt;" in source


@pytest.mark.skipif(BROWSER is None, reason="no Chromium: apt-get install chromium")
def test_a_browser_shows_the_report(report: Path, tmp_path: Path) -> None:
    """What a browser has made of it: the same text, charts with an extent, and a picture."""
    picture = tmp_path / "report.png"
    command = [
        str(BROWSER),
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--window-size=1200,900",
    ]
    dom = subprocess.run(
        [*command, "--dump-dom", report.as_uri()],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    ).stdout
    shown, written = Page(dom), Page(report.read_text(encoding="utf-8"))
    assert shown.text == written.text
    assert [tag for tag, _ in shown.tags].count("rect") == [t for t, _ in written.tags].count(
        "rect"
    )
    subprocess.run(
        [*command, f"--screenshot={picture}", report.as_uri()],
        capture_output=True,
        check=True,
        timeout=120,
    )
    data = picture.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    assert len(data) > 20_000, "a page that is blank compresses to almost nothing"


def test_a_report_that_cannot_be_written_is_named(checkpoint: Path, tmp_path: Path) -> None:
    with pytest.raises(UnwritableFileError, match="no such directory"):
        sparkckpt.write_report(checkpoint, tmp_path / "no such directory" / "report.html")


def test_a_profile_counts_rows_keys_and_bytes(checkpoint: Path) -> None:
    table = sparkckpt.state(checkpoint).operator(0).table()
    profile, state = profile_of(table), state_after(BATCHES)
    assert profile.rows == profile.keys == len(state)
    assert profile.bytes == sum(len(key or "") + 16 for key in state)
    assert (
        int(profile.rows_by_key_group.sum()) == int(profile.rows_by_partition.sum()) == len(state)
    )
    assert len(profile.rows_by_partition) == 2
    longest = max(len(key or "") for key in state)
    assert profile.largest[0].bytes == longest + 16
    assert [key.bytes for key in profile.largest] == sorted(
        (key.bytes for key in profile.largest), reverse=True
    )
    assert 1 <= profile.skew <= 2
    assert len(state) < KEYS


def test_sizes_are_those_of_values() -> None:
    kind = pa.struct([("s", pa.string()), ("n", pa.int32())])
    structs = pa.array([{"s": "ab", "n": 1}, None, {"s": None, "n": None}], kind)
    assert sizes(structs).tolist() == [6, 0, 0]
    lists = pa.array([[{"s": "a", "n": 1}, None], None, []], pa.list_(kind))
    assert sizes(lists).tolist() == [5, 0, 0]
    assert sizes(lists.slice(1)).tolist() == [0, 0]
    maps = pa.array([[("k", 1), ("kk", None)], []], pa.map_(pa.string(), pa.int64()))
    assert sizes(maps).tolist() == [11, 0]
    assert sizes(pa.array([True, None])).tolist() == [1, 0]
    assert sizes(pa.nulls(2)).tolist() == [0, 0]


def test_heat_maps_have_a_cell_for_every_key_group() -> None:
    counts = np.arange(32768)
    cells, size = in_cells(counts)
    assert (len(cells), size, int(cells.sum())) == (512, 64, int(counts.sum()))
    drawn = heat_map(counts, "rows", name="a map")
    assert drawn.count("<rect") == 512
    assert "key groups 32704 to 32767" in drawn
    few = heat_map(np.array([0, 3, 1]), "rows", name="a map")
    assert few.count("<rect") == 3
    assert few.count('class="heat none"') == 1
    assert 'fill-opacity="1"' in few


def test_bars_fit_their_scale() -> None:
    values = [0, 5, 1300]
    drawn = bars(values, ["a", "b", "c<"], ["1", "2", "3"], str, name="bars")
    heights = [float(h) for h in re.findall(r'<rect[^>]* height="([\d.]+)"', drawn)]
    assert heights == sorted(heights)
    assert heights[0] == 0
    assert ">2000<" in drawn
    assert "c&lt;" in drawn
    assert bars([], [], [], str, name="nothing").count("<rect") == 0


def test_notebooks_show_checkpoints_and_state(checkpoint: Path) -> None:
    reader = sparkckpt.state(checkpoint)
    table = reader.operator(0).table()
    difference = sparkckpt.diff(sparkckpt.state(checkpoint, 6), reader, 0)
    shown = {
        "history": sparkckpt.history(checkpoint)._repr_html_(),
        "checkpoint": sparkckpt.show_checkpoint(checkpoint)._repr_html_(),
        "states": reader._repr_html_(),
        "operator": reader.operator(1)._repr_html_(),
        "table": table._repr_html_(),
        "diff": difference._repr_html_(),
    }
    texts = {name: Page(source).text for name, source in shown.items()}
    assert "retained" in texts["history"]
    assert "Checkpoint 7 of" in texts["checkpoint"] and "stateStoreSave" in texts["checkpoint"]
    assert "default" in texts["states"] and "left" in texts["states"]
    assert "right" in texts["operator"] and "default" not in texts["operator"]
    assert "Key: k, x. More rows follow." in texts["table"]
    assert f"{difference.summary()['changed']} changed" in texts["diff"]
    assert sparkckpt.history(checkpoint).table == sparkckpt.list_checkpoints(checkpoint)
