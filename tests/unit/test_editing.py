"""Edited savepoints hold what was asked for, where it belongs, and Spark's notes agree with it."""

import json
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import sparkckpt
from sparkckpt.editing import SavepointEditor
from sparkckpt.editing.schemas import noted_schemas
from sparkckpt.errors import (
    DuplicateKeysError,
    EditedRowsError,
    SavepointExistsError,
    SchemaChangeError,
    UneditableStateError,
    UnknownTypeError,
)
from tests.unit.editing_samples import deduplicated, groups, variables
from tests.unit.state_samples import keyed_checkpoint, state_after


@pytest.fixture
def grouped(tmp_path: Path) -> Path:
    return groups(tmp_path / "groups")


@pytest.fixture
def declared(tmp_path: Path) -> Path:
    return variables(tmp_path / "variables")


def rows_in(savepoint: Path, state: str | None = None) -> list[dict[str, Any]]:
    """The rows; each is found in its own key group, or a lookup would miss it."""
    assert sparkckpt.verify(savepoint).num_rows == 0
    table = sparkckpt.state(savepoint).operator(0).table(state)
    rows = table.to_arrow()
    keys = table.key_schema.names
    for key in rows.select(keys).slice(0, 5).to_pylist():
        assert (
            table.lookup(key).num_rows
            == rows.filter(pc.equal(rows[keys[0]], key[keys[0]])).num_rows
        )
    names = [name for name in rows.column_names if name in ("k", "u", "index")]
    return list(rows.sort_by([(name, "ascending") for name in names]).to_pylist())


def written(editor: SavepointEditor, tmp_path: Path) -> Path:
    editor.write(tmp_path / "edited")
    return tmp_path / "edited"


def test_nothing_edited_is_the_same_state(grouped: Path, tmp_path: Path) -> None:
    before = rows_in(grouped)
    report = sparkckpt.edit(grouped).write(tmp_path / "edited", name="again")
    assert (report.name, report.rows, report.checkpoint_id) == ("again", 40, 1)
    assert rows_in(tmp_path / "edited") == before == rows_in(grouped)


@pytest.mark.parametrize("how", ["table", "reader", "pandas"])
def test_rows_are_replaced(grouped: Path, tmp_path: Path, how: str) -> None:
    editor = sparkckpt.edit(grouped)
    state = editor.operator(0).state()
    assert state.schema.names == ["k", "g", "n", "name", "timeout", "exists"]
    table = pa.table({"k": [f"new {i}" for i in range(500)], "g": [1] * 500, "n": range(500)})
    table = table.append_column("name", pa.nulls(500, pa.string()))
    data = {
        "table": lambda: table,
        "reader": lambda: table.to_reader(max_chunksize=7),
        "pandas": lambda: table.to_pandas(),
    }[how]()
    state.replace(data)
    found = rows_in(written(editor, tmp_path))
    assert [(r["k"], r["n"]) for r in found] == sorted((f"new {i}", i) for i in range(500))
    assert {(r["name"], r["timeout"], r["exists"]) for r in found} == {(None, None, True)}


def test_what_a_transform_leaves_is_bit_for_bit_what_it_was(grouped: Path, tmp_path: Path) -> None:
    editor = sparkckpt.edit(grouped)
    editor.operator(0).state().transform(lambda table: table)
    edited = written(editor, tmp_path)
    assert sparkckpt.diff(grouped, edited).to_arrow().num_rows == 0
    last = rows_in(edited)
    assert [row["k"] for row in last if not row["exists"]] == ["key 39"]
    assert sum(row["timeout"] is not None for row in last) == 14
    (three,) = [row for row in last if row["k"] == "key 3"]
    assert three["timeout"] == datetime.fromtimestamp(3, timezone.utc)


