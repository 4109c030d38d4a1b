"""A new directory from a checkpoint: what its query finds there, and what the source keeps."""

import json
import os
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sparkckpt
from sparkckpt.coordinator.bridge import BridgeFileSystem, StoragePipe
from sparkckpt.coordinator.lease import Lease, running_owner
from sparkckpt.coordinator.pins import pin_names, read_pin
from sparkckpt.coordinator.restored import read_restored
from sparkckpt.coordinator.wire import Frame
from sparkckpt.errors import (
    CheckpointNotFoundError,
    CheckpointNotRestorableError,
    ClaimedCheckpointError,
    CorruptStateError,
    FileMissingError,
    ForeignCheckpointError,
    InvalidConfError,
    InvalidParallelismError,
    NewerOwnerError,
    NonRestoredStateError,
    NotACheckpointError,
    OperatorMappingError,
    QueryRunningError,
    RestorePendingError,
    TargetNotEmptyError,
    UnreachableStorageError,
    UnsupportedFormatVersionError,
)
from sparkckpt.format.manifest import load_manifest
from sparkckpt.format.metadata import metadata_path
from sparkckpt.restoration.exclusive import wall_clock
from sparkckpt.restoration.inplace import rescale_in
from sparkckpt.restoration.materialize import restore_into
from sparkckpt.restoration.request import RestoreOptions
from sparkckpt.restoration.source import Source, open_storage
from sparkckpt.restoration.state import Logs
from sparkckpt.sparklog import SparkCheckpoint
from sparkckpt.sparklog.edits import SHUFFLE_PARTITIONS
from sparkckpt.storage import Storage
from tests.unit.fake_driver import serve
from tests.unit.restore_samples import (
    Killed,
    copy_of,
    killed_at,
    loaded_rows,
    metadata_in,
    rows_in,
    sample,
)

MODES = ("no-claim", "claim", "copy")


@pytest.fixture
def location(tmp_path: Path) -> Path:
    return sample(tmp_path)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target"


def files_of(location: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(location)): path.read_bytes()
        for path in location.rglob("*")
        if path.is_file() and "owner" not in path.parts
    }


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("parallelism", [None, 1, 3, 40])
def test_the_query_goes_on_elsewhere(
    location: Path, target: Path, mode: str, parallelism: int | None
) -> None:
    _, rows = loaded_rows(Storage.at(location))
    source = files_of(location)
    report = sparkckpt.restore(location, target, mode=mode, parallelism=parallelism)
    n = parallelism or 2
    assert loaded_rows(Storage.at(target)) == (n, rows)
    assert (report.checkpoint_id, report.batch_id, report.planned_batch_id) == (7, 6, 7)
    assert (report.former_parallelism, report.parallelism, report.warnings) == (2, n, ())
    restored = files_of(target)
    sources = {path for path in source if path.startswith("sources/") and "tmp" not in path}
    assert {path for path in restored if path.startswith("sources/")} == sources
    assert all(restored[path] == source[path] for path in sources)
    setting = b'"spark.sql.shuffle.partitions": "%d"'
    for batch in (5, 6, 7):
        path = f"offsets/{batch}"
        assert restored[path] == source[path].replace(setting % 2, setting % n)
    assert names(target / "commits") == ["6"]
    for operator in (0, 1):
        entry = SparkCheckpoint(Storage.at(target)).operator(operator, 6)
        assert {store.partitions for store in entry.stores} == {n}
        for store in entry.stores:
            for schema in store.schema_paths:
                path = f"state/{operator}/{schema}"
                assert restored[path] == source[path]
    assert restored["_sparkckpt/backend.json"] == source["_sparkckpt/backend.json"]
    assert "_sparkckpt/restoring.json" not in restored
    own_id = SparkCheckpoint(Storage.at(target)).query_id()
    assert own_id == report.query_id and (own_id == "a-query") == (mode == "claim")
    kept = {path: data for path, data in files_of(location).items() if path in source}
    assert kept == source


