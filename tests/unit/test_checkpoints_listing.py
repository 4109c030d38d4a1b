"""What `list_checkpoints` and `show_checkpoint` say, compared with what was written."""

import json
import random
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

import sparkckpt
from sparkckpt.checkpoints.report import report_of
from sparkckpt.errors import (
    CheckpointNotFoundError,
    CorruptStateError,
    ForeignCheckpointError,
    NotACheckpointError,
    SparkckptError,
    UnreachableStorageError,
    UnreadableFileError,
    UnsupportedFormatVersionError,
)
from sparkckpt.format import FamilyFiles, OperatorState, OperatorSubtaskState
from sparkckpt.paths import StateRoot
from sparkckpt.storage import Storage
from tests.unit.checkpoint_samples import ROWS, StatefulQuery, checkpoints_at, handles_of
from tests.unit.coordinator_samples import Memory, memory_storage, needed_by
from tests.unit.metadata_samples import metadata_of, random_handle, random_operator


def test_every_retained_checkpoint_is_listed(tmp_path: Path) -> None:
    checkpoints_at(tmp_path)
    rows = sparkckpt.list_checkpoints(tmp_path).to_pylist()
    assert [(row["checkpoint_id"], row["batch_id"]) for row in rows] == [(5, 4), (6, 5), (7, 6)]
    assert {row["status"] for row in rows} == {"retained"}
    assert {row["operators"] for row in rows} == {2}
    for row in rows:
        report = sparkckpt.show_checkpoint(str(tmp_path), row["checkpoint_id"])
        assert row["files"] == len(set(report.files["path"].to_pylist()))
        assert row["state_bytes"] == sum(report.operators["bytes"].to_pylist())
        assert row["completed"] == report.completed


def test_a_url_is_a_path_too(tmp_path: Path) -> None:
    checkpoints_at(tmp_path)
    assert sparkckpt.list_checkpoints(f"file://{tmp_path}") == sparkckpt.list_checkpoints(tmp_path)


def test_before_the_first_batch_there_is_nothing_to_list(tmp_path: Path) -> None:
    checkpoints_at(tmp_path, batches=0)
    assert sparkckpt.list_checkpoints(tmp_path).num_rows == 0
    for look in (sparkckpt.show_checkpoint, sparkckpt.verify):
        with pytest.raises(CheckpointNotFoundError, match=r"no checkpoint at all\. The first is"):
            look(tmp_path)
    assert sparkckpt.clean(tmp_path).num_rows == 0


def test_pins_that_cover_a_checkpoint(tmp_path: Path) -> None:
    query = checkpoints_at(tmp_path)
    files = sorted(path for handle in handles_of(query) for path in needed_by(handle))
    query.write("_sparkckpt/pins/a.json", _pin(files[1:]))
    assert set(sparkckpt.list_checkpoints(tmp_path)["status"].to_pylist()) == {"retained"}
    query.write("_sparkckpt/pins/b.json", _pin(files))
    statuses = sparkckpt.list_checkpoints(tmp_path)["status"].to_pylist()
    assert statuses == ["retained", "retained", "pinned"]


def _pin(files: list[str]) -> bytes:
    return json.dumps({"formatVersion": 1, "files": files}).encode()


