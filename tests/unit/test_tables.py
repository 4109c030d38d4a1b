"""State as tables: all of it, parts of it and single keys, and what has changed in it."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import sparkckpt
from sparkckpt.coordinator.pins import pin_names, pin_path, process_of
from sparkckpt.errors import (
    CheckpointNotFoundError,
    CheckpointSubsumedError,
    CorruptStateError,
    DifferentStateError,
    FileMissingError,
    InvalidKeyError,
    InvalidKeyGroupsError,
    UnknownOperatorError,
    UnknownStateError,
)
from sparkckpt.format import OperatorSubtaskState
from sparkckpt.keygroups import KeyGroupRange
from sparkckpt.processes import ProcessId
from sparkckpt.storage import Storage
from sparkckpt.tables import StateTable, snapshot
from sparkckpt.tables.distributed import split
from sparkckpt.tables.reader import kept_state
from sparkckpt.tables.snapshot import StateSnapshot
from tests.unit.checkpoint_samples import operator_states
from tests.unit.format_samples import flipped
from tests.unit.state_samples import State, keyed_checkpoint, state_after

BATCHES = 7


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint")
    keyed_checkpoint(path, BATCHES)
    return path


@pytest.fixture
def table(checkpoint: Path) -> StateTable:
    return sparkckpt.state(checkpoint).operator(0).table()


def state_in(rows: pa.Table) -> State:
    found = {row["k"]: row["n"] for row in rows.to_pylist()}
    assert len(found) == rows.num_rows
    return found


def test_every_way_of_reading_gives_the_state(table: StateTable) -> None:
    expected = state_after(BATCHES)
    assert table.schema == pa.schema([("k", pa.string()), ("x", pa.float64()), ("n", pa.int64())])
    assert state_in(table.to_arrow()) == expected
    assert state_in(table.to_reader().read_all()) == expected
    assert dict(zip(table.to_pandas()["k"], table.to_pandas()["n"], strict=True)) == expected
    assert state_in(pa.table(table)) == expected
    assert state_in(pl.DataFrame(table).to_arrow()) == expected
    scanner = table.scanner(columns=["k", "n"], filter=pc.field("n") == 7)
    assert state_in(scanner.to_table()) == {k: n for k, n in expected.items() if n == 7}


def test_older_checkpoints_have_their_own_state(checkpoint: Path) -> None:
    for batches in (5, 6, 7):
        at_path = sparkckpt.state(f"{checkpoint}/_sparkckpt/chk-{batches}/")
        by_id = sparkckpt.state(checkpoint, batches)
        assert at_path.checkpoint_id == by_id.checkpoint_id == batches
        assert at_path.batch_id == batches - 1
        for reader in (at_path, by_id):
            assert state_in(reader.operator().table().to_arrow()) == state_after(batches)


def test_sql_may_name_the_state_twice(table: StateTable) -> None:
    expected = state_after(BATCHES)
    found = table.sql("select count(*) c, sum(a.n) s from state a join state b on a.k = b.k")
    assert isinstance(found, pa.Table)
    present = [n for k, n in expected.items() if k is not None]
    assert found.to_pylist() == [{"c": len(present), "s": sum(present)}]
    with pytest.raises(duckdb.Error):
        table.sql("select nonsense from state")


def test_a_key_is_found_in_its_key_group(table: StateTable) -> None:
    expected = state_after(BATCHES)
    for key, value in expected.items():
        assert table.lookup({"k": key, "x": 0.5}).to_pylist() == [{"k": key, "x": 0.5, "n": value}]
    assert table.lookup({"k": "no such key", "x": 0.5}).num_rows == 0
    assert table.lookup('{"x": "0.5", "k": null}').num_rows == (None in expected)


def test_operator_state_is_a_table_of_items(checkpoint: Path) -> None:
    rows = sparkckpt.state(checkpoint).operator(0).operator_state().to_pylist()
    assert [
        (r["state"], r["mode"], r["index"], r["item"]) for r in rows if r["partition"] == 1
    ] == [
        (state.name, state.mode, index, item)
        for state in operator_states(1, BATCHES)
        for index, item in enumerate(state.items)
    ]
    assert {row["partition"] for row in rows} == {0, 1}


def test_a_lookup_reads_one_key_group_only(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    original = Storage.read_range

    def read_range(self: Storage, path: str, offset: int, length: int) -> bytes:
        read.append(length)
        return original(self, path, offset, length)

    monkeypatch.setattr(Storage, "read_range", read_range)
    table = sparkckpt.state(checkpoint).operator(0).table()
    table.to_arrow()
    everything = sum(read)
    read.clear()
    assert table.lookup({"k": "key <8>", "x": 0.5}).num_rows == 1
    assert sum(read) < everything / 2


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ('{"k": 5, "x": 1}', "k cannot be 5"),
        ('{"k": "a", "x": "much"}', "x cannot be 'much'"),
        ('{"k": "a", "x": true}', "x cannot be True"),
        ('{"k": "a"}', "it names k."),
        ("[1]", "no JSON object"),
        ("k=1", "not JSON"),
    ],
)
def test_a_key_that_cannot_be_one_is_explained(table: StateTable, key: str, why: str) -> None:
    with pytest.raises(InvalidKeyError) as error:
        table.lookup(key)
    assert why in str(error.value)
    assert "k (string), x (double)" in str(error.value)


def test_key_groups_divide_the_state(table: StateTable) -> None:
    whole = table.with_key_groups().to_arrow()
    assert whole.column_names[0] == "key_group"
    low, high = table.key_groups("0-20"), table.key_groups("21-40,41-63")
    assert state_in(low.to_arrow()) | state_in(high.to_arrow()) == state_after(BATCHES)
    groups = low.with_key_groups().to_arrow()["key_group"]
    assert pc.min_max(groups).as_py()["max"] <= 20
    assert low.to_arrow().num_rows == pc.sum(pc.less_equal(whole["key_group"], 20)).as_py()
    assert table.key_groups(KeyGroupRange(3, 3)).ranges == table.key_groups(3).ranges


@pytest.mark.parametrize("wanted", ["64", "5-2", "-1", "a", "", "1-", "0-63,70"])
def test_key_groups_that_do_not_exist_are_refused(table: StateTable, wanted: str) -> None:
    with pytest.raises(InvalidKeyGroupsError, match="from 0 to 63"):
        table.key_groups(wanted)


@pytest.mark.parametrize("parts", [1, 2, 3, 64, 100])
def test_key_groups_are_split_evenly(parts: int) -> None:
    ranges = (KeyGroupRange(0, 9), KeyGroupRange(20, 63))
    found = split(ranges, parts)
    groups = [[g for one in part for g in range(one.first, one.last + 1)] for part in found]
    assert [g for part in groups for g in part] == [*range(10), *range(20, 64)]
    assert max(map(len, groups)) <= -(-54 // parts)


def test_the_head_stops_reading(table: StateTable) -> None:
    assert table.head(0).num_rows == 0
    assert table.head(3).num_rows == 3
    assert table.head(10_000).num_rows == len(state_after(BATCHES))


def test_what_there_is_not_is_named(checkpoint: Path, tmp_path: Path) -> None:
    reader = sparkckpt.state(checkpoint)
    with pytest.raises(UnknownOperatorError, match=r"no operator 7\. It has 0 \(stateStoreSave\)"):
        reader.operator(7)
    with pytest.raises(UnknownStateError, match=r"no state 'total'\. It has default"):
        reader.operator(0).table("total")
    with pytest.raises(CheckpointNotFoundError):
        sparkckpt.state(checkpoint, 99)
    keyed_checkpoint(tmp_path, 2, operators=(0, 1))
    two = sparkckpt.state(tmp_path)
    with pytest.raises(UnknownOperatorError, match="Which operator"):
        two.operator()
    assert two.states()["state"].to_pylist() == ["default", "left", "right"]
    assert {o.operator.operator_id for o in two.operators()} == {0, 1}


def test_damage_is_an_error_and_no_wrong_row(tmp_path: Path) -> None:
    keyed_checkpoint(tmp_path, BATCHES)
    files = sparkckpt.show_checkpoint(tmp_path).files["path"].to_pylist()
    path = tmp_path / "state" / next(f for f in files if f.endswith(".arrow"))
    data = path.read_bytes()
    path.write_bytes(flipped(data, len(data) // 2))
    table = sparkckpt.state(tmp_path).operator(0).table()
    for read in (table.to_arrow, table.scanner().to_table, lambda: table.sql("from state")):
        with pytest.raises(CorruptStateError, match=path.name):
            read()
    path.unlink()
    with pytest.raises(FileMissingError, match=path.name):
        sparkckpt.state(tmp_path).operator(0).table().to_arrow()


def test_state_in_memory_of_another_file_system() -> None:
    keyed_checkpoint(Storage.at("memory://state-tables/query"), BATCHES)
    table = sparkckpt.state("memory://state-tables/query").operator(0).table()
    assert state_in(table.to_arrow()) == state_after(BATCHES)


class Clock:
    """The wall clock of the tests' queries, which begins at 0."""

    def __call__(self) -> int:
        return 0