def test_the_source_keeps_what_the_target_refers_to(location: Path, target: Path) -> None:
    report = sparkckpt.restore(location, target)
    assert (report.files_referenced, report.files_copied) == (24, 0)
    assert pin_names(Storage.at(location)) == [report.pin]
    pinned = set(read_pin(Storage.at(location), report.pin or ""))
    metadata = metadata_in(Storage.at(location))
    assert pinned == set(metadata.files())
    restored = read_restored(Storage.at(target))
    assert restored is not None
    assert (restored.checkpoint_id, restored.mode, restored.pin) == (7, "no-claim", report.pin)
    assert (restored.source, restored.source_root and restored.source_root.url) == (
        f"file://{location}",
        f"file://{location}/state",
    )
    assert not list(target.rglob("*.arrow"))
    statuses = sparkckpt.list_checkpoints(location)["status"].to_pylist()
    assert statuses == ["retained", "retained", "pinned"]


def test_a_copy_depends_on_nothing(location: Path, target: Path) -> None:
    _, rows = loaded_rows(Storage.at(location))
    told: list[tuple[int, int]] = []
    report = sparkckpt.restore(
        location, target, mode="copy", parallelism=5, progress=lambda d, of: told.append((d, of))
    )
    assert (report.files_referenced, report.files_copied, report.pin) == (0, 24, None)
    assert pin_names(Storage.at(location)) == [] and told == [(n, 24) for n in range(25)]
    shutil.rmtree(location)
    moved = target.rename(target.with_name("moved"))
    assert loaded_rows(Storage.at(moved)) == (5, rows)


def test_a_claimed_source_is_given_up(location: Path, target: Path, tmp_path: Path) -> None:
    report = sparkckpt.restore(location, target, mode="claim")
    assert report.pin is None and pin_names(Storage.at(location)) == []
    claimed = json.loads((location / "_sparkckpt/claimed.json").read_text())
    assert claimed == {"formatVersion": 1, "by": f"file://{target}"}
    assert running_owner(Storage.at(location), 0) is None
    for again in (
        lambda: sparkckpt.restore(location, tmp_path / "other"),
        lambda: sparkckpt.restore(location, tmp_path / "other", mode="claim"),
        lambda: sparkckpt.rescale(location, 3),
        lambda: sparkckpt.clean(location, dry_run=False),
    ):
        with pytest.raises(ClaimedCheckpointError, match=f"file://{target}"):
            again()
    assert not (tmp_path / "other").exists()


def test_a_running_query_cannot_be_claimed_but_be_restored_from(
    location: Path, target: Path
) -> None:
    Lease.claim(Storage.at(location), "a-run", now_ms())
    with pytest.raises(QueryRunningError, match="nothing was changed"):
        sparkckpt.restore(location, target, mode="claim")
    assert not target.exists() and not (location / "_sparkckpt/claimed.json").exists()
    for number, mode in enumerate(("no-claim", "copy")):
        assert sparkckpt.restore(location, f"{target}{number}", mode=mode).batch_id == 6


def test_an_older_checkpoint_is_a_rollback(location: Path, target: Path) -> None:
    directory = Storage.at(location)
    old = sparkckpt.checkpoints.directory.CheckpointDirectory.open(location).metadata(5)
    for number, given in enumerate(
        (
            {"source": location, "checkpoint_id": 5},
            {"source": f"{location}/_sparkckpt/chk-5"},
            {"source": f"{location}/_sparkckpt/chk-5/_metadata/"},
            {"source": f"file://{location}/_sparkckpt/chk-5/", "checkpoint_id": 5},
        )
    ):
        there = Path(f"{target}{number}")
        report = sparkckpt.restore(**given, target=there, parallelism=3)  # type: ignore[arg-type]
        assert (report.checkpoint_id, report.batch_id, report.planned_batch_id) == (5, 4, None)
        (warning,) = report.warnings
        assert "has gone on to batch 6: batches 5 to 6 will be run again" in warning
        assert names(there / "offsets") == ["3", "4"]
        assert names(there / "commits") == ["4"]
        assert loaded_rows(Storage.at(there)) == (3, rows_in(directory, old.operator_states, 2))
        assert {p.name for p in (there / "sources/0").iterdir()} == {"0", "1"}
    with pytest.raises(CheckpointNotFoundError, match=r"has no checkpoint 2\. It has 5, 6, 7"):
        sparkckpt.restore(location, f"{target}x", checkpoint_id=2)
    with pytest.raises(CheckpointNotFoundError):
        sparkckpt.restore(f"{location}/_sparkckpt/chk-5", f"{target}x", checkpoint_id=6)