@pytest.mark.parametrize(
    "predicate",
    [pc.field("n") > 30, lambda t: pc.greater(t["n"], 30), lambda t: t["n"].to_pandas() > 30],
)
def test_rows_are_filtered(grouped: Path, tmp_path: Path, predicate: Any) -> None:
    editor = sparkckpt.edit(grouped)
    editor.operator(0).state().filter(predicate)
    assert [row["n"] for row in rows_in(written(editor, tmp_path))] == list(range(31, 39))


def test_keys_move_to_their_own_key_groups(grouped: Path, tmp_path: Path) -> None:
    def moved(table: pa.Table) -> pa.Table:
        upper = pc.utf8_upper(table["k"])
        return table.set_column(0, "k", upper)

    editor = sparkckpt.edit(grouped)
    editor.operator(0).state().transform(moved)
    found = rows_in(written(editor, tmp_path))
    assert [row["k"] for row in found] == sorted(f"KEY {i}" for i in range(40))


def test_the_schema_evolves(grouped: Path, tmp_path: Path) -> None:
    editor = sparkckpt.edit(grouped)
    state = (
        editor.operator(0)
        .state()
        .widen_column("n", "long")
        .add_column("mean", "double", 0.5, after="n")
        .rename_column("name", "label")
        .rename_column("k", "id")
        .widen_column("g", "bigint")
    )
    state.transform(lambda t: t.set_column(3, "mean", pc.cast(t["n"], pa.float64())))
    assert state.schema.names == ["id", "g", "n", "mean", "label", "timeout", "exists"]
    edited = written(editor, tmp_path)
    table = sparkckpt.state(edited).operator(0).table()
    assert table.schema.field("n").type == table.schema.field("g").type == pa.int64()
    rows = table.to_arrow()
    assert rows.filter(pc.equal(rows["id"], "key 7")).to_pylist() == [
        {"id": "key 7", "g": 3, "n": 7, "mean": 7.0, "label": "<7>", "timeout": None}
        | {"exists": True}
    ]
    assert table.lookup({"id": "key 7", "g": 3}).num_rows == 1
    states = sparkckpt.state(edited).snapshot.metadata.master_states
    noted = noted_schemas(states, 0, "default")["default"]
    group_state = json.loads(noted.value)["fields"][0]["type"]["fields"]
    assert [(f["name"], f["type"]) for f in group_state] == [
        ("n", "long"),
        ("mean", "double"),
        ("label", "string"),
    ]
    assert [(f["name"], f["type"]) for f in json.loads(noted.key)["fields"]] == [
        ("id", "string"),
        ("g", "long"),
    ]
    footer = table.family.footer
    assert (footer.key_schema, footer.value_schema) == (noted.key, noted.value)


def test_only_the_schema_evolves(grouped: Path, tmp_path: Path) -> None:
    editor = sparkckpt.edit(grouped)
    editor.operator(0).state().drop_column("name").add_column("tag", pa.list_(pa.int64()), [1])
    found = rows_in(written(editor, tmp_path))
    assert [row["tag"] for row in found if row["exists"]] == [[1]] * 39
    assert [row["tag"] for row in found if not row["exists"]] == [None]
    assert "name" not in found[0]


def test_a_key_column_goes_and_rows_are_merged(grouped: Path, tmp_path: Path) -> None:
    rows = sparkckpt.state(grouped).operator(0).table().to_arrow().filter(pc.field("exists"))
    summed = rows.group_by("g").aggregate([("n", "sum"), ("name", "max")])
    editor = sparkckpt.edit(grouped)
    state = editor.operator(0).state().drop_column("k")
    with pytest.raises(DuplicateKeysError, match=r"a key more than once: \{'g': \d\}"):
        editor.write(tmp_path / "twice")
    assert not (tmp_path / "twice/_sparkckpt/chk-1").exists()
    state.replace(pa.table({"g": summed["g"], "n": summed["n_sum"], "name": summed["name_max"]}))
    found = sparkckpt.state(written(editor, tmp_path)).operator(0).table().to_arrow()
    assert found.sort_by("g")["n"].to_pylist() == [180, 190, 200, 171]


