"""Another parallelism in place: what the query then goes on with, and what it costs."""

import contextlib
import itertools
import json
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sparkckpt
from sparkckpt.coordinator.lease import Lease, running_owner
from sparkckpt.errors import (
    CheckpointChangedError,
    CheckpointNotRestorableError,
    ClaimedCheckpointError,
    CorruptStateError,
    ForeignCheckpointError,
    InvalidParallelismError,
    NewerOwnerError,
    NotACheckpointError,
    QueryRunningError,
    RestorePendingError,
    UnsupportedFormatVersionError,
)
from sparkckpt.format.manifest import MANIFESTS, manifest_path
from sparkckpt.format.metadata import metadata_path
from sparkckpt.restoration.inplace import rescale_in
from sparkckpt.restoration.state import Logs, newest_batches
from sparkckpt.storage import Storage
from tests.unit.coordinator_samples import FakeQuery, Run, Store
from tests.unit.restore_samples import Killed, copy_of, killed_at, loaded_rows, sample

LATER = 10**14
"""A time at which all leases have expired."""


@pytest.fixture
def location(tmp_path: Path) -> Path:
    return sample(tmp_path)


def files_of(location: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(location)): path.read_bytes()
        for path in location.rglob("*")
        if path.is_file() and "owner" not in path.parts
    }


@pytest.mark.parametrize("parallelism", [1, 3, 7, 64])
@pytest.mark.parametrize("planned", [True, False])
def test_the_query_goes_on_with_another_parallelism(
    tmp_path: Path, parallelism: int, planned: bool
) -> None:
    location = sample(tmp_path, planned)
    before, rows = loaded_rows(Storage.at(location))
    files = files_of(location)
    report = sparkckpt.rescale(location, parallelism)
    assert (before, report.former_parallelism, report.parallelism) == (2, 2, parallelism)
    assert (report.changed, report.checkpoint_id, report.batch_id) == (True, 7, 6)
    assert loaded_rows(Storage.at(location)) == (parallelism, rows)
    after = files_of(location)
    newest = "offsets/7" if planned else "offsets/6"
    changed = {path for path in after if after[path] != files.get(path)}
    assert changed == {newest, "commits/6", manifest_path(report.manifest or "")}
    assert files.keys() <= after.keys()
    setting = b'"spark.sql.shuffle.partitions": "%d"'
    assert after[newest] == files[newest].replace(setting % 2, setting % parallelism)
    assert after[manifest_path(report.manifest or "")] == files[metadata_path(7)]
    assert (report.files, report.bytes) == (24, 92304)
    assert [(o.former_parallelism, o.parallelism) for o in report.operators] == [
        (2, parallelism)
    ] * 2


def test_the_commit_serves_both_parallelisms(location: Path) -> None:
    for parallelism, entries in ((1, 2), (5, 5), (3, 5)):
        sparkckpt.rescale(location, parallelism)
        commit = Logs.read(Storage.at(location)).commit
        assert commit is not None
        assert [len(ids) for ids in commit.state_ids.values()] == [entries, entries]
    assert len(Storage.at(location).list_names(MANIFESTS)) == 1


def test_already_there(location: Path) -> None:
    files = files_of(location)
    owners = Storage.at(location).list_names("_sparkckpt/owner")
    report = sparkckpt.rescale(location, 2)
    assert (report.changed, report.parallelism, report.manifest) == (False, 2, None)
    assert files_of(location) == files
    assert Storage.at(location).list_names("_sparkckpt/owner") == owners


def test_there_and_back(location: Path) -> None:
    _, rows = loaded_rows(Storage.at(location))
    for parallelism in (5, 2, 9, 2):
        sparkckpt.rescale(location, parallelism)
        assert loaded_rows(Storage.at(location)) == (parallelism, rows)


@pytest.mark.parametrize("gone", ["metadata", "checkpoints", "damaged"])
def test_without_a_checkpoint_the_handles_are_read(location: Path, gone: str) -> None:
    _, rows = loaded_rows(Storage.at(location))
    newest = location / metadata_path(7)
    if gone == "damaged":
        newest.write_bytes(b"x" + newest.read_bytes())
    else:
        newest.unlink()
    if gone == "checkpoints":
        for checkpoint in (5, 6):
            (location / metadata_path(checkpoint)).unlink()
    told: list[tuple[int, int]] = []
    report = sparkckpt.rescale(location, 5, progress=lambda done, of: told.append((done, of)))
    assert report.checkpoint_id is None
    assert told[-1] == (6, 6)
    assert loaded_rows(Storage.at(location)) == (5, rows)