def test_what_is_not_complete_is_named(tmp_path: Path) -> None:
    checkpoints_at(tmp_path)
    ours = tmp_path / "_sparkckpt"
    (ours / "chk-5" / "_metadata").write_bytes(b"torn")
    metadata = ours / "chk-6" / "_metadata"
    metadata.write_bytes(metadata.read_bytes()[:8] + b"\x63" + metadata.read_bytes()[9:])
    (ours / "chk-9").mkdir()
    (ours / "chk-9" / "._metadata.tmp").write_bytes(b"")
    rows = sparkckpt.list_checkpoints(tmp_path).to_pylist()
    assert [row["checkpoint_id"] for row in rows] == [5, 6, 7, 9]
    assert [row["status"] == "inconsistent" for row in rows] == [True, True, False, True]
    assert "truncated to 4 bytes" in rows[0]["problem"]
    assert "format version 99" in rows[1]["problem"]
    assert rows[3]["problem"] == "it has no metadata"
    assert rows[0]["batch_id"] is None
    with pytest.raises(CorruptStateError):
        sparkckpt.show_checkpoint(tmp_path, 5)
    with pytest.raises(UnsupportedFormatVersionError, match="Upgrade sparkckpt"):
        sparkckpt.show_checkpoint(tmp_path, 6)
    with pytest.raises(CheckpointNotFoundError, match=r"no checkpoint 9. It has 5, 6, 7"):
        sparkckpt.show_checkpoint(tmp_path, 9)


def test_a_checkpoint_that_goes_while_it_is_listed_is_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints_at(tmp_path)
    metadata = tmp_path / "_sparkckpt" / "chk-5" / "_metadata"
    read_all = Storage.read_all

    def read_late(storage: Storage, path: str) -> bytes:
        if "chk-5" in path:
            metadata.unlink(missing_ok=True)
        return read_all(storage, path)

    monkeypatch.setattr(Storage, "read_all", read_late)
    assert sparkckpt.list_checkpoints(tmp_path)["checkpoint_id"].to_pylist() == [6, 7]


def test_the_parts_of_a_checkpoint(tmp_path: Path) -> None:
    query = checkpoints_at(tmp_path)
    report = sparkckpt.show_checkpoint(tmp_path)
    assert (report.checkpoint_id, report.batch_id, report.query_id) == (7, 6, "a-query")
    assert report.path == f"file://{tmp_path}"
    assert [(o["operator_id"], o["stores"]) for o in report.operators.to_pylist()] == [
        (0, ["default"]),
        (1, ["left", "right"]),
    ]
    assert report.sources.to_pylist() == [{"source": "0", "offset": "6"}]
    ranges = report.key_groups.to_pylist()
    assert [(r["operator_id"], r["partition"]) for r in ranges] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [(r["first_key_group"], r["last_key_group"]) for r in ranges[:2]] == [(0, 31), (32, 63)]
    assert ranges[0]["rows"] == 4 * ROWS and ranges[2]["rows"] == 8 * ROWS
    handles = handles_of(query)
    assert set(report.files["path"].to_pylist()) == set().union(*map(needed_by, handles))
    refs = [ref for handle in handles for ref in handle.files_of()]
    files = [row for row in report.files.to_pylist() if row["kind"] != "handle"]
    assert [(row["path"], row["offset"], row["bytes"], row["rows"]) for row in files] == [
        (ref.path, ref.offset, ref.length, ref.rows) for ref in refs
    ]
    assert [row["kind"] for row in files[:4]] == ["merge", "delta", "delta", "delta"]
    assert [row["base"] for row in files[:4]] == [True, False, False, False]
    assert not any(row["foreign"] for row in files)


def test_watermark_and_confs() -> None:
    report = report_of(metadata_of(random_operator(_seed())), "here", StateRoot("file:///state"))
    assert report.watermark == datetime(1970, 1, 1, 0, 0, 0, 12_000, timezone.utc)
    assert report.confs.to_pylist() == [{"name": "spark.sql.shuffle.partitions", "value": "3"}]
    assert report.sources.to_pylist() == [
        {"source": "0", "offset": '{"logOffset":7}'},
        {"source": "1", "offset": None},
    ]