def test_lists_keep_their_order_and_their_counters(declared: Path, tmp_path: Path) -> None:
    editor = sparkckpt.edit(declared)
    editor.operator(0).state("seen").filter(pc.field("v") != 1)
    edited = written(editor, tmp_path)
    assert [(r["k"], r["index"], r["v"]) for r in rows_in(edited, "seen")] == [
        (k, i, v) for k in range(30) for i, v in enumerate(v for v in range(k % 3 + 1) if v != 1)
    ]
    counts = rows_in(edited, "$rowCounter_seen")
    assert [(r["k"], r["count"]) for r in counts] == [(k, 1 + (k % 3 == 2)) for k in range(30)]
    assert rows_in(edited, "total") == rows_in(declared, "total")


def test_counters_stay_when_only_the_schema_of_a_list_changes(
    declared: Path, tmp_path: Path
) -> None:
    editor = sparkckpt.edit(declared)
    editor.operator(0).state("seen").add_column("w", "string", "new")
    edited = written(editor, tmp_path)
    assert rows_in(edited, "$rowCounter_seen") == rows_in(declared, "$rowCounter_seen")
    assert [{**row, "w": "new"} for row in rows_in(declared, "seen")] == rows_in(edited, "seen")


def test_lists_are_replaced_by_their_places(declared: Path, tmp_path: Path) -> None:
    table = pa.table({"k": [1, 2, 1, 1], "index": [5, 0, 2, 3], "v": [10, 11, 12, 13]})
    editor = sparkckpt.edit(declared)
    editor.operator(0).state("seen").replace(table.to_reader(max_chunksize=1))
    found = rows_in(written(editor, tmp_path), "seen")
    assert [(r["k"], r["index"], r["v"]) for r in found] == [
        (1, 0, 12),
        (1, 1, 13),
        (1, 2, 10),
        (2, 0, 11),
    ]


def test_maps_are_transformed(declared: Path, tmp_path: Path) -> None:
    editor = sparkckpt.edit(declared)

    def doubled(table: pa.Table) -> pd.DataFrame:
        frame = table.to_pandas()
        return frame.assign(n=frame["n"] * 2, u=frame["u"] + "!")

    editor.operator(0).state("byUser").transform(doubled)
    found = rows_in(written(editor, tmp_path), "byUser")
    assert [(r["k"], r["u"], r["n"]) for r in found] == [
        (k, u, 2 * k) for k in range(30) for u in ("a!", "b!")
    ]


def test_state_is_dropped(declared: Path, tmp_path: Path) -> None:
    editor = sparkckpt.edit(declared)
    editor.operator(0).state("seen").drop()
    editor.operator(0).state("late").drop()
    edited = written(editor, tmp_path)
    counts = sparkckpt.state(edited).operator(0).states().to_pylist()
    assert {row["state"]: row["rows"] for row in counts} == {
        "byUser": 60,
        "total": 30,
        "late": 0,
        "seen": 0,
        "procTimers": 5,
        "$procTimers_timestampToKey": 5,
    }
    editor = sparkckpt.edit(declared)
    editor.operator(0).state("procTimers").drop()
    editor.write(tmp_path / "no timers")
    states = sparkckpt.state(tmp_path / "no timers").operator(0).states()["state"].to_pylist()
    assert not any("Timers" in state for state in states)
    editor = sparkckpt.edit(declared)
    editor.operator(0).drop()
    editor.write(tmp_path / "none")
    assert sum(sparkckpt.state(tmp_path / "none").states()["rows"].to_pylist()) == 0
    sparkckpt.restore(tmp_path / "none", tmp_path / "restored", parallelism=2)