def test_a_batch_that_was_committed_but_not_completed(location: Path, target: Path) -> None:
    """The coordinator was killed: the last batch is what the query would go on from."""
    _, rows = loaded_rows(Storage.at(location))
    shutil.rmtree(location / "_sparkckpt/chk-7")
    report = sparkckpt.restore(location, target, parallelism=5)
    assert (report.checkpoint_id, report.batch_id, report.planned_batch_id) == (None, 6, 7)
    assert report.warnings == ()
    assert loaded_rows(Storage.at(target)) == (5, rows)
    restored = read_restored(Storage.at(target))
    assert restored is not None and restored.checkpoint_id == 6
    Lease.claim(Storage.at(location), "a-run", now_ms())
    behind = sparkckpt.restore(location, f"{target}2")
    assert (behind.checkpoint_id, behind.batch_id, len(behind.warnings)) == (6, 5, 1)
    for checkpoint in (5, 6):
        shutil.rmtree(location / f"_sparkckpt/chk-{checkpoint}")
    with pytest.raises(QueryRunningError):
        sparkckpt.restore(location, f"{target}3")


def test_nothing_to_restore(tmp_path: Path, target: Path) -> None:
    query = sample(tmp_path)
    for path in ("commits", "_sparkckpt/chk-5", "_sparkckpt/chk-6", "_sparkckpt/chk-7"):
        shutil.rmtree(query / path)
    for batch in (4, 5, 6, 7):
        (query / f"offsets/{batch}").unlink()
    with pytest.raises(CheckpointNotFoundError, match="no checkpoint at all"):
        sparkckpt.restore(query, target)
    assert not target.exists()


def test_restored_again_before_it_ran(location: Path, target: Path) -> None:
    _, rows = loaded_rows(Storage.at(location))
    sparkckpt.restore(location, target, parallelism=5)
    sparkckpt.rescale(target, 3)
    report = sparkckpt.restore(target, f"{target}2", parallelism=7)
    assert (report.checkpoint_id, report.former_parallelism) == (None, 3)
    assert loaded_rows(Storage.at(f"{target}2")) == (7, rows)
    restored = read_restored(Storage.at(f"{target}2"))
    assert restored is not None and restored.checkpoint_id == 7
    pins = pin_names(Storage.at(location))
    assert report.pin in pins and len(pins) == 2, "the first source keeps the files for both"
    held = [set(read_pin(Storage.at(location), name)) for name in pins]
    arrow = [{path for path in files if path.endswith((".arrow", ".handle"))} for files in held]
    assert all(metadata_in(Storage.at(location)).files()) and arrow[0] & arrow[1]
    claimed = sparkckpt.restore(target, f"{target}3", mode="claim")
    assert claimed.query_id == SparkCheckpoint(Storage.at(target)).query_id()
    copied = sparkckpt.restore(f"{target}2", f"{target}4", mode="copy")
    assert copied.files_copied == 24
    assert len(pin_names(Storage.at(location))) == 3, "that of the copy is gone"
    shutil.rmtree(location)
    assert loaded_rows(Storage.at(f"{target}4")) == (7, rows)


def test_a_rescaled_directory_is_restored_as_it_would_go_on(location: Path, target: Path) -> None:
    _, rows = loaded_rows(Storage.at(location))
    sparkckpt.rescale(location, 5)
    report = sparkckpt.restore(location, target)
    assert (report.former_parallelism, report.parallelism) == (5, 5)
    assert loaded_rows(Storage.at(target)) == (5, rows)


@pytest.mark.parametrize("mode", MODES)
def test_operators_are_dropped_and_moved(location: Path, target: Path, mode: str) -> None:
    _, rows = loaded_rows(Storage.at(location))
    with pytest.raises(NonRestoredStateError, match=r"operator 0 \(stateStoreSave\)"):
        sparkckpt.restore(location, target, drop_operators=[0], map_operators={1: 0})
    with pytest.raises(OperatorMappingError, match=r"with: --map-operator 1=0$"):
        sparkckpt.restore(location, target, drop_operators=[0], allow_non_restored_state=True)
    assert not target.exists()
    report = sparkckpt.restore(
        location,
        target,
        mode=mode,
        parallelism=3,
        drop_operators=[0],
        map_operators={1: 0},
        allow_non_restored_state=True,
    )
    assert report.not_restored == ("0 (stateStoreSave)",)
    moved = {(0, store): found for (operator, store), found in rows.items() if operator == 1}
    assert loaded_rows(Storage.at(target)) == (3, moved)
    assert names(target / "state") == ["0"]
    entry = SparkCheckpoint(Storage.at(target)).operator(0, 6)
    assert (entry.operator_id, entry.operator_name) == (0, "symmetricHashJoin")
    assert Logs.read(Storage.at(target)).commit.state_ids.keys() == {0}  # type: ignore[union-attr]


