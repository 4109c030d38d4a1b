"""The commands that look at checkpoints, in both outputs."""

import json
import time
from io import StringIO
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

import sparkckpt
from sparkckpt.cli.cells import duration_text, size_text, text_of, with_ranges
from sparkckpt.cli.console import SPARED_COLUMNS, main
from sparkckpt.cli.output import TextOutput
from tests.unit.checkpoint_samples import checkpoints_at
from tests.unit.format_samples import flipped

OLD = "state/0/0/1_11111111-1111-1111-1111-111111111111.handle"


@pytest.fixture
def location(tmp_path: Path) -> str:
    checkpoints_at(tmp_path)
    return str(tmp_path)


def run(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "160"}).invoke(main, arguments)


def test_list_for_people(location: str) -> None:
    outcome = run("list", location)
    assert outcome.exit_code == 0
    rows = [line for line in outcome.output.splitlines() if "retained" in line]
    assert [int(row.split("│")[1]) for row in rows] == [5, 6, 7]
    assert all("KiB" in row and "1970-01-01 00:00:00" in row for row in rows)
    assert "problem" not in outcome.output


def shown(location: str, console: Console) -> list[str]:
    TextOutput(console).table(
        "Checkpoints", sparkckpt.list_checkpoints(location), "", SPARED_COLUMNS
    )
    assert isinstance(console.file, StringIO)
    return console.file.getvalue().splitlines()


def test_into_a_pipe_a_table_goes_as_wide_as_it_is(location: str) -> None:
    lines = shown(location, Console(file=StringIO(), width=80))
    rows = [line for line in lines if "retained" in line]
    assert len(rows) == 3 and len({len(line) for line in rows}) == 1
    assert len(rows[0]) > 80 and "new files" in "".join(lines)


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_a_narrow_terminal_gets_fewer_columns(location: str, width: int) -> None:
    lines = shown(location, Console(file=StringIO(), width=width, force_terminal=True))
    rows = [line for line in lines if "retained" in line]
    assert len(rows) == 3, "a row is folded"
    assert all(heading in "".join(lines) for heading in ("checkpoint", "batch", "status"))
    assert any(line.startswith("Not shown for want of room: new files") for line in lines) is (
        width < 120
    )


def test_list_for_programs(location: str) -> None:
    before, after = (
        run("--output", "json", "list", location),
        run("list", location, "--output=json"),
    )
    assert before.output == after.output
    rows = json.loads(after.output)
    table = sparkckpt.list_checkpoints(location)
    assert [row["state_bytes"] for row in rows] == table["state_bytes"].to_pylist()
    assert rows[0]["completed"] == "1970-01-01T00:00:00+00:00"


def test_nothing_yet(tmp_path: Path) -> None:
    checkpoints_at(tmp_path, batches=0)
    assert run("list", str(tmp_path)).output == (
        f"{tmp_path} has no checkpoint yet. "
        "The first is completed after the query's first batch, by its coordinator.\n"
    )
    assert json.loads(run("list", str(tmp_path), "--output", "json").output) == []
    assert run("show", str(tmp_path)).exit_code == 1


def test_show_for_people(location: str) -> None:
    text = run("show", location, "--id", "6").output
    for part in ("stateStoreSave", "left, right", "32 to 63", "merge", "1 to 4", "watermark"):
        assert part in text
    assert "... and" not in text