def test_expiring_state_evolves_but_its_rows_stay(declared: Path, tmp_path: Path) -> None:
    editor = sparkckpt.edit(declared)
    state = editor.operator(0).state("late").add_column("y", "int", 3)
    with pytest.raises(UneditableStateError, match="it expires"):
        state.filter(pc.field("y") == 3)
    found = rows_in(written(editor, tmp_path), "late")
    assert {(r["x"], r["y"], r["ttl_expiration"].timestamp()) for r in found} == {(0.5, 3, 5.0)}


@pytest.mark.parametrize("without_files", [False, True])
def test_state_from_tables(tmp_path: Path, without_files: bool) -> None:
    like = variables(tmp_path / "like", without_files=without_files)
    numbers = range(100)
    report = sparkckpt.bootstrap(
        tmp_path / "first",
        {
            "total": pa.table({"k": numbers, "sum": numbers}),
            (0, "seen"): pd.DataFrame({"k": [7, 7, 8], "v": [3, 4, 5]}),
            "byUser": pa.table({"k": [1, 1], "u": ["a", "b"], "n": [1, 2]}),
        },
        like=like,
    )
    assert report.rows == 100 + 3 + 2 + 2
    first = tmp_path / "first"
    assert [(r["k"], r["sum"]) for r in rows_in(first, "total")] == [(i, i) for i in numbers]
    assert [(r["k"], r["index"], r["v"]) for r in rows_in(first, "seen")] == [
        (7, 0, 3),
        (7, 1, 4),
        (8, 0, 5),
    ]
    assert [r["count"] for r in rows_in(first, "$rowCounter_seen")] == [2, 1]
    assert [(r["u"], r["n"]) for r in rows_in(first, "byUser")] == [("a", 1), ("b", 2)]
    sparkckpt.restore(first, tmp_path / "restored", parallelism=5)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ({"k": ["a"], "g": [1]}, "no column n, name"),
        ({"k": ["a"], "g": [1], "n": [1], "name": [""], "x": [1]}, "no such column as 'x'"),
        ({"k": ["a"], "g": [1], "n": ["much"], "name": [""]}, "n is string"),
        ({"k": ["a"], "g": [1], "n": [1 << 40], "name": [""]}, "n is int64"),
    ],
)
def test_rows_that_do_not_fit_are_explained(
    grouped: Path, tmp_path: Path, rows: dict[str, list[Any]], why: str
) -> None:
    editor = sparkckpt.edit(grouped)
    editor.operator(0).state().replace(pa.table(rows))
    with pytest.raises(EditedRowsError, match=why) as error:
        editor.write(tmp_path / "edited")
    assert r"k (string), g (int32), n (int32)" in str(error.value)


def test_functions_that_give_nonsense_are_explained(grouped: Path, tmp_path: Path) -> None:
    for number, (predicate, function, why) in enumerate(
        [
            (lambda t: [1], None, "true or false"),
            (lambda t: pc.greater(t["n"], 3).slice(1), None, "true or false"),
            (None, lambda t: 7, "int is no Arrow table"),
        ]
    ):
        editor = sparkckpt.edit(grouped)
        state = editor.operator(0).state()
        _ = state.filter(predicate) if predicate else state.transform(function)
        with pytest.raises(EditedRowsError, match=why):
            editor.write(tmp_path / str(number))


def test_a_stream_is_not_taken_for_empty_state(grouped: Path, tmp_path: Path) -> None:
    editor = sparkckpt.edit(grouped)
    rows = pa.table({"k": ["a"], "g": [1], "n": [1], "name": ["x"]})
    editor.operator(0).state().replace(rows.to_reader())
    editor.write(tmp_path / "first")
    with pytest.raises(EditedRowsError, match="give another one"):
        editor.write(tmp_path / "second")


