"""The commands that look into state, in every form they print it."""

import csv
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from sparkckpt.cli.console import main
from sparkckpt.cli.output import TextOutput
from sparkckpt.cli.values import fits_csv, fits_parquet, fitted, json_value, python_rows, value_text
from tests.unit.format_samples import flipped
from tests.unit.state_samples import State, keyed_checkpoint, state_after

BATCHES = 7


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint")
    keyed_checkpoint(path, BATCHES)
    return path


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def read(checkpoint: Path, *options: object) -> Result:
    result = invoke("read", checkpoint, "--operator", 0, *options)
    assert result.exit_code == 0, result.output
    return result


def by_key(rows: list[dict[str, object]]) -> State:
    return {row["k"]: int(row["n"]) for row in rows}  # type: ignore[misc, call-overload]


def test_people_see_some_rows(checkpoint: Path) -> None:
    shown = read(checkpoint).output
    assert "State 'default' of operator 0 in checkpoint 7" in shown
    assert "Only the first 20 rows: --limit shows more" in shown
    assert shown.count("key <") <= 20
    rows = read(checkpoint, "--limit", 1000).output
    assert rows.count("key <") == sum(key is not None for key in state_after(BATCHES))
    assert "Only the first" not in rows
    assert "No rows." in read(checkpoint, "--key", '{"k": "none", "x": 0}').output


def test_programs_get_all_rows(checkpoint: Path, tmp_path: Path) -> None:
    expected = state_after(BATCHES)
    lines = read(checkpoint, "--as", "json").output.splitlines()
    assert by_key([json.loads(line) for line in lines]) == expected
    assert by_key(json.loads(read(checkpoint, "--output", "json").output)) == expected
    table = list(csv.DictReader(io.StringIO(read(checkpoint, "--as", "csv").output)))
    assert by_key([{**row, "k": row["k"] or None} for row in table]) == expected
    stream = read(checkpoint, "--as", "arrow").stdout_bytes
    assert by_key(pa.ipc.open_stream(stream).read_all().to_pylist()) == expected
    parquet = read(checkpoint, "--as", "parquet").stdout_bytes
    assert by_key(pq.read_table(io.BytesIO(parquet)).to_pylist()) == expected
    target = tmp_path / "rows.parquet"
    assert read(checkpoint, "--as", "parquet", "--to", target, "--limit", 5).output == ""
    assert pq.read_table(target).num_rows == 5


def test_one_key_and_some_key_groups(checkpoint: Path) -> None:
    found = read(checkpoint, "--key", '{"k": "key <8>", "x": 0.5}', "--as", "json").output
    value = state_after(BATCHES)["key <8>"]
    assert json.loads(found) == {"k": "key <8>", "x": 0.5, "n": value}
    low = read(checkpoint, "--key-groups", "0-31", "--as", "json").output.splitlines()
    high = read(checkpoint, "--key-groups", "32-63", "--as", "json").output.splitlines()
    assert len(low) + len(high) == len(state_after(BATCHES))


def test_operator_state_is_printed(checkpoint: Path) -> None:
    rows = [
        json.loads(line)
        for line in read(checkpoint, "--operator-state", "--as", "json").output.splitlines()
    ]
    items = {bytes.fromhex(row["item"]) for row in rows if row["state"] == "rules"}
    assert items == {b"", b"rule 7"}
    assert invoke("read", checkpoint, "--operator-state", "--key", "{}").exit_code == 2


def test_states_are_listed(checkpoint: Path) -> None:
    (state,) = json.loads(read(checkpoint, "--list", "--output", "json").output)
    assert (state["state"], state["kind"], state["operator_name"]) == (
        "default",
        "value",
        "stateStoreSave",
    )
    assert "default" in invoke("read", checkpoint, "--list").output


