"""A savepoint holds the state of its checkpoint, needs nothing else, and is restored anywhere."""

import contextlib
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.compute as pc
import pytest

import sparkckpt
from sparkckpt.coordinator.pins import orphaned_pins, pin_names
from sparkckpt.errors import (
    CheckpointNotFoundError,
    IsASavepointError,
    NotACheckpointError,
    SavepointExistsError,
    UnfinishedSavepointError,
)
from sparkckpt.format import CheckpointMetadata, StateHandle, write_metadata
from sparkckpt.format.operatorstate import OperatorStateItems
from sparkckpt.format.operatorstatefile import load_operator_states, write_operator_state
from sparkckpt.restoration.source import Source, take_snapshot
from sparkckpt.savepoints import merging
from sparkckpt.storage import Storage
from tests.unit.checkpoint_samples import checkpoints_at
from tests.unit.restore_samples import (
    Killed,
    Rows,
    copy_of,
    killed_at,
    loaded_rows,
    rows_in,
    sample,
)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sample(tmp_path_factory.mktemp("original"))


@pytest.fixture
def source(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "source"))


def metadata_of(savepoint: Path | str) -> CheckpointMetadata:
    return take_snapshot(Source.at(savepoint), lambda: 0).metadata


def rows_of(savepoint: Path | str) -> Rows:
    metadata = metadata_of(savepoint)
    return rows_in(Storage.at(savepoint), metadata.operator_states, 2)


def is_sound(savepoint: Path | str) -> bool:
    return bool(sparkckpt.verify(savepoint).num_rows == 0)


def restored(savepoint: Path | str, target: Path | str, **options: Any) -> tuple[int, Rows]:
    sparkckpt.restore(savepoint, target, **options)
    return loaded_rows(Storage.at(target))


def test_it_has_the_state_in_full_files(source: Path, tmp_path: Path) -> None:
    _, rows = loaded_rows(Storage.at(source))
    report = sparkckpt.savepoint(source, tmp_path / "sp", name="before the upgrade")
    assert rows_of(tmp_path / "sp") == rows
    assert is_sound(tmp_path / "sp")
    metadata = metadata_of(tmp_path / "sp")
    files = [f for h in metadata.handles for family in h.families for f in family.files]
    assert (
        len(files) == report.files == len(metadata.operator_states[1].subtasks[0].handles) * 2 + 2
    )
    assert all(file.base and not file.inlined and file.path[0] != "/" for file in files)
    assert {f.path for f in files} == {
        str(path.relative_to(tmp_path / "sp/state"))
        for path in (tmp_path / "sp/state").rglob("*.arrow")
    }
    assert (report.batch_id, report.name) == (6, "before the upgrade")
    assert report.rows == sum(map(len, rows.values()))
    assert report.bytes == sum(f.length for f in files)


def test_any_arrow_tool_opens_it(source: Path, tmp_path: Path) -> None:
    sparkckpt.savepoint(source, tmp_path / "sp")
    for path in (tmp_path / "sp/state").rglob("*.arrow"):
        table = pa.ipc.open_file(path).read_all()
        assert pc.all(pc.equal(table["op"], 0)).as_py()
        assert set(table["value"].combine_chunks().field("n").to_pylist()) == {7}


@pytest.mark.parametrize("mode", ["no-claim", "claim", "copy"])
def test_it_is_restored_where_it_was_moved_to(source: Path, tmp_path: Path, mode: str) -> None:
    _, rows = loaded_rows(Storage.at(source))
    sparkckpt.savepoint(source, tmp_path / "sp")
    shutil.rmtree(source)
    moved = Path(shutil.move(tmp_path / "sp", tmp_path / "elsewhere"))
    assert is_sound(moved)
    assert restored(moved, tmp_path / "target", mode=mode, parallelism=5) == (5, rows)
    for path in ("sources/0/1", "sources/1/deep/4.compact"):
        assert (tmp_path / "target" / path).read_bytes() == path.encode()
    if mode == "copy":
        shutil.rmtree(moved)
        assert loaded_rows(Storage.at(tmp_path / "target")) == (5, rows)


def test_a_planned_batch_goes_along(source: Path, tmp_path: Path) -> None:
    sparkckpt.savepoint(source, tmp_path / "sp")
    report = sparkckpt.restore(tmp_path / "sp", tmp_path / "target", parallelism=3)
    assert report.planned_batch_id == 7
    planned = (tmp_path / "target/offsets/7").read_text()
    assert planned == (source / "offsets/7").read_text().replace('"2"', '"3"')
    older = sparkckpt.savepoint(source, tmp_path / "older", checkpoint_id=report.checkpoint_id - 1)
    assert older.batch_id == 5
    again = sparkckpt.restore(tmp_path / "older", tmp_path / "rollback")
    assert again.planned_batch_id is None


def test_of_a_running_query(tmp_path: Path) -> None:
    """It has no lease to respect, and leaves no pin behind."""
    query = checkpoints_at(tmp_path / "source", end=False)
    names: list[int] = []

    def pinned(done: int, total: int) -> None:
        names.append(len(pin_names(query.storage)))

    report = sparkckpt.savepoint(tmp_path / "source", tmp_path / "sp", progress=pinned)
    assert names and set(names) == {1}
    assert not pin_names(query.storage)
    assert report.batch_id == 6


