"""The commands on directories that were restored, rescaled, claimed or only half restored."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import sparkckpt
from sparkckpt.checkpoints.consistency import inconsistencies
from sparkckpt.checkpoints.contents import ExpectedState, ReferredFile
from sparkckpt.cli.console import main
from sparkckpt.coordinator import FileCompletedCheckpointStore
from sparkckpt.errors import (
    CheckpointNotFoundError,
    ClaimedCheckpointError,
    RestorePendingError,
)
from sparkckpt.format import CheckpointMetadata, FamilyFiles, MasterState, StateHandle
from sparkckpt.format.manifest import manifest_path, new_manifest_id
from sparkckpt.storage import Storage
from tests.unit.checkpoint_samples import StatefulQuery
from tests.unit.coordinator_samples import Memory
from tests.unit.format_samples import puts, state_file
from tests.unit.manifest_samples import operators_of, rescale, restore, write_manifest
from tests.unit.test_coordinator_restored import a_query, run_batches

MANIFEST = new_manifest_id()
Look = Callable[[Any], object]
ALL: list[Look] = [
    sparkckpt.list_checkpoints,
    sparkckpt.show_checkpoint,
    sparkckpt.verify,
    sparkckpt.clean,
]


@pytest.fixture
def source(tmp_path: Path) -> StatefulQuery:
    return a_query(tmp_path / "source")


def checkpoints(query: StatefulQuery) -> list[CheckpointMetadata]:
    found: list[CheckpointMetadata] = []
    FileCompletedCheckpointStore.at(query.storage).recover(found.append)
    return found


@pytest.mark.parametrize("parallelism", [1, 2, 3, 5])
def test_a_restored_query_is_sound_at_each_step(
    source: StatefulQuery, tmp_path: Path, parallelism: int
) -> None:
    target = restore(source, tmp_path / "target", "no-claim", parallelism)
    for batches in (0, 1, 1, 4):
        run_batches(target, batches, retained=10)
        assert sparkckpt.verify(tmp_path / "target").to_pylist() == []


@pytest.mark.parametrize("parallelism", [1, 2, 3, 5])
def test_a_rescaled_query_is_sound_at_each_step(
    source: StatefulQuery, tmp_path: Path, parallelism: int
) -> None:
    rescale(source, parallelism)
    for batches in (1, 1, 4):
        run_batches(source, batches, retained=10)
        assert sparkckpt.verify(tmp_path / "source").to_pylist() == []


def test_foreign_files_are_verified_too(source: StatefulQuery, tmp_path: Path) -> None:
    target = restore(source, tmp_path / "target", "no-claim")
    run_batches(target, 1)
    report = sparkckpt.show_checkpoint(tmp_path / "target")
    foreign = {row["path"] for row in report.files.to_pylist() if row["foreign"]}
    lost = sorted(foreign)[0]
    Path(lost.removeprefix("file://")).unlink()
    (problem,) = sparkckpt.verify(tmp_path / "target").to_pylist()
    assert (problem["path"], problem["error"]) == (lost, "FileMissingError")


def test_show_says_what_still_depends_on_the_source(source: StatefulQuery, tmp_path: Path) -> None:
    target = restore(source, tmp_path / "target", "no-claim")
    run_batches(target, 1)
    first, second = (sparkckpt.show_checkpoint(tmp_path / "target", i) for i in (41, 42))
    for report in (first, second):
        rows = [row for row in report.files.to_pylist() if row["foreign"]]
        assert report.source.restored_from == f"file://{tmp_path}/source"
        assert report.source.restore_mode == "no-claim"
        assert report.source.foreign_files == len({row["path"] for row in rows}) > 0
        sizes = {(row["path"], row["offset"]): row["bytes"] for row in rows}
        assert report.source.foreign_bytes == sum(sizes.values())
    assert first.source.manifest == target.storage.list_names("_sparkckpt/manifests")[0]
    assert second.source.manifest is None
    kinds = [set(report.files["kind"].to_pylist()) for report in (first, second)]
    assert "handle" not in kinds[0] and "handle" in kinds[1]
    shown = CliRunner().invoke(main, ["show", f"{tmp_path}/target", "--output", "json"])
    assert json.loads(shown.output)["foreign_files"] == second.source.foreign_files
    run_batches(target, 12)
    assert sparkckpt.show_checkpoint(tmp_path / "target").source.foreign_files == 0


def test_a_query_that_was_restored_and_has_not_run(source: StatefulQuery, tmp_path: Path) -> None:
    restore(source, tmp_path / "target", "no-claim")
    where = f"It was restored from checkpoint 40 of file://{tmp_path}/source, and no query has run"
    for look in (sparkckpt.show_checkpoint, sparkckpt.verify):
        with pytest.raises(CheckpointNotFoundError, match=where):
            look(tmp_path / "target")
    outcome = CliRunner().invoke(main, ["list", f"{tmp_path}/target"])
    assert outcome.exit_code == 0 and where in outcome.output
    assert sparkckpt.clean(tmp_path / "target").num_rows == 0


@pytest.mark.parametrize("look", ALL)
def test_a_restore_that_has_not_ended(tmp_path: Path, look: Look) -> None:
    marker = tmp_path / "_sparkckpt" / "restoring.json"
    marker.parent.mkdir()
    marker.write_bytes(b"{}")
    with pytest.raises(RestorePendingError, match="Run the same restore again"):
        look(tmp_path)


@pytest.mark.parametrize("look", ALL)
def test_a_claimed_source_can_only_be_looked_at(
    source: StatefulQuery, tmp_path: Path, look: Look
) -> None:
    restore(source, tmp_path / "target", "claim")
    if look in (sparkckpt.show_checkpoint, sparkckpt.verify):
        look(tmp_path / "source")
    else:
        with pytest.raises(ClaimedCheckpointError, match=f"into file://{tmp_path}/target, which"):
            look(tmp_path / "source")


def test_clean_lists_and_deletes_manifests_and_claimed_files(
    source: StatefulQuery, tmp_path: Path
) -> None:
    target = restore(source, tmp_path / "target", "claim")
    run_batches(target, 12)
    unused = write_manifest(target.storage, target.latest, operators_of(target, target.latest))
    orphan = "0/0/1_0a0a0a0a-0000-4000-8000-000000000001.delta.arrow"
    for query in (source, target):
        query.write(f"state/{orphan}", b"orphan")
    claimed = f"file://{tmp_path}/source/state/{orphan}"
    expected = {f"state/{orphan}", claimed, manifest_path(unused)}
    listed = sparkckpt.clean(tmp_path / "target").to_pylist()
    assert expected <= {row["path"] for row in listed}
    assert not any(row["deleted"] for row in listed)
    deleted = sparkckpt.clean(tmp_path / "target", dry_run=False).to_pylist()
    assert {row["path"] for row in deleted if row["deleted"]} == {row["path"] for row in listed}
    assert sparkckpt.clean(tmp_path / "target").num_rows == 0
    assert not source.storage.exists(f"state/{orphan}")
    assert sparkckpt.verify(tmp_path / "target").num_rows == 0


# What metadata says about slices and manifests.


def whats(metadata: CheckpointMetadata, before: CheckpointMetadata | None = None) -> list[str]:
    return [error.what for error in inconsistencies(metadata, before, "here")]


def with_first_handle(
    metadata: CheckpointMetadata, edit: Callable[[StateHandle], StateHandle]
) -> CheckpointMetadata:
    operator = metadata.operator_states[0]
    subtask = operator.subtasks[0]
    subtask = replace(subtask, handles=(edit(subtask.handles[0]), *subtask.handles[1:]))
    operator = replace(operator, subtasks=(subtask, *operator.subtasks[1:]))
    return replace(metadata, operator_states=(operator, *metadata.operator_states[1:]))


@pytest.mark.parametrize(("overlap", "twice"), [(0, False), (1, True)])
def test_a_file_may_be_listed_in_disjoint_slices(
    source: StatefulQuery, overlap: int, twice: bool
) -> None:
    def cut(handle: StateHandle) -> StateHandle:
        first, *others = handle.files_of()
        slices = (
            replace(first, last_key_group=10),
            replace(first, first_key_group=11 - overlap),
        )
        return replace(handle, families=(FamilyFiles("default", False, (*slices, *others)),))

    found = whats(with_first_handle(checkpoints(source)[-1], cut))
    assert any("applies a file twice" in what for what in found) is twice
    assert bool(found) is twice


def test_a_chain_may_have_one_manifest_in_it(source: StatefulQuery) -> None:
    before, after = checkpoints(source)[-2:]
    assert whats(after, before) == []
    manifest = new_manifest_id()
    one = with_first_handle(after, lambda handle: replace(handle, base_id=manifest))
    assert whats(one, before) == [
        f"some of its handles were made from {manifest}, and some were not"
    ]
    operator = after.operator_states[0]
    subtasks = tuple(
        replace(s, handles=tuple(replace(h, base_id=manifest) for h in s.handles))
        for s in operator.subtasks
    )
    all_of_it = replace(after, operator_states=(replace(operator, subtasks=subtasks),))
    assert "made from" not in "".join(whats(all_of_it, before))


@pytest.mark.parametrize(
    ("ids", "what"),
    [
        ({"0": [[MANIFEST]] * 2, "1": [[MANIFEST] * 2] * 5}, None),
        ({"0": [[MANIFEST]] * 2}, "names other operators"),
        ({"0": [[MANIFEST]], "1": [[MANIFEST] * 2] * 2}, "fewer partitions of operator 0"),
        ({"0": [[MANIFEST]] * 2, "1": [[MANIFEST, "x"]] * 2}, "it names other ids"),
    ],
)
def test_a_commit_may_name_a_manifest(
    source: StatefulQuery, ids: dict[str, Any], what: str | None
) -> None:
    metadata = checkpoints(source)[-1]
    path = f"commits/{metadata.batch_id}"
    entry = {"nextBatchWatermarkMs": 0, "stateUniqueIds": ids}
    content = f"v2\n{json.dumps(entry)}".encode()
    states = tuple(
        MasterState(path, content) if state.path == path else state
        for state in metadata.master_states
    )
    found = whats(replace(metadata, master_states=states))
    assert found == [] if what is None else what in found[0]


def test_a_slice_lies_within_its_file_and_is_read_once() -> None:
    data, ref = state_file(puts(30, first=15))
    storage = Storage(Memory(), "/")
    storage.write_atomic(ref.path, data)
    reads: list[str] = []
    storage.filesystem.before = lambda operation, path: (
        reads.append(path) if operation == "read" else None
    )

    def problems(own: bool, *key_groups: tuple[int, int]) -> list[str]:
        reads.clear()
        slices = [
            replace(ref, first_key_group=first, last_key_group=last) for first, last in key_groups
        ]
        states = {ExpectedState(part, "default", False, 64, own): None for part in slices}
        return [error.what for error in ReferredFile(ref.path, states=states).problems(storage)]

    assert problems(False, (5, 14), (5, 9), (10, 14), (7, 7)) == []
    assert len(reads) == 1
    assert problems(False, (5, 14), (4, 9)) == ["it spans [5, 14], its handle says [4, 9]"]
    assert problems(False, (10, 15)) == ["it spans [5, 14], its handle says [10, 15]"]
    assert problems(True, (5, 14)) == []
    assert problems(True, (5, 9)) == ["it spans [5, 14], its handle says [5, 9]"]