def test_differences_are_printed(checkpoint: Path) -> None:
    before = f"{checkpoint}/_sparkckpt/chk-5"
    old, new = state_after(5), state_after(BATCHES)
    result = invoke("diff", before, checkpoint, "--as", "json")
    rows = [json.loads(line) for line in result.output.splitlines()]
    changed = {key for key in old | new if old.get(key) != new.get(key)}
    assert {row["k"] for row in rows} == changed
    summary = json.loads(invoke("diff", before, checkpoint, "--summary", "--output", "json").output)
    assert sum(entry["keys"] for entry in summary) == len(changed)
    text = invoke("diff", before, checkpoint, "--limit", 3).output
    assert "Changes from 'default' of operator 0 in checkpoint 5" in text
    assert "n=7" in invoke("diff", before, checkpoint, "--limit", 1000).output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--key", "{}"), "The key cannot be looked up"),
        (("--key-groups", "7-70"), "are no key groups"),
        (("--state", "none"), "no state 'none'"),
        (("--operator", "5"), "no operator 5"),
        (("--id", "1"), "no checkpoint 1"),
    ],
)
def test_errors_are_messages(checkpoint: Path, arguments: tuple[str, ...], message: str) -> None:
    result = invoke("read", checkpoint, *arguments)
    assert result.exit_code == 1
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_a_file_is_replaced_only_by_a_whole_one(tmp_path: Path) -> None:
    keyed_checkpoint(tmp_path / "query", BATCHES)
    target = tmp_path / "rows.csv"
    target.write_text("of before")
    for path in (tmp_path / "query/state").rglob("*.arrow"):
        data = path.read_bytes()
        path.write_bytes(flipped(data, len(data) // 2))
    command = ("read", tmp_path / "query", "--as", "csv", "--to")
    result = invoke(*command, target)
    assert result.exit_code == 1 and "is corrupt" in result.stderr
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["rows.csv"]
    assert target.read_text() == "of before"
    assert "cannot be written" in invoke(*command, tmp_path / "none" / "rows.csv").stderr


def test_a_file_needs_a_form(checkpoint: Path, tmp_path: Path) -> None:
    result = invoke("read", checkpoint, "--to", tmp_path / "rows")
    assert result.exit_code == 2
    assert "csv, json, parquet, arrow" in result.output


def test_values_are_text_and_never_markup() -> None:
    sink = io.StringIO()
    rows = pa.table({"first_k": ["[red]x[/red]"], "bytes": [123456], "none": pa.nulls(1)})
    TextOutput(Console(file=sink, width=200)).data("[bold]title[/bold]", rows, "")
    shown = sink.getvalue()
    for text in ("[red]x[/red]", "[bold]title[/bold]", "123456", "first_k", "none", "-"):
        assert text in shown


def test_times_that_python_cannot_hold_are_text() -> None:
    far = pa.array([2**62, 0, None], pa.timestamp("us", "UTC"))
    structs = pa.StructArray.from_arrays([far], names=["start"])
    rows = python_rows(pa.table({"at": far, "w": structs, "n": [1, 2, 3]}))
    assert rows[1]["at"].startswith("1970-01-01")
    assert rows[1]["w"] == {"start": rows[1]["at"]}
    assert rows[0]["at"] and rows[2] == {"at": None, "w": {"start": None}, "n": 3}


def test_values_of_every_kind_have_a_form() -> None:
    rows = pa.RecordBatch.from_pylist(
        [
            {
                "binary": b"\x00\xff",
                "struct": {"a": 1, "b": None},
                "list": [1.5, float("nan")],
                "interval": pa.MonthDayNano([1, 2, 3]),
            }
        ]
    )
    (row,) = rows.to_pylist()
    assert json_value(row) == {
        "binary": "00ff",
        "struct": {"a": 1, "b": None},
        "list": [1.5, "nan"],
        "interval": {"months": 1, "days": 2, "nanoseconds": 3},
    }
    assert value_text(row["struct"]) == "a=1 b=-"
    assert value_text(row["list"]) == "[1.5, nan]"
    assert value_text(True) == "true"
    assert value_text("x" * 1000).endswith("... (1000 characters)")
    assert fitted(rows, fits_csv).to_pylist() == [
        {
            "binary": "00ff",
            "struct": '{"a": 1, "b": null}',
            "list": '[1.5, "nan"]',
            "interval": '{"months": 1, "days": 2, "nanoseconds": 3}',
        }
    ]
    stored = fitted(rows, fits_parquet)
    assert stored.schema.field("struct") == rows.schema.field("struct")
    pq.write_table(pa.table(stored), io.BytesIO())