def test_of_a_query_that_was_restored(source: Path, tmp_path: Path) -> None:
    """Its state still lies elsewhere, and in slices."""
    rows = loaded_rows(Storage.at(source))[1]
    sparkckpt.restore(source, tmp_path / "restored", parallelism=3)
    sparkckpt.savepoint(tmp_path / "restored", tmp_path / "sp")
    shutil.rmtree(source)
    assert rows_of(tmp_path / "sp") == rows
    assert is_sound(tmp_path / "sp")
    sparkckpt.savepoint(tmp_path / "sp", tmp_path / "of a savepoint")
    assert rows_of(tmp_path / "of a savepoint") == rows


def test_large_state_is_merged_in_parts(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = loaded_rows(Storage.at(source))[1]
    monkeypatch.setattr(merging, "ROWS_PER_PART", 7)
    calls: list[tuple[int, int]] = []
    sparkckpt.savepoint(
        source, tmp_path / "sp", progress=lambda *told: calls.append(told), threads=3
    )
    metadata = metadata_of(tmp_path / "sp")
    handles = list(metadata.handles)
    lists = [family.files for handle in handles for family in handle.families]
    assert max(map(len, lists)) > 5
    assert not any(file.base for files in lists for file in files)
    assert calls[0][0] == 0 and calls[-1][0] == calls[-1][1] > len(handles)
    assert rows_of(tmp_path / "sp") == rows
    assert is_sound(tmp_path / "sp")
    assert restored(tmp_path / "sp", tmp_path / "target", parallelism=7) == (7, rows)


def test_in_memory_and_back(source: Path, tmp_path: Path, memory: str) -> None:
    rows = loaded_rows(Storage.at(source))[1]
    sparkckpt.savepoint(source, f"{memory}/sp")
    assert is_sound(f"{memory}/sp")
    assert restored(f"{memory}/sp", tmp_path / "target", parallelism=3) == (3, rows)


@pytest.fixture
def memory() -> Iterator[str]:
    filesystem = fsspec.filesystem("memory")
    yield "memory://savepoints"
    with contextlib.suppress(FileNotFoundError):
        filesystem.rm("/savepoints", recursive=True)


def test_it_is_listed_and_shown_but_no_query_s(source: Path, tmp_path: Path) -> None:
    report = sparkckpt.savepoint(source, tmp_path / "sp", name="weekly")
    (row,) = sparkckpt.list_checkpoints(tmp_path / "sp").to_pylist()
    assert (row["checkpoint_id"], row["status"]) == (report.checkpoint_id, "savepoint")
    shown = sparkckpt.show_checkpoint(tmp_path / "sp")
    assert shown.savepoint == "weekly"
    assert shown.files.num_rows == report.files
    with pytest.raises(IsASavepointError, match="sparkckpt restore"):
        sparkckpt.clean(tmp_path / "sp")
    with pytest.raises(IsASavepointError):
        sparkckpt.rescale(tmp_path / "sp", 3)


@pytest.mark.parametrize("after", [False, True])
def test_killed_at_any_point(
    original: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool
) -> None:
    """There is no savepoint, or a whole one; the next try is clean, and no pin stays."""
    _, rows = loaded_rows(Storage.at(original))
    monkeypatch.setattr(merging, "ROWS_PER_PART", 15)
    outcomes: Counter[bool] = Counter()
    for number in range(1, 60):
        source, target = copy_of(original, f"source{number}-{after}"), tmp_path / f"sp{number}"
        with killed_at(monkeypatch, number, after) as calls, contextlib.suppress(Killed):
            sparkckpt.savepoint(source, target, threads=2)
        shutil.copytree(source, tmp_path / "before")
        try:
            done = is_sound(target)
        except (UnfinishedSavepointError, NotACheckpointError):
            done = False
            for use in (sparkckpt.show_checkpoint, sparkckpt.list_checkpoints):
                with pytest.raises((UnfinishedSavepointError, NotACheckpointError)):
                    use(target)
        outcomes[done] += 1
        if done:
            with pytest.raises(SavepointExistsError, match="is a savepoint already"):
                sparkckpt.savepoint(source, target)
            # A pin that is left behind, `clean` removes.
            assert set(pin_names(Storage.at(source))) == set(orphaned_pins(Storage.at(source)))
        else:
            sparkckpt.savepoint(source, target)
            assert not pin_names(Storage.at(source))
        assert rows_of(target) == rows
        assert is_sound(target)
        shutil.rmtree(tmp_path / "before")
        if calls() < number:
            break
    assert outcomes[False] > 10 and outcomes[True] >= 1


def test_a_pin_that_was_left_is_removed_once_it_is_an_orphan(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with killed_at(monkeypatch, 6), contextlib.suppress(Killed):
        sparkckpt.savepoint(source, tmp_path / "sp")
    storage = Storage.at(source)
    assert len(pin_names(storage)) == 1
    assert not orphaned_pins(storage), "the try may go on"
    sparkckpt.dispose(tmp_path / "sp")
    assert not pin_names(storage)
    assert not (tmp_path / "sp").exists()


def test_a_checkpoint_that_is_gone_before_it_is_pinned(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A newer one is taken; unless this very one was asked for."""
    newest = max(source.glob("_sparkckpt/chk-*"), key=lambda path: int(path.name[4:]))
    write = Storage.write_atomic

    def subsuming(self: Storage, path: str, *arguments: Any, **options: Any) -> None:
        write(self, path, *arguments, **options)
        if path.startswith("_sparkckpt/pins") and newest.exists():
            shutil.rmtree(newest)

    monkeypatch.setattr(Storage, "write_atomic", subsuming)
    number = int(newest.name[4:])
    with pytest.raises(CheckpointNotFoundError):
        sparkckpt.savepoint(source, tmp_path / "one", checkpoint_id=number)
    assert not pin_names(Storage.at(source))
    shutil.copytree(source, tmp_path / "again")
    report = sparkckpt.savepoint(source, tmp_path / "any")
    assert report.batch_id == 6, "the last committed batch, from its handles"
    assert not pin_names(Storage.at(source))


def test_what_a_savepoint_may_not_be_written_over(source: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/precious").write_text("x")
    with pytest.raises(SavepointExistsError, match="not empty: it holds precious"):
        sparkckpt.savepoint(source, tmp_path / "full")
    with pytest.raises(SavepointExistsError):
        sparkckpt.savepoint(source, source)
    with pytest.raises(SavepointExistsError, match="delete a savepoint as orphaned"):
        sparkckpt.savepoint(source, source / "state/sp")
    assert not (source / "state/sp").exists()
    assert (tmp_path / "full/precious").read_text() == "x"
    assert {path.name for path in (tmp_path / "full").iterdir()} == {"precious"}


def test_damaged_state_makes_no_savepoint(source: Path, tmp_path: Path) -> None:
    draw = random.Random(1)
    metadata = metadata_of(source)
    path = draw.choice([f.path for h in metadata.handles for m in h.families for f in m.files])
    data = bytearray((source / "state" / path).read_bytes())
    for position in range(40, len(data)):
        data[position] ^= 0xFF
    (source / "state" / path).write_bytes(data)
    with pytest.raises(sparkckpt.errors.CorruptStateError, match=path):
        sparkckpt.savepoint(source, tmp_path / "sp")
    with pytest.raises(UnfinishedSavepointError):
        sparkckpt.restore(tmp_path / "sp", tmp_path / "target")
    assert not pin_names(Storage.at(source))


def test_operator_state_goes_along(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a file of its own, once a store, however many parts the keyed state is merged in."""
    metadata = metadata_of(source)
    state = Storage.at(source / "state")

    def given(handle: StateHandle) -> StateHandle:
        if handle.operator_id != 1 or handle.store_name != "left":
            return handle
        items = (f"item of {handle.partition}".encode(), b"")
        states = [OperatorStateItems("seen", "split", items)]
        states.append(OperatorStateItems("rules", "union", (b"r",), inherited=True))
        path = f"1/{handle.partition}/left/7_x.operator-state"
        return replace(handle, operator_state=write_operator_state(state, path, states))

    operators = tuple(
        replace(
            operator,
            subtasks=tuple(
                replace(subtask, handles=tuple(map(given, subtask.handles)))
                for subtask in operator.subtasks
            ),
        )
        for operator in metadata.operator_states
    )
    metadata = replace(metadata, operator_states=operators)
    path = source / f"_sparkckpt/chk-{metadata.checkpoint_id}/_metadata"
    path.write_bytes(write_metadata(metadata))
    expected = load_operator_states(state, metadata.handles)
    assert len(expected) == 2
    monkeypatch.setattr(merging, "ROWS_PER_PART", 7)
    report = sparkckpt.savepoint(source, tmp_path / "sp", checkpoint_id=metadata.checkpoint_id)
    shutil.rmtree(source)
    taken = metadata_of(tmp_path / "sp")
    assert load_operator_states(Storage.at(tmp_path / "sp/state"), taken.handles) == expected
    assert is_sound(tmp_path / "sp")
    assert len(list((tmp_path / "sp/state").rglob("*.operator-state"))) == 2
    assert report.files == len([f for f in (tmp_path / "sp/state").rglob("*") if f.is_file()])
    sparkckpt.restore(tmp_path / "sp", tmp_path / "target", parallelism=3, mode="copy")
    assert len(list((tmp_path / "target/state").rglob("*.operator-state"))) == 2


def test_its_state_is_read_as_tables(source: Path, tmp_path: Path) -> None:
    before = sparkckpt.state(source).states().to_pylist()
    sparkckpt.savepoint(source, tmp_path / "sp")
    with sparkckpt.state(tmp_path / "sp") as state:
        assert [(s["operator_id"], s["state"]) for s in state.states().to_pylist()] == [
            (s["operator_id"], s["state"]) for s in before
        ]