def test_a_running_query_does_not_delete_what_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "wall_clock", Clock())
    run = keyed_checkpoint(tmp_path, BATCHES, end=False)
    storage = run.query.storage
    table = sparkckpt.state(tmp_path).operator(0).table()
    batches = table.to_reader()
    first = next(batches)
    assert len(pin_names(storage)) == 1
    for batch in range(BATCHES, BATCHES + 8):
        run.batch(batch)
        run.work()
    assert not table.snapshot.is_there
    rows = pa.Table.from_batches([first, *batches], table.schema)
    assert state_in(rows) == state_after(BATCHES)
    assert pin_names(storage) == []
    with pytest.raises(CheckpointSubsumedError, match="checkpoint 7"):
        table.to_arrow()
    assert pin_names(storage) == []
    assert state_in(sparkckpt.state(tmp_path).operator(0).table().to_arrow()) == state_after(
        BATCHES + 8
    )


def test_a_checkpoint_is_kept_within_a_with_statement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "wall_clock", Clock())
    run = keyed_checkpoint(tmp_path, BATCHES, end=False)
    with sparkckpt.state(tmp_path) as reader:
        for batch in range(BATCHES, BATCHES + 8):
            run.batch(batch)
            run.work()
        (name,) = pin_names(run.query.storage)
        assert name.startswith("read-")
        assert state_in(reader.operator(0).table().to_arrow()) == state_after(BATCHES)
    assert pin_names(run.query.storage) == []