def test_files_of_other_directories_are_foreign() -> None:
    handle = random_handle(_seed(), files=3)
    places = ("/state/0/0/a.arrow", "/other/b.arrow", "s3://bucket/c.arrow")
    files = [replace(ref, path=path) for ref, path in zip(handle.files_of(), places, strict=True)]
    handle = replace(handle, families=(FamilyFiles("default", False, tuple(files)),))
    subtask = OperatorSubtaskState(0, (handle,))
    operator = OperatorState(0, handle.operator_name, 1, handle.max_parallelism, True, (subtask,))
    report = report_of(metadata_of(operator), "here", StateRoot("file:///state"))
    rows = report.files.to_pylist()
    assert [(row["path"], row["foreign"]) for row in rows[1:]] == [
        ("0/0/a.arrow", False),
        ("file:///other/b.arrow", True),
        ("s3a://bucket/c.arrow", True),
    ]
    assert report.source.foreign_files == 2
    assert report.source.foreign_bytes == sum(ref.length for ref in files[1:])


def _seed() -> random.Random:
    return random.Random(7)


ALL: list[Callable[[Any], object]] = [
    sparkckpt.list_checkpoints,
    sparkckpt.show_checkpoint,
    sparkckpt.verify,
    sparkckpt.clean,
]


@pytest.mark.parametrize("look", ALL)
def test_wrong_paths_are_told_apart(tmp_path: Path, look: Callable[[Any], object]) -> None:
    with pytest.raises(NotACheckpointError, match=r"it does not exist\. Give the directory"):
        look(tmp_path / "nowhere")
    with pytest.raises(NotACheckpointError, match="it has no file 'metadata'"):
        look(tmp_path)
    (tmp_path / "metadata").write_text('{"id":"q"}')
    with pytest.raises(ForeignCheckpointError, match="not kept by sparkckpt"):
        look(tmp_path)
    with pytest.raises(UnreachableStorageError, match="no-such://x cannot be opened"):
        look("no-such://x")


@pytest.mark.parametrize("look", ALL)
def test_storage_that_may_not_be_read(
    look: Callable[[Any], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = memory_storage()
    checkpoints_at(storage)

    def refuse(operation: str, path: str) -> None:
        if operation in ("read", "list") and "chk-7" in path:
            raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(storage.filesystem, "before", refuse)
    monkeypatch.setattr(Storage, "at", lambda url: storage)
    if look is sparkckpt.list_checkpoints:
        last = sparkckpt.list_checkpoints("anywhere").to_pylist()[-1]
        assert (last["checkpoint_id"], last["status"]) == (7, "inconsistent")
        assert "Permission denied" in last["problem"]
    elif look is sparkckpt.verify:
        (problem,) = sparkckpt.verify("anywhere").to_pylist()
        assert (problem["error"], problem["checkpoints"]) == ("UnreadableFileError", [7])
    else:
        with pytest.raises(SparkckptError, match="Permission denied"):
            look("anywhere")


def test_a_directory_that_may_not_be_listed_is_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints_at(tmp_path)
    storage = Storage.at(tmp_path)
    ls = type(storage.filesystem).ls

    def refuse(filesystem: Any, path: str, *arguments: Any, **options: Any) -> Any:
        if path.endswith("chk-6"):
            raise PermissionError(13, "Permission denied", path)
        return ls(filesystem, path, *arguments, **options)

    monkeypatch.setattr(type(storage.filesystem), "ls", refuse)
    for look in ALL:
        with pytest.raises(UnreadableFileError, match="Permission denied"):
            look(tmp_path)


def test_importing_the_package_does_not_load_arrow() -> None:
    code = "import sys, sparkckpt; print('pyarrow' in sys.modules, 'pyspark' in sys.modules)"
    outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert outcome.stdout == "False False\n", outcome.stderr


def test_samples_have_real_state() -> None:
    """Otherwise the tests of verify would show nothing."""
    query = checkpoints_at(memory_storage())
    assert isinstance(query, StatefulQuery) and isinstance(query.storage.filesystem, Memory)
    kinds = {(ref.inlined, ref.base) for h in handles_of(query) for ref in h.files_of()}
    assert kinds == {(False, True), (False, False), (True, False)}