def test_long_tables_are_cut_for_people(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sparkckpt.cli.console.SHOWN_ROWS", 2)
    assert "... and 28 more" in run("show", location).output
    assert "more" not in run("show", location, "--all").output
    assert len(json.loads(run("show", location, "--output", "json").output)["files"]) == 30


def test_show_for_programs(location: str) -> None:
    shown = json.loads(run("--output", "json", "show", location).output)
    assert (shown["checkpoint_id"], shown["batch_id"], shown["watermark"]) == (7, 6, None)
    assert [operator["stores"] for operator in shown["operators"]] == [
        ["default"],
        ["left", "right"],
    ]
    assert sum(file["kind"] == "handle" for file in shown["files"]) == 6
    assert all(isinstance(row["bytes"], int) for row in shown["key_groups"])


def test_verify_says_that_all_is_well(location: str) -> None:
    outcome = run("verify", location)
    assert (outcome.exit_code, outcome.output) == (0, f"Every checkpoint in {location} is sound.\n")
    assert run("verify", location, "--id", "6").output == f"Checkpoint 6 in {location} is sound.\n"
    assert json.loads(run("verify", location, "--output", "json").output) == []


def test_verify_fails_if_anything_is_wrong(location: str) -> None:
    path = next(Path(location).glob("state/0/0/7_*.delta.arrow"))
    path.write_bytes(flipped(path.read_bytes(), 1000))
    outcome = run("verify", location)
    assert outcome.exit_code == 1
    assert "CorruptStateError" in outcome.output and "7_" in outcome.output
    outcome = run("verify", location, "--output", "json")
    assert outcome.exit_code == 1
    (problem,) = json.loads(outcome.output)
    assert (problem["path"], problem["checkpoints"]) == (
        str(path.relative_to(location)),
        [7],
    )
    assert run("verify", location, "--id", "6").exit_code == 0


def test_clean_lists_and_deletes(location: str) -> None:
    orphan = Path(location) / OLD
    orphan.write_bytes(b"x" * 2048)
    for listed in (run("clean", location), run("clean", location, "--dry-run")):
        assert listed.exit_code == 0
        assert "2.0 KiB" in listed.output and "│ no" in listed.output
    assert orphan.exists()
    deleted = json.loads(run("clean", location, "--delete", "--output", "json").output)
    assert deleted == [{"kind": "state", "path": OLD, "bytes": 2048, "deleted": True}]
    assert not orphan.exists()
    assert run("clean", location).output == f"{location} has no orphaned files.\n"


def test_clean_is_refused_while_a_query_runs(tmp_path: Path) -> None:
    checkpoints_at(tmp_path, end=False, now_ms=time.time_ns() // 1_000_000)
    outcome = run("clean", str(tmp_path), "--delete", "--output", "json")
    assert outcome.exit_code == 1
    assert json.loads(outcome.stderr)["error"] == "QueryRunningError"
    assert run("clean", str(tmp_path)).exit_code == 0
    assert run("clean", str(tmp_path), "--force").exit_code == 2


@pytest.mark.parametrize("command", ["list", "show", "verify", "clean"])
def test_a_wrong_path_is_a_named_error(tmp_path: Path, command: str) -> None:
    outcome = run(command, str(tmp_path), "--output", "json")
    assert (outcome.exit_code, outcome.stdout) == (1, "")
    assert json.loads(outcome.stderr)["error"] == "NotACheckpointError"
    outcome = run(command, str(tmp_path))
    assert outcome.stderr.startswith(f"error: file://{tmp_path} is not a Spark checkpoint")


def test_numbers_in_units() -> None:
    assert [size_text(n) for n in (0, 1023, 1024, 1536, 5 << 20, 3 << 40, 2000 << 50)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 KiB",
        "5.0 MiB",
        "3.0 TiB",
        "2000.0 PiB",
    ]
    assert [duration_text(n) for n in (0, 999, 1500, 61_000)] == [
        "0 ms",
        "999 ms",
        "1.5 s",
        "1 min 1 s",
    ]
    assert text_of("bytes", None) == "-" and text_of("base", False) == "no"
    assert text_of("stores", ["a", "b"]) == "a, b" and text_of("batch_id", 7) == "7"


def test_ranges_take_one_column() -> None:
    table = pa.table(
        {"x": [1, 2, 3], "first_v": [1, 2, None], "last_v": [5, 2, None], "y": [1] * 3}
    )
    assert with_ranges(table).to_pydict() == {
        "x": [1, 2, 3],
        "vs": ["1 to 5", "2", None],
        "y": [1, 1, 1],
    }