def test_the_next_checkpoint_is_kept_if_the_newest_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the moment that it was found and the one that its pin was laid."""
    monkeypatch.setattr(snapshot, "wall_clock", Clock())
    run = keyed_checkpoint(tmp_path, BATCHES, end=False)
    gone: list[int | None] = []
    lay = StateSnapshot._lay_pin

    def lay_late(self: StateSnapshot) -> str | None:
        if not gone:
            gone.append(self.checkpoint_id)
            for batch in range(BATCHES, BATCHES + 8):
                run.batch(batch)
                run.work()
        return lay(self)

    monkeypatch.setattr(StateSnapshot, "_lay_pin", lay_late)
    with kept_state(tmp_path) as reader:
        assert gone == [BATCHES]
        assert reader.batch_id == BATCHES + 7
        assert state_in(reader.operator().table().to_arrow()) == state_after(BATCHES + 8)
    assert pin_names(run.query.storage) == []


def test_the_pin_of_a_reader_can_be_cleaned_once_its_process_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "wall_clock", Clock())
    run = keyed_checkpoint(tmp_path, BATCHES, end=False)
    batches = sparkckpt.state(tmp_path).operator(0).table().to_reader()
    next(batches)
    run.coordinator.query_ended()
    run.work()
    storage = run.query.storage
    (name,) = pin_names(storage)
    pin = json.loads(storage.read_all(pin_path(name)))
    assert process_of(storage, name) == ProcessId.here()
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    for kept in (pin, {**pin, "host": "elsewhere", "pid": ended.pid}):
        storage.write_atomic(pin_path(name), json.dumps(kept).encode(), overwrite=True)
        sparkckpt.clean(tmp_path, dry_run=False)
        assert pin_names(storage) == [name]
    killed = {**pin, "pid": ended.pid}
    storage.write_atomic(pin_path(name), json.dumps(killed).encode(), overwrite=True)
    removed = sparkckpt.clean(tmp_path, dry_run=False)["path"].to_pylist()
    assert [path for path in removed if "pins/read-" in path]
    assert pin_names(run.query.storage) == []


def test_a_stopped_query_gets_no_pin(table: StateTable) -> None:
    batches = table.to_reader()
    next(batches)
    assert pin_names(table.snapshot.source.storage) == []


def test_a_diff_is_what_has_changed(checkpoint: Path) -> None:
    for before, after in [(5, 7), (7, 5), (6, 7), (7, 7)]:
        old, new = state_after(before), state_after(after)
        difference = sparkckpt.diff(
            f"{checkpoint}/_sparkckpt/chk-{before}", sparkckpt.state(checkpoint, after)
        )
        found = {row["k"]: row for row in difference.to_arrow().to_pylist()}
        assert set(found) == {k for k in old.keys() | new.keys() if old.get(k) != new.get(k)}
        for key, row in found.items():
            kinds = {(False, True): "added", (True, False): "removed", (True, True): "changed"}
            assert row["change"] == kinds[key in old, key in new]
            assert row["before"] == ({"n": old[key]} if key in old else None)
            assert row["after"] == ({"n": new[key]} if key in new else None)
        assert sum(difference.summary().values()) == len(found)
        assert difference.head(2).num_rows == min(2, len(found))


def test_a_diff_does_not_read_what_is_the_same(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    difference = sparkckpt.diff(checkpoint, checkpoint)
    schema = difference.schema
    monkeypatch.setattr(Storage, "read_range", None)
    assert difference.to_arrow() == schema.empty_table()


def test_a_state_of_which_there_is_nothing(tmp_path: Path) -> None:
    """It has no rows, for whoever asks, and all keys of another are new to it."""
    keyed_checkpoint(tmp_path, 3)
    full = sparkckpt.state(tmp_path).operator(0)
    nothing = replace(full.operator, subtasks=tuple(map(without_files, full.operator.subtasks)))
    empty = replace(full, operator=nothing)
    assert [name.name for name in empty.names] == ["default"]
    table = empty.table()
    assert table.to_arrow().num_rows == table.head(3).num_rows == 0
    assert table.lookup({"k": "a", "x": 1.0}).num_rows == 0
    operators = (nothing,)
    metadata = replace(full.snapshot.metadata, operator_states=operators)
    before = sparkckpt.StateReader(replace(full.snapshot, metadata=metadata))
    assert sparkckpt.diff(before, tmp_path).summary()["added"] == len(state_after(3))
    assert sparkckpt.diff(tmp_path, before).summary()["removed"] == len(state_after(3))
    assert sparkckpt.diff(before, before).to_arrow().num_rows == 0


def without_files(subtask: OperatorSubtaskState) -> OperatorSubtaskState:
    return replace(subtask, handles=tuple(replace(h, families=()) for h in subtask.handles))


def test_different_states_are_not_compared(tmp_path: Path) -> None:
    keyed_checkpoint(tmp_path, 2, operators=(0, 1))
    reader = sparkckpt.state(tmp_path)
    with pytest.raises(DifferentStateError, match="stateStoreSave, the other of symmetricHashJoin"):
        sparkckpt.StateDiff(reader.operator(0).table(), reader.operator(1).table("left"))
    with pytest.raises(DifferentStateError, match="their keys are"):
        left, other = reader.operator(1).table("left"), reader.operator(1).table("right")
        narrowed = other.shape.columns[1:]
        object.__setattr__(other.shape, "columns", narrowed)
        sparkckpt.StateDiff(left, other)
