"""The store of completed checkpoints: retention, failed writes and what a start finds."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from sparkckpt.coordinator import (
    CompletedCheckpointStore,
    FileCompletedCheckpointStore,
    InconsistentCheckpoint,
)
from sparkckpt.errors import CheckpointNotStoredError, PossiblyInconsistentCheckpointError
from sparkckpt.format.metadata import CheckpointMetadata, metadata_path, write_metadata
from sparkckpt.storage import Storage
from tests.unit.coordinator_samples import FakeQuery, Memory, Run


@pytest.fixture
def query() -> FakeQuery:
    return FakeQuery()


@pytest.fixture
def metadata(query: FakeQuery) -> CheckpointMetadata:
    run = Run(query)
    run.batch(0)
    run.work()
    store = FileCompletedCheckpointStore.at(query.storage)
    found: list[CheckpointMetadata] = []
    store.recover(found.append)
    store.discard(found[0].checkpoint_id)
    return found[0]


def ids(store: CompletedCheckpointStore) -> list[int]:
    return [checkpoint.checkpoint_id for checkpoint in store.all()]


def recovered(storage: Storage) -> FileCompletedCheckpointStore:
    store = FileCompletedCheckpointStore.at(storage)
    store.recover()
    return store


def break_on(storage: Storage, operation: str, after: bool = False) -> Callable[[], None]:
    """Makes an operation fail, before or after it has taken effect; returns what repairs it."""
    memory: Memory = storage.filesystem

    def fail(called: str, path: str) -> None:
        if called == operation and "chk-" in path:
            raise OSError("the connection was lost")

    def nothing(called: str, path: str) -> None:
        pass

    def repair() -> None:
        memory.before = memory.after = nothing

    if after:
        memory.after = fail
    else:
        memory.before = fail
    return repair


def test_the_oldest_are_subsumed(query: FakeQuery, metadata: CheckpointMetadata) -> None:
    store = FileCompletedCheckpointStore.at(query.storage, retained=2)
    for checkpoint_id in (3, 4, 7):
        added = store.add(replace(metadata, checkpoint_id=checkpoint_id))
        assert store.latest() == added
    assert [c.checkpoint_id for c in store.subsumed()] == [3]
    store.discard(3)
    assert ids(store) == [4, 7]
    assert store.subsumed() == []
    assert ids(recovered(query.storage)) == [4, 7]
    assert query.storage.list_names("_sparkckpt/chk-3") == []
    assert "chk-3" not in query.storage.list_names("_sparkckpt")


def test_what_is_recovered_equals_what_was_added(
    query: FakeQuery, metadata: CheckpointMetadata
) -> None:
    store = FileCompletedCheckpointStore.at(query.storage)
    added = store.add(metadata)
    found: list[CheckpointMetadata] = []
    again = FileCompletedCheckpointStore.at(query.storage)
    assert set(again.recover(found.append)) == {metadata.checkpoint_id}
    assert again.all() == [added]
    assert found == [metadata]


def test_a_write_that_fails_is_cleaned_up(query: FakeQuery, metadata: CheckpointMetadata) -> None:
    store = FileCompletedCheckpointStore.at(query.storage)
    break_on(query.storage, "write")
    with pytest.raises(CheckpointNotStoredError, match="the connection was lost"):
        store.add(metadata)
    assert store.all() == []
    assert store.inconsistent() == []
    assert [path for path in query.storage.find("_sparkckpt") if "chk-" in path] == []


def test_a_write_that_fails_after_all_bytes_have_landed_has_succeeded(
    query: FakeQuery, metadata: CheckpointMetadata
) -> None:
    store = FileCompletedCheckpointStore.at(query.storage)
    break_on(query.storage, "write", after=True)
    store.add(metadata)
    assert ids(store) == ids(recovered(query.storage)) == [metadata.checkpoint_id]


@pytest.mark.parametrize("whose", ["torn", "another's"])
def test_what_a_failed_write_leaves_goes_only_as_a_stray(
    query: FakeQuery, metadata: CheckpointMetadata, whose: str
) -> None:
    """It may be what another owner has written under the same id."""
    store = FileCompletedCheckpointStore.at(query.storage)
    memory: Memory = query.storage.filesystem
    path = metadata_path(metadata.checkpoint_id)
    content = b"half" if whose == "torn" else write_metadata(replace(metadata, timestamp_ms=7))

    def lose(operation: str, written: str) -> None:
        memory.after = lambda operation, path: None
        query.storage.write_atomic(path, content, overwrite=True)
        raise OSError("the connection was lost")

    memory.after = lose
    with pytest.raises(CheckpointNotStoredError):
        store.add(metadata)
    assert query.storage.read_all(path) == content
    assert store.strays() == []
    store.add(replace(metadata, checkpoint_id=metadata.checkpoint_id + 1))
    assert store.strays() == [metadata.checkpoint_id]


@pytest.mark.parametrize("landed", [True, False])
def test_a_write_of_unknown_outcome_is_kept_and_named(
    query: FakeQuery, metadata: CheckpointMetadata, landed: bool
) -> None:
    store = FileCompletedCheckpointStore.at(query.storage)
    memory: Memory = query.storage.filesystem

    def disconnect(operation: str, path: str) -> None:
        if "chk-" in path and (operation != "write" or not landed):
            raise OSError("the connection was lost")

    def fail(operation: str, path: str) -> None:
        raise OSError("the connection was lost")

    memory.before, memory.after = disconnect, fail
    with pytest.raises(PossiblyInconsistentCheckpointError, match="kept as it is"):
        store.add(metadata)
    assert store.all() == []
    (kept,) = store.inconsistent()
    assert (kept.checkpoint_id, kept.surely_failed) == (metadata.checkpoint_id, False)
    memory.before = memory.after = lambda operation, path: None
    assert ids(recovered(query.storage)) == ([metadata.checkpoint_id] if landed else [])


def test_an_id_that_is_taken_is_left_alone(query: FakeQuery, metadata: CheckpointMetadata) -> None:
    query.storage.write_atomic(metadata_path(metadata.checkpoint_id), b"of somebody else")
    with pytest.raises(CheckpointNotStoredError, match="exists already"):
        FileCompletedCheckpointStore.at(query.storage).add(metadata)
    content = query.storage.read_all(metadata_path(metadata.checkpoint_id))
    assert content == b"of somebody else"


def damaged(storage: Storage, metadata: CheckpointMetadata, what: str) -> None:
    data = write_metadata(replace(metadata, checkpoint_id=5))
    if what == "half written":
        storage.write_atomic(metadata_path(5), data[: len(data) // 2])
    elif what == "without metadata":
        storage.write_atomic("_sparkckpt/chk-5/._metadata.x.tmp", data)
    elif what == "of a newer format":
        storage.write_atomic(metadata_path(5), data[:8] + b"\x63\0\0\0" + data[12:])


@pytest.mark.parametrize("what", ["half written", "without metadata", "of a newer format"])
@pytest.mark.parametrize("newest", [True, False])
def test_what_a_start_finds_incomplete_is_named(
    query: FakeQuery, metadata: CheckpointMetadata, what: str, newest: bool
) -> None:
    store = FileCompletedCheckpointStore.at(query.storage)
    store.add(replace(metadata, checkpoint_id=4 if newest else 6))
    damaged(query.storage, metadata, what)
    assert set(store.recover()) == {5, 4 if newest else 6}
    assert ids(store) == [4 if newest else 6]
    (broken,) = store.inconsistent()
    assert isinstance(broken, InconsistentCheckpoint)
    assert broken.checkpoint_id == 5
    may_be_complete = what == "of a newer format"
    assert broken.surely_failed is (not newest and not may_be_complete)
    assert broken.may_hold_state is may_be_complete


@pytest.mark.parametrize("newest", [True, False])
def test_a_start_removes_only_what_surely_failed(
    query: FakeQuery, metadata: CheckpointMetadata, newest: bool
) -> None:
    store = FileCompletedCheckpointStore.at(query.storage)
    store.add(replace(metadata, checkpoint_id=4 if newest else 6))
    damaged(query.storage, metadata, "half written")
    run = Run(query)
    run.batch(1)
    run.work()
    assert query.storage.exists(metadata_path(5)) is newest
    # Never an id twice, whatever has become of it.
    assert run.recorder.completed[0].checkpoint_id == (6 if newest else 7)


def test_ids_begin_above_that_of_the_restored_checkpoint(query: FakeQuery) -> None:
    query.write("_sparkckpt/restored.json", b'{"formatVersion": 1, "checkpointId": 41}')
    run = Run(query)
    run.batch(0)
    run.work()
    assert [c.checkpoint_id for c in run.recorder.completed] == [42]