def test_changes_and_operator_state_go_along(tmp_path: Path) -> None:
    """Of a checkpoint with deltas; the state that no key has stays with its partition."""
    keyed_checkpoint(tmp_path / "query", 7)
    editor = sparkckpt.edit(tmp_path / "query", 6)
    editor.operator(0).state().filter(pc.field("n") == 6)
    edited = written(editor, tmp_path)
    expected = {k: n for k, n in state_after(6).items() if n == 6}
    rows = sparkckpt.state(edited).operator(0).table().to_arrow()
    assert dict(zip(rows["k"].to_pylist(), rows["n"].to_pylist(), strict=True)) == expected
    kept = sparkckpt.state(tmp_path / "query", 6).operator(0).operator_state()
    assert kept.num_rows and sparkckpt.state(edited).operator(0).operator_state() == kept
    dropping = sparkckpt.edit(tmp_path / "query", 6)
    dropping.operator(0).drop()
    dropping.write(tmp_path / "dropped")
    assert sparkckpt.state(tmp_path / "dropped").operator(0).operator_state().num_rows == 0


def test_keys_that_are_hashed_by_a_collation_are_not_guessed(tmp_path: Path) -> None:
    source = groups(tmp_path / "source", is_collated=True)
    editor = sparkckpt.edit(source)
    editor.operator(0).state().filter(pc.field("n") > 30)
    editor.write(tmp_path / "filtered")
    for number, steps in enumerate(
        [
            lambda s: s.transform(lambda t: t),
            lambda s: s.replace(s.schema.empty_table()),
            lambda s: s.rename_column("k", "id"),
        ]
    ):
        editor = sparkckpt.edit(source)
        steps(editor.operator(0).state())
        with pytest.raises(UneditableStateError, match="a collation"):
            editor.write(tmp_path / str(number))


def test_rows_that_arrow_cannot_hold_are_filtered(tmp_path: Path) -> None:
    """A deduplication's value is a null: no Arrow struct, but bytes."""
    source = deduplicated(tmp_path / "source")
    editor = sparkckpt.edit(source)
    state = editor.operator(0).state().filter(pc.field("k") >= 10)
    with pytest.raises(UneditableStateError, match="a type that Arrow cannot hold"):
        state.replace(pa.table({"k": [1]}))
    assert [r["k"] for r in rows_in(written(editor, tmp_path))] == list(range(10, 30))


CHANGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "no column": (lambda s: s.drop_column("x"), "there is none"),
    "there already": (lambda s: s.add_column("n", "long"), "of that name already"),
    "name taken": (lambda s: s.rename_column("n", "name"), "'name' already"),
    "narrower": (lambda s: s.widen_column("n", "short"), "not every integer is a short"),
    "text": (lambda s: s.widen_column("n", "string"), "not every integer is a string"),
    "default": (lambda s: s.add_column("x", "int", "a"), "'a' is no default"),
    "timeout": (lambda s: s.drop_column("timeout"), "Spark's own"),
    "exists": (lambda s: s.drop_column("exists"), "it is computed"),
    "the last": (lambda s: s.drop_column("n").drop_column("name"), "the only one"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_columns_that_cannot_be_changed_are_explained(grouped: Path, case: str) -> None:
    change, why = CHANGES[case]
    with pytest.raises(SchemaChangeError, match=why):
        change(sparkckpt.edit(grouped).operator(0).state())


def test_what_cannot_be_edited_is_refused(grouped: Path, declared: Path, tmp_path: Path) -> None:
    state = sparkckpt.edit(grouped).operator(0).state()
    with pytest.raises(UnknownTypeError, match="'variant'"):
        state.add_column("x", "variant")
    with pytest.raises(SchemaChangeError, match="other state has the same key"):
        sparkckpt.edit(declared).operator(0).state("total").widen_column("k", "double")
    with pytest.raises(UneditableStateError, match="together with others"):
        sparkckpt.edit(declared).operator(0).state("$rowCounter_seen").filter(pc.field("k") > 0)
    with pytest.raises(SavepointExistsError):
        sparkckpt.edit(grouped).write(grouped)