def test_a_checkpoint_of_other_attempts_is_not_taken(tmp_path: Path) -> None:
    """What is restored is what Spark has committed, whatever a checkpoint says."""
    query = FakeQuery()
    run = Run(query)
    run.batch(0)
    run.work()
    run.coordinator.query_ended()
    run.work()
    again = [query.attempt(0, store) for store in query.stores]
    query.commit(0, again)
    report = rescale_in(query.storage, 5)
    assert report.checkpoint_id is None and report.manifest is not None
    assert query.committed[0][Store(0, 0, "default")] in list(again)


def test_a_first_batch_that_was_only_planned(tmp_path: Path) -> None:
    query = FakeQuery()
    with pytest.raises(CheckpointNotRestorableError, match="no batch was ever planned there"):
        rescale_in(query.storage, 5)
    query.run_batch(0)
    report = rescale_in(query.storage, 5)
    assert (report.changed, report.batch_id, report.manifest) == (True, None, None)
    assert Logs.read(query.storage).parallelism == 5
    assert query.storage.list_names("commits") == []


def test_unkeyed_operators_stay_in_one_partition(tmp_path: Path) -> None:
    query = FakeQuery(parallelism=1)
    run = Run(query)
    handles = [replace(handle, keyed=False) for handle in query.run_batch(0)]
    for handle in handles:
        run.ack(handle)
    query.commit(0, handles)
    run.coordinator.batch_committed(0)
    run.work()
    run.coordinator.query_ended()
    run.work()
    report = rescale_in(query.storage, 7)
    assert [operator.parallelism for operator in report.operators] == [1]
    commit = Logs.read(query.storage).commit
    assert commit is not None and len(commit.state_ids[0]) == 1


@pytest.mark.parametrize("parallelism", [0, -3, 65])
def test_impossible_parallelism(location: Path, parallelism: int) -> None:
    files = files_of(location)
    with pytest.raises(InvalidParallelismError, match="from 1 to 64"):
        sparkckpt.rescale(location, parallelism)
    (location / "_sparkckpt/backend.json").unlink()
    del files["_sparkckpt/backend.json"]
    with pytest.raises(InvalidParallelismError):
        sparkckpt.rescale(location, parallelism)
    assert files_of(location) == files


