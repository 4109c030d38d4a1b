"""A restored or rescaled query: its checkpoints, and what becomes of the files it came from."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sparkckpt.coordinator import FileCompletedCheckpointStore
from sparkckpt.coordinator.committed import CommittedState
from sparkckpt.coordinator.coordinator import RETRY_MS, SWEEP_INTERVAL_MS
from sparkckpt.coordinator.manifests import orphaned_manifests
from sparkckpt.coordinator.restored import read_restored
from sparkckpt.errors import CorruptStateError, UnsupportedFormatVersionError
from sparkckpt.format import CheckpointMetadata, StateHandle
from sparkckpt.format.manifest import manifest_of, manifest_path, new_manifest_id
from sparkckpt.storage import Storage
from tests.unit.checkpoint_samples import StatefulQuery
from tests.unit.coordinator_samples import FakeQuery, Run
from tests.unit.manifest_samples import (
    PIN,
    foreign_files,
    operators_of,
    own_files,
    rescale,
    restore,
    write_manifest,
)


def a_query(location: Path, batches: int = 6) -> StatefulQuery:
    query = StatefulQuery(Storage.at(location), operators=(0, 1), min_batches=2)
    run_batches(query, batches)
    return query


def run_batches(query: FakeQuery, count: int, retained: int = 2) -> Run:
    """A run of the query from its start to its end."""
    run = Run(query, run_id=f"run {query.latest}", retained=retained)
    run.work()
    for batch in range(query.latest + 1, query.latest + 1 + count):
        run.batch(batch)
        run.work()
    run.coordinator.query_ended()
    run.work()
    return run


def checkpoints(query: FakeQuery) -> list[CheckpointMetadata]:
    found: list[CheckpointMetadata] = []
    FileCompletedCheckpointStore.at(query.storage).recover(found.append)
    return found


def needed(query: FakeQuery) -> list[StateHandle]:
    """The handles of every checkpoint and of every version that Spark can load; those that come
    from a manifest under its id, since they are no files."""
    retained = [
        replace(handle, id=manifest_of(metadata) or handle.id)
        for metadata in checkpoints(query)
        for handle in metadata.handles
    ]
    return retained + [h for handles in query.committed.values() for h in handles.values()]


def pin_exists(source: FakeQuery) -> bool:
    return source.storage.exists(f"_sparkckpt/pins/{PIN}.json")


@pytest.mark.parametrize("parallelism", [1, 2, 3, 5])
def test_a_rescaled_query_keeps_exactly_what_it_needs(tmp_path: Path, parallelism: int) -> None:
    query = a_query(tmp_path)
    manifest = rescale(query, parallelism)
    for batches in (1, 1, 12):
        run = run_batches(query, batches)
        assert run.recorder.aborted == []
        assert own_files(needed(query)) <= query.state_files()
        assert checkpoints(query)[-1].operator_states[0].parallelism == parallelism
    run_batches(query, 0)
    assert query.state_files() == own_files(needed(query))
    assert not query.storage.exists(manifest_path(manifest))


def test_a_manifest_stays_while_the_commit_log_names_it(tmp_path: Path) -> None:
    query = a_query(tmp_path)
    batch = query.latest
    manifest = rescale(query, 3)
    named = [True]
    while named[-1]:
        run_batches(query, 1)
        named.append(query.storage.exists(f"commits/{batch}"))
        run_batches(query, 0)
        assert query.storage.exists(manifest_path(manifest)) is named[-1]
    assert len(named) == query.min_batches + 2


def test_a_batch_that_names_a_manifest_becomes_a_checkpoint(tmp_path: Path) -> None:
    query = a_query(tmp_path)
    batch, operators = query.latest, operators_of(query, query.latest)
    (newest,) = [m.checkpoint_id for m in checkpoints(query) if m.batch_id == batch]
    FileCompletedCheckpointStore.at(query.storage).discard(newest)
    manifest = rescale(query, 4)
    run = run_batches(query, 0)
    assert [c.batch_id for c in run.recorder.completed] == [batch]
    metadata = checkpoints(query)[-1]
    assert metadata.operator_states == operators
    assert manifest_of(metadata) == manifest
    assert (metadata.statistics.new_files, metadata.statistics.delta_bytes) == (0, 0)
    assert metadata.statistics.state_bytes > 0
    # One that has a checkpoint gets no other.
    assert run_batches(query, 0).recorder.completed == []


def test_a_restored_query_has_its_first_checkpoint_at_once(tmp_path: Path) -> None:
    source = a_query(tmp_path / "source")
    target = restore(source, tmp_path / "target", "no-claim")
    run = run_batches(target, 1)
    first, second = run.recorder.completed
    assert (first.checkpoint_id, first.batch_id) == (41, source.latest)
    assert (second.checkpoint_id, second.batch_id) == (42, source.latest + 1)
    assert [m.operator_states[0].parallelism for m in checkpoints(target)] == [2, 3]


@pytest.mark.parametrize("scheme", ["file://", "file:", ""])
def test_without_a_claim_the_source_is_pinned_until_nothing_needs_it(
    tmp_path: Path, scheme: str
) -> None:
    source = a_query(tmp_path / "source")
    before = source.state_files()
    target = restore(source, tmp_path / "target", "no-claim", scheme=scheme)
    pinned = []
    for _ in range(12):
        run_batches(target, 1)
        pinned.append(pin_exists(source))
        restored = read_restored(target.storage)
        assert restored is not None and restored.settled is not pinned[-1]
        assert pinned[-1] or not foreign_files(needed(target))
        assert source.state_files() == before
    assert pinned[0] and not pinned[-1]
    assert restored is not None and (restored.checkpoint_id, restored.mode) == (40, "no-claim")
    run_batches(target, 0)
    assert target.state_files() == own_files(needed(target))


def test_pins_of_the_target_may_hold_files_of_the_source(tmp_path: Path) -> None:
    source = a_query(tmp_path / "source")
    target = restore(source, tmp_path / "target", "no-claim")
    run_batches(target, 1)
    url = f"file:{source.storage.root}/state/{sorted(source.state_files())[0]}"
    target.write(
        "_sparkckpt/pins/other.json", json.dumps({"formatVersion": 1, "files": [url]}).encode()
    )
    run_batches(target, 12)
    assert foreign_files(needed(target)) == set() and pin_exists(source)
    target.storage.delete(["_sparkckpt/pins/other.json"])
    run_batches(target, 1)
    assert not pin_exists(source)


def test_as_long_as_it_is_not_known_what_is_needed_the_pin_stays(tmp_path: Path) -> None:
    source = a_query(tmp_path / "source")
    target = restore(source, tmp_path / "target", "no-claim")
    manifest = target.storage.list_names("_sparkckpt/manifests")[0]
    content = target.storage.read_all(manifest_path(manifest))
    target.write(manifest_path(manifest), b"damaged")
    run = run_batches(target, 0)
    assert len(run.recorder.aborted) == 1
    assert pin_exists(source)
    target.write(manifest_path(manifest), content)
    assert len(run_batches(target, 0).recorder.completed) == 1


def lay_in(source: FakeQuery, *versions: int) -> None:
    for version in versions:
        orphan = f"0/0/{version}_0a0a0a0a-0000-4000-8000-000000000001.delta.arrow"
        source.write(f"state/{orphan}", b"orphan")


@pytest.mark.parametrize("scheme", ["file://", "file:"])
def test_a_claimed_source_is_cleaned_up_by_the_target(tmp_path: Path, scheme: str) -> None:
    source = a_query(tmp_path / "source")
    target = restore(source, tmp_path / "target", "claim", scheme=scheme)
    lay_in(source, 1, 9)
    others = set(source.storage.find("")) - {f"state/{path}" for path in source.state_files()}
    for _ in range(12):
        run_batches(target, 1)
        assert foreign_files(needed(target)) <= source.state_files()
        assert own_files(needed(target)) <= target.state_files()
    run_batches(target, 0)
    assert source.state_files() == set()
    assert others <= set(source.storage.find(""))
    restored = read_restored(target.storage)
    assert restored is not None and restored.settled


def test_what_a_claimed_source_needs_by_its_pins_stays(tmp_path: Path) -> None:
    source = a_query(tmp_path / "source")
    pinned = sorted(source.state_files())[:3]
    pin = {"formatVersion": 1, "files": pinned}
    source.write("_sparkckpt/pins/savepoint.json", json.dumps(pin).encode())
    target = restore(source, tmp_path / "target", "claim")
    run_batches(target, 12)
    run_batches(target, 0)
    assert source.state_files() == set(pinned)
    source.storage.delete(["_sparkckpt/pins/savepoint.json"])
    run_batches(target, 1)
    assert source.state_files() == set()


@pytest.mark.parametrize("claimed", ["by another", "by nobody"])
def test_a_copy_of_the_target_does_not_delete_in_the_source(tmp_path: Path, claimed: str) -> None:
    source = a_query(tmp_path / "source")
    target = restore(source, tmp_path / "target", "claim")
    if claimed == "by another":
        source.write("_sparkckpt/claimed.json", b'{"formatVersion": 1, "by": "file:///other"}')
    else:
        source.storage.delete(["_sparkckpt/claimed.json"])
    before = source.state_files()
    run_batches(target, 12)
    run_batches(target, 0)
    assert source.state_files() == before


def break_file(query: FakeQuery, path: str) -> None:
    """Storage neither hands the file out nor deletes it."""
    query.storage.delete([path])
    (Path(query.storage.root) / path / "something").mkdir(parents=True)


def mend_file(query: FakeQuery, path: str, content: bytes) -> None:
    (Path(query.storage.root) / path / "something").rmdir()
    (Path(query.storage.root) / path).rmdir()
    query.write(path, content)


def test_a_claimed_source_that_cannot_be_read_costs_no_checkpoint(tmp_path: Path) -> None:
    source = a_query(tmp_path / "source")
    target = restore(source, tmp_path / "target", "claim")
    claimed = source.storage.read_all("_sparkckpt/claimed.json")
    break_file(source, "_sparkckpt/claimed.json")
    before = source.state_files()
    run = Run(target, "the only run", retained=2)
    run.work()
    for batch in range(target.latest + 1, target.latest + 13):
        run.batch(batch)
        run.work()
    assert len(run.recorder.completed) == 13 and run.recorder.aborted == []
    assert foreign_files(needed(target)) == set()
    assert source.state_files() == before
    restored = read_restored(target.storage)
    assert restored is not None and not restored.settled
    # The same run makes up for it.
    mend_file(source, "_sparkckpt/claimed.json", claimed)
    for _ in range(2):
        run.pass_time(SWEEP_INTERVAL_MS)
    assert source.state_files() == set()
    restored = read_restored(target.storage)
    assert restored is not None and restored.settled


def test_a_pin_that_cannot_be_removed_waits_and_hinders_no_other(tmp_path: Path) -> None:
    source, broken, other = (a_query(tmp_path / name) for name in ("source", "broken", "other"))
    target = restore(source, tmp_path / "target", "no-claim")
    pin = f"_sparkckpt/pins/{PIN}.json"
    content = source.storage.read_all(pin)
    other.write(pin, content)
    fields = json.loads(target.storage.read_all("_sparkckpt/restored.json"))
    pinned = [query.storage.where("") for query in (source, broken, other)]
    target.write("_sparkckpt/restored.json", json.dumps({**fields, "pinned": pinned}).encode())
    break_file(broken, pin)
    run = run_batches(target, 12)
    assert len(run.recorder.completed) == 13 and run.recorder.aborted == []
    assert not pin_exists(source) and not pin_exists(other)
    restored = read_restored(target.storage)
    assert restored is not None and not restored.settled
    mend_file(broken, pin, content)
    run_batches(target, 1)
    assert not pin_exists(broken)
    restored = read_restored(target.storage)
    assert restored is not None and restored.settled


@pytest.mark.parametrize("backend", [True, False])
def test_nothing_is_taken_over_while_a_restore_is_not_finished(
    tmp_path: Path, backend: bool
) -> None:
    source = a_query(tmp_path / "source")
    target = restore(source, tmp_path / "target", "no-claim")
    target.write("_sparkckpt/restoring.json", b'{"formatVersion": 1}')
    content = target.storage.read_all("_sparkckpt/backend.json")
    if not backend:
        target.storage.delete(["_sparkckpt/backend.json"])
    before = target.storage.find("_sparkckpt")
    run = Run(target)
    run.work()
    run.pass_time(RETRY_MS)
    run.batch(target.latest + 1)
    run.pass_time(RETRY_MS)
    assert target.storage.find("_sparkckpt") == before
    target.write("_sparkckpt/backend.json", content)
    target.storage.delete(["_sparkckpt/restoring.json"])
    run.pass_time(RETRY_MS)
    assert [c.checkpoint_id for c in run.recorder.completed] == [41, 42]


def test_manifests_that_nothing_names_are_orphans(tmp_path: Path) -> None:
    query = a_query(tmp_path)
    operators = operators_of(query, query.latest)
    unused = write_manifest(query.storage, query.latest, operators)
    used = rescale(query, 3)
    temporary = f"_sparkckpt/manifests/.{new_manifest_id()}.{'0' * 8}-0000-0000-0000-{'0' * 12}.tmp"
    damaged = manifest_path(new_manifest_id())
    for path in (temporary, damaged, "_sparkckpt/manifests/notes.txt"):
        query.write(path, b"?")
    found = orphaned_manifests(query.storage, CommittedState(query.storage))
    assert set(found) == {manifest_path(unused), temporary}
    run_batches(query, 0)
    left = set(query.storage.find("_sparkckpt/manifests"))
    assert left == {manifest_path(used), damaged, "_sparkckpt/manifests/notes.txt"}


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"checkpointId": -1}, CorruptStateError),
        ({"checkpointId": 1, "mode": "steal"}, CorruptStateError),
        ({"checkpointId": 1, "mode": 3}, CorruptStateError),
        ({"checkpointId": 1, "formatVersion": 2}, UnsupportedFormatVersionError),
        ({"checkpointId": 1, "formatVersion": "1"}, CorruptStateError),
    ],
)
def test_what_restored_says_is_checked(
    tmp_path: Path, fields: dict[str, object], error: type[Exception]
) -> None:
    storage = Storage.at(tmp_path)
    content = json.dumps({"formatVersion": 1, **fields}).encode()
    storage.write_atomic("_sparkckpt/restored.json", content)
    with pytest.raises(error):
        read_restored(storage)


@pytest.mark.parametrize("mode", ["no-claim", "claim"])
def test_each_directory_of_a_chain_of_restores_is_given_up_by_itself(
    tmp_path: Path, mode: str
) -> None:
    """The middle one has a pin in the first, and so has the last, which needs both."""
    first = a_query(tmp_path / "first")
    middle = restore(first, tmp_path / "middle", "no-claim")
    run_batches(middle, 1)
    last = restore(middle, tmp_path / "last", mode)
    pin = "_sparkckpt/pins/restore-2.json"
    restored = json.loads(last.storage.read_all("_sparkckpt/restored.json"))
    pinned = [first.storage.where(""), *([middle.storage.where("")] if mode != "claim" else [])]
    for directory in pinned:
        Storage.at(directory).write_atomic(pin, b'{"formatVersion": 1, "files": []}')
    last.write(
        "_sparkckpt/restored.json",
        json.dumps({**restored, "pin": "restore-2", "pinned": pinned}).encode(),
    )
    before = first.state_files()
    run_batches(last, 1)
    assert first.storage.exists(pin)
    run_batches(last, 12)
    run_batches(last, 0)
    assert not first.storage.exists(pin) and not middle.storage.exists(pin)
    settled = read_restored(last.storage)
    assert settled is not None and settled.settled
    assert first.state_files() == before
    # Who claims the middle one takes over what it owes the first.
    assert pin_exists(first) is (mode == "no-claim")
    assert bool(middle.state_files()) is (mode == "no-claim")