def test_operators_are_added(location: Path, target: Path) -> None:
    _, rows = loaded_rows(Storage.at(location))
    sparkckpt.restore(
        location,
        target,
        parallelism=3,
        add_operators={0: "dedupe", 3: "transformWithStateInPandasExec:NoTime:Update"},
        map_operators={0: 1, 1: 2},
    )
    parallelism, found = loaded_rows(Storage.at(target))
    assert parallelism == 3 and found == {
        (0, "default"): [],
        (1, "default"): rows[0, "default"],
        (2, "left"): rows[1, "left"],
        (2, "right"): rows[1, "right"],
        (3, "default"): [],
    }
    spark = SparkCheckpoint(Storage.at(target))
    assert [spark.operator(o, 6).operator_name for o in range(4)] == [
        "dedupe",
        "stateStoreSave",
        "symmetricHashJoin",
        "transformWithStateInPandasExec",
    ]
    assert names(target / "state/3/_metadata/v2") == ["6"]
    again = sparkckpt.restore(target, f"{target}2", parallelism=5)
    assert [operator.restored_from for operator in again.operators] == [0, 1, 2, 3]
    assert loaded_rows(Storage.at(f"{target}2")) == (5, found)


def test_another_number_of_key_groups(location: Path, target: Path) -> None:
    sparkckpt.restore(location, target, max_parallelism=1024, parallelism=100)
    backend = json.loads((target / "_sparkckpt/backend.json").read_text())
    assert backend == {"formatVersion": 1, "maxParallelism": 1024}
    logs = Logs.read(Storage.at(target))
    assert logs.commit is not None and len(logs.commit.state_ids[0]) == 100
    manifest = load_manifest(Storage.at(target), logs.commit.state_ids[0][0][0])
    assert {operator.max_parallelism for operator in manifest.operator_states} == {64}
    with pytest.raises(InvalidParallelismError, match="from 1 to 1024"):
        sparkckpt.rescale(target, 1025)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"parallelism": 0}, InvalidParallelismError),
        ({"parallelism": -1}, InvalidParallelismError),
        ({"parallelism": 65}, InvalidParallelismError),
        ({"max_parallelism": 1}, InvalidParallelismError),
        ({"max_parallelism": 0}, InvalidParallelismError),
        ({"max_parallelism": 40000}, InvalidParallelismError),
        ({"mode": "move"}, InvalidConfError),
        ({"add_operators": {2: "nonsense"}}, OperatorMappingError),
        ({"map_operators": {9: 0}}, OperatorMappingError),
    ],
)
def test_impossible_wishes_change_nothing(
    location: Path, target: Path, options: dict[str, Any], error: type[Exception]
) -> None:
    files = files_of(location)
    with pytest.raises(error):
        sparkckpt.restore(location, target, **options)
    assert files_of(location) == files and not target.exists()


def test_the_target_must_be_new(location: Path, target: Path) -> None:
    target.mkdir()
    sparkckpt.restore(location, target)
    with pytest.raises(TargetNotEmptyError, match="it holds _sparkckpt, commits, metadata, offs"):
        sparkckpt.restore(location, target)
    with pytest.raises(TargetNotEmptyError):
        sparkckpt.restore(location, location)
    other = target.with_name("other")
    other.mkdir()
    (other / "file").write_text("mine")
    with pytest.raises(TargetNotEmptyError, match="it holds file"):
        sparkckpt.restore(location, other)
    assert files_of(other) == {"file": b"mine"}


def test_the_directory_of_a_query_that_is_about_to_start(location: Path, target: Path) -> None:
    _, rows = loaded_rows(Storage.at(location))
    for path in ("offsets", "commits", "state"):
        (target / path).mkdir(parents=True)
    (target / "metadata").write_text('{"id":"started"}')
    Lease.claim(Storage.at(target), "a-run", now_ms())

    def restore(mode: str) -> Any:
        options = RestoreOptions(parallelism=3, mode=mode)
        return restore_into(Source.at(location), *open_storage(target), options, run_id="run")

    report = restore("claim")
    assert report.query_id == "started"
    assert loaded_rows(Storage.at(target)) == (3, rows)
    with pytest.raises(TargetNotEmptyError, match="commits, offsets, sources, state"):
        restore("claim")