def test_refused_while_a_query_runs(location: Path) -> None:
    files = files_of(location)
    lease = Lease.claim(Storage.at(location), "a-run", time.time_ns() // 1_000_000)
    with pytest.raises(QueryRunningError, match=r"run a-run.* nothing was changed. Stop the query"):
        sparkckpt.rescale(location, 5)
    assert files_of(location) == files
    lease.release(0)
    assert sparkckpt.rescale(location, 5).changed


def test_the_lease_is_held_meanwhile_and_given_back(
    location: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, owners = Storage.at(location), []
    write = Storage.write_atomic

    def watched(self: Storage, path: str, data: bytes, overwrite: bool = False) -> None:
        if not path.startswith("_sparkckpt/owner"):
            owners.append(running_owner(storage, time.time_ns() // 1_000_000))
        write(self, path, data, overwrite)

    monkeypatch.setattr(Storage, "write_atomic", watched)
    sparkckpt.rescale(location, 5)
    assert [owner and owner.run_id for owner in owners] == ["command rescale"] * 3
    assert running_owner(storage, 0) is None


def test_a_query_that_starts_in_between_wins(
    location: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, write = Storage.at(location), Storage.write_atomic
    before = Logs.read(storage)

    def interrupted(self: Storage, path: str, data: bytes, overwrite: bool = False) -> None:
        write(self, path, data, overwrite)
        if path.startswith(MANIFESTS):
            Lease.claim(storage, "a-run", time.time_ns() // 1_000_000)

    monkeypatch.setattr(Storage, "write_atomic", interrupted)
    with pytest.raises(NewerOwnerError):
        sparkckpt.rescale(location, 5)
    assert Logs.read(storage) == before


@pytest.mark.parametrize("before", ["manifest", "commits"])
def test_a_query_without_a_lease_that_goes_on_in_between(
    location: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """With its coordinator off, a running query shows only in Spark's logs."""
    write, expected = Storage.write_atomic, {}

    def interrupted(self: Storage, path: str, data: bytes, overwrite: bool = False) -> None:
        write(self, path, data, overwrite)
        if before in path and not expected:
            (location / "commits/7").write_bytes((location / "commits/6").read_bytes())
            (location / "offsets/8").write_bytes((location / "offsets/7").read_bytes())
            expected.update(files_of(location))

    monkeypatch.setattr(Storage, "write_atomic", interrupted)
    with pytest.raises(CheckpointChangedError, match="its coordinator cannot be seen"):
        sparkckpt.rescale(location, 5)
    assert files_of(location) == expected
    assert Logs.read(Storage.at(location)).parallelism == 2
    assert running_owner(Storage.at(location), 0) is None


def test_logs_that_are_listed_while_a_query_runs(
    location: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits are seen that were not there, or batches planned, when the other log was listed."""
    names, tick = Storage.list_names, itertools.count()
    for planned, committed in (([6, 9, 9], [8]), ([9, 9, 9], [7, 8]), ([9, 9, 8, 10], [6, 9])):
        seen = {"offsets": iter(planned), "commits": iter(committed)}
        last = {"offsets": 9, "commits": 8}

        def listed(self: Storage, directory: str, seen: Any = seen, last: Any = last) -> list[str]:
            next(tick)
            if directory not in seen:
                return names(self, directory)
            last[directory] = next(seen[directory], last[directory])
            return [str(last[directory])]

        monkeypatch.setattr(Storage, "list_names", listed)
        newest, done = newest_batches(Storage.at(location))
        assert done is not None and newest in (done, done + 1)
    assert next(tick) > 6


def test_a_killed_command_is_no_running_query(location: Path) -> None:
    """On the same machine it can be seen that it is gone; elsewhere its lease must expire."""
    storage, now = Storage.at(location), time.time_ns() // 1_000_000
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    lease = Lease.claim(storage, "command rescale", now)
    path = f"_sparkckpt/owner/{lease.epoch}"
    ended = replace(lease.owner.process, pid=process.pid)
    dead = replace(lease.owner, process=ended)
    for owner in (
        replace(dead, process=replace(ended, host="elsewhere")),
        replace(dead, run_id="a-run"),
        lease.owner,
    ):
        storage.write_atomic(path, owner.to_bytes(), overwrite=True)
        with pytest.raises(QueryRunningError):
            sparkckpt.rescale(location, 5)
    assert ended.host == socket.gethostname()
    storage.write_atomic(path, dead.to_bytes(), overwrite=True)
    assert sparkckpt.rescale(location, 5).changed


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("checkpoint", [True, False])
def test_killed_at_any_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: bool, checkpoint: bool
) -> None:
    original = sample(tmp_path)
    if not checkpoint:
        (original / metadata_path(7)).unlink()
    _, rows = loaded_rows(Storage.at(original))
    outcomes = []
    for number in range(1, 100):
        location = copy_of(original, f"{number}")
        storage = Storage.at(location)
        with killed_at(monkeypatch, number, after) as calls, contextlib.suppress(Killed):
            rescale_in(storage, 5)
        parallelism, found = loaded_rows(storage)
        outcomes.append(parallelism)
        assert parallelism in (2, 5) and found == rows, f"killed at change {number}"
        again = rescale_in(storage, 5, clock=lambda: LATER)
        assert again.changed == (parallelism == 2)
        assert loaded_rows(storage) == (5, rows)
        assert sparkckpt.verify(location).num_rows == 0
        if calls() < number:
            break
    assert set(outcomes) == {2, 5} and outcomes == sorted(outcomes)


def test_no_checkpoint_directory(tmp_path: Path) -> None:
    with pytest.raises(NotACheckpointError, match="it does not exist"):
        sparkckpt.rescale(tmp_path / "nowhere", 3)
    with pytest.raises(NotACheckpointError):
        sparkckpt.rescale(tmp_path, 3)
    (tmp_path / "metadata").write_text('{"id":"q"}')
    with pytest.raises(ForeignCheckpointError):
        sparkckpt.rescale(tmp_path, 3)


def test_marked_directories_are_refused(location: Path) -> None:
    claimed = location / "_sparkckpt/claimed.json"
    claimed.write_text('{"formatVersion": 1, "by": "file:///x"}')
    for rescale in (sparkckpt.rescale, lambda path, n: rescale_in(Storage.at(path), n)):
        with pytest.raises(ClaimedCheckpointError, match="file:///x"):
            rescale(location, 3)
    claimed.unlink()
    marker = {"source": "file:///s", "mode": "copy", "pin": "p", "host": "h", "pid": 1}
    path = location / "_sparkckpt/restoring.json"
    path.write_text(json.dumps({"formatVersion": 1, **marker}))
    for rescale in (sparkckpt.rescale, lambda path, n: rescale_in(Storage.at(path), n)):
        with pytest.raises(RestorePendingError):
            rescale(location, 3)


def damage(location: Path, path: str, data: bytes) -> None:
    (location / path).write_bytes(data)


def test_logs_that_cannot_be(location: Path) -> None:
    original = (location / "offsets/7").read_bytes()
    (location / "offsets/9").write_bytes(original)
    with pytest.raises(CorruptStateError, match="last planned batch is 9, but its last committed"):
        sparkckpt.rescale(location, 5)
    (location / "offsets/9").unlink()
    damage(location, "offsets/7", original.replace(b'"2"', b'"two"'))
    with pytest.raises(CorruptStateError, match=r"sets spark.sql.shuffle.partitions to 'two'"):
        sparkckpt.rescale(location, 5)
    damage(location, "offsets/7", original[:40])
    with pytest.raises(CorruptStateError):
        sparkckpt.rescale(location, 5)
    damage(location, "offsets/7", b"v9" + original[2:])
    with pytest.raises(UnsupportedFormatVersionError):
        sparkckpt.rescale(location, 5)
    (location / "offsets/7").unlink()
    for entry in (location / "offsets").iterdir():
        entry.unlink()
    with pytest.raises(CorruptStateError, match="last planned batch is None"):
        sparkckpt.rescale(location, 5)


def test_damage_leaves_the_query_as_it_was(location: Path) -> None:
    commit = (location / "commits/6").read_bytes()
    for bad in (commit[:50], b"v9" + commit[2:], commit.replace(b'"0"', b'"x"')):
        damage(location, "commits/6", bad)
        files = files_of(location)
        with pytest.raises((CorruptStateError, UnsupportedFormatVersionError)):
            sparkckpt.rescale(location, 5)
        assert files_of(location) == files
    damage(location, "commits/6", commit)
    metadata = location / metadata_path(7)
    data = metadata.read_bytes()
    metadata.write_bytes(data[:8] + b"\x63" + data[9:])
    with pytest.raises(UnsupportedFormatVersionError, match="format version 99"):
        sparkckpt.rescale(location, 5)
    assert running_owner(Storage.at(location), 0) is None
    metadata.unlink()
    next((location / "state/1/1/left").glob("7_*.handle")).write_bytes(b"?")
    with pytest.raises(CorruptStateError, match=r"handle is corrupt"):
        sparkckpt.rescale(location, 5)


def test_a_manifest_that_does_not_fit(location: Path) -> None:
    manifest = sparkckpt.rescale(location, 5).manifest or ""
    path = location / manifest_path(manifest)
    data = path.read_bytes()
    path.write_bytes((location / metadata_path(6)).read_bytes())
    with pytest.raises(CorruptStateError, match="is of batch 5"):
        sparkckpt.rescale(location, 6)
    path.write_bytes(data[:-3])
    with pytest.raises(CorruptStateError):
        sparkckpt.rescale(location, 6)
    path.write_bytes(data)
    commit = location / "commits/6"
    commit.write_bytes(commit.read_bytes().replace(manifest.encode(), b"other", 1))
    with pytest.raises(CorruptStateError, match="it names other ids"):
        sparkckpt.rescale(location, 6)


@pytest.mark.parametrize("checkpoint", [True, False])
def test_two_hundred_partitions_on_slow_storage(
    checkpoint: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = tuple(f"store-{number}" for number in range(4))
    monkeypatch.setitem(
        sys.modules["tests.unit.coordinator_samples"].OPERATORS, 0, ("symmetricHashJoin", stores)
    )
    monkeypatch.setattr("tests.unit.coordinator_samples.MAX_PARALLELISM", 32768)
    query = FakeQuery(parallelism=200, merge_after=16)
    query.write("_sparkckpt/backend.json", b'{"formatVersion": 1, "maxParallelism": 32768}')
    run = Run(query)
    for batch in range(2):
        run.batch(batch)
        run.work()
    run.coordinator.query_ended()
    run.work()
    if not checkpoint:
        query.storage.delete([metadata_path(2)])
    waited: Counter[int] = Counter()

    def wait(operation: str, path: str) -> None:
        waited[threading.get_ident()] += 1
        time.sleep(0.03)

    query.storage.filesystem.before = wait
    report = rescale_in(query.storage, 300)
    assert (report.checkpoint_id is not None) == checkpoint
    assert len(report.operators) == 1 and report.files == 1600
    # Not the time it took, which is the machine's too: waits that came one after the other.
    in_a_row = waited.pop(threading.get_ident()) + max(waited.values(), default=0)
    assert in_a_row < 100