@pytest.mark.parametrize("killed", [None, 3, 10])
def test_what_a_query_keeps_in_its_directory_stays(
    location: Path, target: Path, killed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sink's output or a source's input, also where a restore was broken off."""
    kept = {
        "out/part-0.parquet": b"rows",
        "input/file": b"line",
        "table/_spark_metadata/0": b"v1",
        "_sparkckpt/pins/savepoint.json": b'{"formatVersion": 1, "files": []}',
    }
    for path, data in {**kept, "metadata": b'{"id":"started"}'}.items():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).write_bytes(data)
    source = Source.at(location)
    options = RestoreOptions(mode="copy")
    if killed is not None:
        with killed_at(monkeypatch, killed, after=True), pytest.raises(Killed):
            restore_into(source, *open_storage(target), options, run_id="run")
        (target / "state/0/9").mkdir(parents=True, exist_ok=True)
        (target / "state/0/9/half.arrow").write_bytes(b"left")
    report = restore_into(source, *open_storage(target), options, run_id="run")
    found = files_of(target)
    assert {path: found[path] for path in kept} == kept
    assert report.query_id == "started" and "state/0/9/half.arrow" not in found
    assert loaded_rows(Storage.at(target)) == loaded_rows(Storage.at(location))


def test_checkpoints_of_another_query_are_in_the_way(location: Path, target: Path) -> None:
    (target / "_sparkckpt/chk-3").mkdir(parents=True)
    with pytest.raises(TargetNotEmptyError, match="it holds _sparkckpt/chk-3"):
        restore_into(Source.at(location), *open_storage(target), RestoreOptions(), run_id="run")


def test_a_claim_takes_what_is_there_once_it_has_the_lease(
    location: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, owners = Logs.read, []

    def watched(storage: Storage) -> Logs:
        owners.append(running_owner(Storage.at(location), now_ms()))
        return read(storage)

    monkeypatch.setattr(Logs, "read", watched)
    shutil.rmtree(location / "_sparkckpt/chk-7")
    report = sparkckpt.restore(location, target, mode="claim")
    assert (report.checkpoint_id, report.batch_id) == (None, 6)
    assert owners and all(owner and owner.run_id == "command restore" for owner in owners)


def test_sources_that_are_none(tmp_path: Path, target: Path) -> None:
    with pytest.raises(NotACheckpointError, match="it does not exist"):
        sparkckpt.restore(tmp_path / "nowhere", target)
    (tmp_path / "metadata").write_text('{"id":"q"}')
    with pytest.raises(ForeignCheckpointError):
        sparkckpt.restore(tmp_path, target)
    with pytest.raises(CheckpointNotFoundError):
        (tmp_path / "_sparkckpt").mkdir()
        (tmp_path / "_sparkckpt/backend.json").write_text("{}")
        sparkckpt.restore(f"{tmp_path}/_sparkckpt/chk-3", target)
    with pytest.raises(UnreachableStorageError):
        sparkckpt.restore("nosuch://x/y", target)
    assert not target.exists()


def test_damaged_sources(location: Path, target: Path) -> None:
    """The handles of the last batch say the same as its checkpoint; a named one must be sound."""
    newest = location / metadata_path(7)
    data = newest.read_bytes()
    newest.write_bytes(data[:8] + b"\x63" + data[9:])
    with pytest.raises(UnsupportedFormatVersionError):
        sparkckpt.restore(location, target)
    newest.write_bytes(data[:-5])
    with pytest.raises(CorruptStateError, match=r"chk-7/_metadata"):
        sparkckpt.restore(location, target, checkpoint_id=7)
    lease = Lease.claim(Storage.at(location), "a-run", now_ms())
    with pytest.raises(CorruptStateError, match=r"chk-7/_metadata"):
        sparkckpt.restore(location, target)
    lease.release(0)
    handle = next((location / "state/1/0/left").glob("7_*.handle"))
    sound = handle.read_bytes()
    handle.write_bytes(b"?")
    with pytest.raises(CorruptStateError, match=r"chk-7/_metadata"):
        sparkckpt.restore(location, target)
    handle.write_bytes(sound)
    assert not target.exists()
    report = sparkckpt.restore(location, target)
    assert (report.checkpoint_id, report.batch_id) == (None, 6)
    (warning,) = report.warnings
    assert "the last committed batch, 6, was restored" in warning and "chk-7/_metadata" in warning
    assert loaded_rows(Storage.at(target)) == loaded_rows(Storage.at(location))


def test_a_missing_file_of_state_breaks_a_copy_off(location: Path, target: Path) -> None:
    victim = next((location / "state/1/0/left").glob("7_*.delta.arrow"))
    data = victim.read_bytes()
    victim.unlink()
    with pytest.raises(FileMissingError, match=victim.name):
        sparkckpt.restore(location, target, mode="copy")
    for command in (
        lambda: sparkckpt.list_checkpoints(target),
        lambda: sparkckpt.rescale(target, 3),
        lambda: sparkckpt.restore(target, f"{target}2"),
    ):
        with pytest.raises((RestorePendingError, NotACheckpointError)):
            command()
    victim.write_bytes(data)
    sparkckpt.restore(location, target, mode="copy")
    assert pin_names(Storage.at(location)) == []
    assert loaded_rows(Storage.at(target)) == loaded_rows(Storage.at(location))


def test_offsets_that_are_gone(location: Path, target: Path) -> None:
    shutil.rmtree(location / "_sparkckpt/chk-7")
    (location / "offsets/5").unlink()
    assert sparkckpt.restore(location, target).planned_batch_id == 7
    assert names(target / "offsets") == ["6", "7"]
    (location / "offsets/7").unlink()
    with pytest.raises(CheckpointNotRestorableError, match="offsets/5 is neither in the checkpoi"):
        sparkckpt.restore(location, f"{target}2")


def test_sources_that_change_meanwhile(
    location: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compaction of the source's log takes files away that were listed."""
    copy, lock, done = Storage.copy, threading.Lock(), []

    def compacted(self: Storage, path: str, other: Storage, other_path: str) -> None:
        with lock:
            if path.startswith("sources") and not done:
                done.append(path)
                (location / "sources/0/2.compact").write_text("all")
                for old in ("0", "1"):
                    (location / "sources/0" / old).unlink()
        copy(self, path, other, other_path)

    monkeypatch.setattr(Storage, "copy", compacted)
    sparkckpt.restore(location, target)
    assert (target / "sources/0/2.compact").read_text() == "all"


def test_a_checkpoint_that_goes_while_it_is_pinned(
    location: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A running query may subsume the checkpoint before it sees the pin."""
    write = Storage.write_atomic

    def subsumed(self: Storage, path: str, data: bytes, overwrite: bool = False) -> None:
        if path.startswith("_sparkckpt/pins") and (location / metadata_path(6)).exists():
            (location / metadata_path(6)).unlink()
        write(self, path, data, overwrite)

    monkeypatch.setattr(Storage, "write_atomic", subsumed)
    with pytest.raises(CheckpointNotFoundError, match=r"no checkpoint 6\."):
        sparkckpt.restore(location, target, checkpoint_id=6)
    assert pin_names(Storage.at(location)) == []

    def newest_gone(self: Storage, path: str, data: bytes, overwrite: bool = False) -> None:
        write(self, path, data, overwrite)
        if path.startswith("_sparkckpt/pins") and (location / metadata_path(7)).exists():
            (location / metadata_path(7)).unlink()

    monkeypatch.setattr(Storage, "write_atomic", newest_gone)
    report = sparkckpt.restore(location, f"{target}2")
    assert report.checkpoint_id is None and report.batch_id == 6


def test_another_restore_is_under_way(
    location: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (target / "_sparkckpt").mkdir(parents=True)
    marker = {
        "formatVersion": 1,
        "source": f"file://{location}",
        "mode": "copy",
        "pin": "restore-x",
        "host": os.uname().nodename,
        "pid": os.getppid(),
    }
    path = target / "_sparkckpt/restoring.json"
    path.write_text(json.dumps(marker))
    with pytest.raises(RestorePendingError, match=f"under way in process {os.getppid()}"):
        sparkckpt.restore(location, target)
    other = copy_of(location, "other")
    path.write_text(json.dumps({**marker, "host": "elsewhere"}))
    with pytest.raises(
        RestorePendingError, match=f"from file://{location} has not been finished"
    ) as e:
        sparkckpt.restore(other, target)
    assert f"`sparkckpt clean file://{location} --delete`" in str(e.value)
    path.write_text("{")
    with pytest.raises(CorruptStateError):
        sparkckpt.restore(location, target)
    path.write_text(json.dumps({**marker, "host": "elsewhere", "mode": "no-claim"}))
    theirs = Lease.claim(Storage.at(target), "command restore", wall_clock())
    owner = target / "_sparkckpt/owner/1"
    elsewhere = replace(theirs.owner.process, host="elsewhere")
    owner.write_bytes(replace(theirs.owner, process=elsewhere).to_bytes())
    with pytest.raises(QueryRunningError, match=r"command restore, on elsewhere.*nothing was"):
        sparkckpt.restore(location, target)
    assert json.loads(path.read_text())["host"] == "elsewhere"
    owner.write_bytes(theirs.owner.to_bytes())
    theirs.release(wall_clock())
    assert sparkckpt.restore(location, target).pin not in (None, "restore-x")
    assert running_owner(Storage.at(target), wall_clock()) is None


def test_who_has_been_overtaken_leaves_the_target_to_the_other(
    location: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = Storage.copy

    def overtaken(self: Storage, path: str, other: Storage, to: str) -> None:
        copies(self, path, other, to)
        if not list((target / "_sparkckpt/owner").glob("2")):
            Lease.claim(Storage.at(target), "command restore", wall_clock())

    monkeypatch.setattr(Storage, "copy", overtaken)
    with pytest.raises(NewerOwnerError):
        sparkckpt.restore(location, target, mode="copy")
    assert not (target / "commits").exists()
    assert (target / "_sparkckpt/restoring.json").exists()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_source_that_a_query_has_taken_over_is_not_claimed(
    location: Path, target: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    write, claimed = Storage.write_atomic, location / "_sparkckpt/claimed.json"
    beginning = "restoring.json" if when == "before" else "claimed.json"
    written: list[bool] = []

    def overtaken(self: Storage, path: str, data: bytes, overwrite: bool = False) -> None:
        write(self, path, data, overwrite)
        if path.endswith(beginning):
            Lease.claim(Storage.at(location), "a run", wall_clock())
            written.append(claimed.exists())

    monkeypatch.setattr(Storage, "write_atomic", overtaken)
    with pytest.raises(NewerOwnerError, match=str(location)):
        sparkckpt.restore(location, target, mode="claim")
    assert written == [when == "after"]
    assert not claimed.exists()
    assert not (target / "commits").exists()


def test_spark_finds_its_settings(location: Path, target: Path) -> None:
    sparkckpt.restore(location, target, parallelism=9)
    spark = SparkCheckpoint(Storage.at(target))
    for batch in (6, 7):
        confs = spark.offsets(batch).confs
        assert confs[SHUFFLE_PARTITIONS] == "9"


class Driver(StoragePipe):
    """Answers at once, with the storage that Spark's driver would have."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    def request(self, op: str, path: str, payload: bytes = b"", **fields: Any) -> bytes:
        self.paths.append(path)
        return serve(Frame("storage", {"id": 0, "op": op, "path": path, **fields}, payload))


@pytest.mark.parametrize("mode", MODES)
def test_through_the_driver(location: Path, target: Path, mode: str) -> None:
    """As a restore by conf does it: paths are Hadoop's, and no other storage is touched."""
    _, rows = loaded_rows(Storage.at(location))
    driver = Driver()
    bridge = BridgeFileSystem(driver)
    source = Source.at(f"file:{location}/_sparkckpt/chk-7", filesystem=bridge)
    storage, url = open_storage(f"file:{target}/", bridge)
    report = restore_into(source, storage, url, RestoreOptions(parallelism=3, mode=mode))
    assert (source.url, url, report.batch_id) == (f"file://{location}", f"file://{target}", 6)
    assert loaded_rows(storage) == loaded_rows(Storage.at(target)) == (3, rows)
    paths = {file.path for h in metadata_in(storage).handles for file in h.files_of()}
    below_source = [path for path in paths if path.startswith(f"file://{location}/state/")]
    assert len(below_source) == (0 if mode == "copy" else len(paths))
    restored = read_restored(storage)
    assert restored is not None and restored.source == f"file://{location}"
    rescaled = rescale_in(Storage(bridge, f"file:{target}"), 7)
    assert rescaled.changed and loaded_rows(Storage.at(target)) == (7, rows)
    assert all(path.startswith("file:") for path in driver.paths)
