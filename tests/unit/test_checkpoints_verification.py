"""`verify` finds whatever is wrong, wherever it is, and says which checkpoints are affected."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sparkckpt
from sparkckpt.checkpoints import contents
from sparkckpt.checkpoints.consistency import inconsistencies
from sparkckpt.checkpoints.contents import ExpectedState, ReferredFile
from sparkckpt.errors import CheckpointNotFoundError
from sparkckpt.format import (
    CheckpointMetadata,
    FamilyFiles,
    MasterState,
    StateHandle,
    metadata_path,
    read_metadata,
    write_handle,
    write_metadata,
)
from sparkckpt.storage import Storage
from tests.unit.checkpoint_samples import StatefulQuery, checkpoints_at, handles_of
from tests.unit.coordinator_samples import Memory, memory_storage
from tests.unit.format_samples import flipped, puts, state_file, table_of

QUERY = checkpoints_at(memory_storage())
"""Nobody may change it but for the time of a test."""


def read(checkpoint_id: int, query: StatefulQuery = QUERY) -> CheckpointMetadata:
    return read_metadata(query.storage.read_all(metadata_path(checkpoint_id)), "here")


FILES = sorted(
    {metadata_path(checkpoint_id) for checkpoint_id in (5, 6, 7)}
    | {f"state/{path}" for checkpoint_id in (5, 6, 7) for path in read(checkpoint_id).files()}
)


def copy_of_query() -> Storage:
    copy = Storage(Memory(), QUERY.storage.root)
    for path, file in QUERY.storage.filesystem.store.items():
        copy.filesystem.pipe_file(path, file.getvalue())
    return copy


def problems_of(storage: Storage, checkpoint_id: int | None = None) -> list[dict[str, Any]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Storage, "at", lambda url: storage)
        found: list[dict[str, Any]] = sparkckpt.verify("anywhere", checkpoint_id).to_pylist()
        return found


def test_sound_checkpoints_have_no_problems() -> None:
    assert problems_of(QUERY.storage) == []
    assert problems_of(QUERY.storage, 6) == []


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(FILES), st.integers(0, 2**32), st.integers(1, 255))
def test_any_flipped_byte_is_found(path: str, position: int, mask: int) -> None:
    storage = copy_of_query()
    data = storage.read_all(path)
    storage.write_atomic(path, flipped(data, position % len(data), mask), overwrite=True)
    problems = problems_of(storage)
    assert problems
    assert {problem["path"] for problem in problems} == {path}
    affected = {c for problem in problems for c in problem["checkpoints"]}
    assert affected == {c for c in (5, 6, 7) if path in _files_of(c)}


def _files_of(checkpoint_id: int) -> set[str]:
    files = {f"state/{path}" for path in read(checkpoint_id).files()}
    return files | {metadata_path(checkpoint_id)}


def test_every_byte_of_a_file_counts() -> None:
    """One handle with a file inlined, and one state file: each byte, with no luck involved."""
    handle = next(h for h in read(6).handles if h.files_of()[-1].inlined)
    delta = next(ref for h in read(7).handles for ref in h.files_of() if not ref.inlined)
    storage = QUERY.storage.below("state")
    for path in (handle.path, delta.path):
        data = storage.read_all(path)
        file = ReferredFile(path)
        if path == handle.path:
            file.handles.append(handle)
        else:
            file.states[ExpectedState(delta, "default", False, 64)] = None
        damaged = Storage(Memory(), "/damaged")
        for position in range(len(data)):
            damaged.write_atomic(path, flipped(data, position, 1 << position % 8), overwrite=True)
            assert list(file.problems(damaged)), f"{path}: byte {position}"


@pytest.mark.parametrize("path", FILES)
def test_missing_truncated_and_longer_files(path: str) -> None:
    storage = copy_of_query()
    data = storage.read_all(path)
    for damaged in (data[:-1], data[: len(data) // 2], data[:5], b"", data + b"\0"):
        storage.write_atomic(path, damaged, overwrite=True)
        problems = problems_of(storage)
        assert {problem["path"] for problem in problems} == {path}, len(damaged)
        assert {problem["error"] for problem in problems} == {"CorruptStateError"}
    if path.startswith("state/"):
        storage.delete([path])
        (problem,) = problems_of(storage)
        assert (problem["path"], problem["error"]) == (path, "FileMissingError")


def test_all_problems_are_found_at_once() -> None:
    storage = copy_of_query()
    for path in FILES[1::2]:
        storage.write_atomic(path, flipped(storage.read_all(path), -20), overwrite=True)
    found = {problem["path"] for problem in problems_of(storage)}
    unread = {path for path in FILES if not any(path in _files_of(c) for c in _readable(storage))}
    assert found == set(FILES[1::2]) - {p for p in unread if p.startswith("state/")}


def _readable(storage: Storage) -> list[int]:
    damaged = {path for path in FILES[1::2] if path.endswith("_metadata")}
    return [c for c in (5, 6, 7) if metadata_path(c) not in damaged]


def test_damage_to_several_record_batches_is_told_apart() -> None:
    data, ref = state_file(puts(40))
    file = ReferredFile(ref.path, states={ExpectedState(ref, "default", False, 64): None})
    storage = Storage(Memory(), "/")
    damaged = flipped(flipped(data, 10), ref.length - ref.tail_length - 1)
    storage.write_atomic(ref.path, flipped(damaged, 700))
    whats = [error.what for error in file.problems(storage)]
    assert len(whats) == 3 and "its head" in whats[0]
    assert all("record batch of the key groups" in what for what in whats[1:])


def test_large_files_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "READ_AT_ONCE", 0)
    assert problems_of(QUERY.storage) == []
    storage = copy_of_query()
    path = next(path for path in FILES if path.endswith(".merge.arrow"))
    data = storage.read_all(path)
    storage.write_atomic(path, data + b"x", overwrite=True)
    (problem,) = problems_of(storage)
    assert problem["problem"] == f"it has {len(data) + 1} bytes, its handle says {len(data)}"


def test_a_handle_of_the_same_name_with_other_content() -> None:
    storage = copy_of_query()
    handle = next(h for h in read(7).handles)
    other = write_handle(replace(handle, change_digest="f" * 16))
    storage.write_atomic(f"state/{handle.path}", other, overwrite=True)
    (problem,) = problems_of(storage)
    assert problem["problem"] == "it is not the handle that the checkpoint was made of"


def test_bytes_of_a_handle_that_nothing_accounts_for() -> None:
    storage = copy_of_query()
    handle = next(h for h in read(7).handles if not h.files_of()[-1].inlined)
    storage.write_atomic(f"state/{handle.path}", write_handle(handle, b"junk"), overwrite=True)
    (problem,) = problems_of(storage)
    assert problem["problem"] == "nothing accounts for its bytes 12 to 16"


def test_rows_that_contradict_the_handle() -> None:
    deletes = table_of([(1, 1, {"k": "a", "x": 0.0}, None)])
    appends = table_of([(1, 2, {"k": "a", "x": 0.0}, {"n": 1})])
    for rows, what, options in (
        (deletes, "holds deletes, though the file is a base", {"base": True}),
        (appends, "holds appends, though keys have one value", {}),
    ):
        data, ref = state_file(rows, **options)
        storage = Storage(Memory(), "/")
        storage.write_atomic(ref.path, data)
        file = ReferredFile(ref.path, states={ExpectedState(ref, "default", False, 64): None})
        (error,) = file.problems(storage)
        assert what in error.what
    file = ReferredFile(ref.path, states={ExpectedState(ref, "other", True, 64): None})
    (error,) = file.problems(storage)
    assert "its handle says ('other', True, 64)" in error.what


def test_files_are_read_once_though_checkpoints_share_them() -> None:
    storage = copy_of_query()
    reads: list[str] = []
    storage.filesystem.before = lambda operation, path: (
        reads.append(path) if operation == "read" else None
    )
    assert problems_of(storage) == []
    state = [path for path in reads if "/state/" in path]
    assert len(state) == len(set(state))
    looked_for = {"_sparkckpt/savepoint.json"}
    assert {path.removeprefix("/checkpoint/") for path in reads} - looked_for == set(FILES)


def test_progress_is_told() -> None:
    told: list[tuple[int, int]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Storage, "at", lambda url: QUERY.storage)
        sparkckpt.verify("anywhere", progress=lambda done, total: told.append((done, total)))
    state = len([path for path in FILES if path.startswith("state/")])
    assert told == [(done, state) for done in range(state + 1)]


def test_a_checkpoint_that_goes_meanwhile_is_no_problem() -> None:
    storage = copy_of_query()
    only_5 = _files_of(5) - _files_of(6) - _files_of(7)

    def remove(operation: str, path: str) -> None:
        if operation == "read" and "/state/" in path:
            storage.filesystem.before = lambda operation, path: None
            storage.delete([metadata_path(5), *only_5])

    storage.filesystem.before = remove
    assert problems_of(storage) == []


def test_there_must_be_such_a_checkpoint() -> None:
    with pytest.raises(CheckpointNotFoundError, match=r"no checkpoint 4. It has 5, 6, 7"):
        problems_of(QUERY.storage, 4)


def test_foreign_files_are_read_where_they_are(tmp_path: Path) -> None:
    """As after a restore: the files of a handle may lie in another checkpoint directory."""
    query = checkpoints_at(tmp_path / "a")
    metadata = read(7, query)
    operators = tuple(
        replace(
            operator,
            subtasks=tuple(
                replace(s, handles=tuple(_absolute(h, tmp_path / "a/state") for h in s.handles))
                for s in operator.subtasks
            ),
        )
        for operator in metadata.operator_states
    )
    there = Storage.at(tmp_path / "b")
    there.write_atomic("metadata", b'{"id":"q"}')
    there.write_atomic(
        metadata_path(7), write_metadata(replace(metadata, operator_states=operators))
    )
    for handle in (h for operator in operators for h in operator.handles):
        own = query.storage.read_all(f"state/{handle.path}")
        there.write_atomic(
            f"state/{handle.path}", own if _inlines(handle) else write_handle(handle)
        )
    assert sparkckpt.verify(tmp_path / "b").num_rows == 0
    lost = next(ref for ref in handles_of(query)[0].files_of() if not ref.inlined)
    (tmp_path / "a/state" / lost.path).unlink()
    (problem,) = sparkckpt.verify(tmp_path / "b").to_pylist()
    assert problem["path"] == f"file://{tmp_path}/a/state/{lost.path}"


def _inlines(handle: StateHandle) -> bool:
    return any(ref.path == handle.path for ref in handle.files_of())


def _absolute(handle: StateHandle, root: Path) -> StateHandle:
    files = tuple(replace(ref, path=f"{root}/{ref.path}") for ref in handle.files_of())
    return replace(handle, families=(FamilyFiles("default", False, files),))


# What metadata says about itself.

Edit = Callable[[StateHandle], StateHandle]


def edited(edit: Edit, checkpoint_id: int = 7) -> CheckpointMetadata:
    """The checkpoint with another handle in the first place."""
    metadata = read(checkpoint_id)
    operator = metadata.operator_states[0]
    subtask = operator.subtasks[0]
    subtask = replace(subtask, handles=(edit(subtask.handles[0]), *subtask.handles[1:]))
    operator = replace(operator, subtasks=(subtask, *operator.subtasks[1:]))
    return replace(metadata, operator_states=(operator, *metadata.operator_states[1:]))


def whats(metadata: CheckpointMetadata, before: CheckpointMetadata | None = None) -> list[str]:
    return [error.what for error in inconsistencies(metadata, before, "here")]


def with_files(handle: StateHandle, *last: Any, **changes: Any) -> StateHandle:
    files = (*handle.files_of()[:-1], replace(handle.files_of()[-1], **changes), *last)
    return replace(handle, families=(FamilyFiles("default", False, files),))


@pytest.mark.parametrize(
    ("edit", "what"),
    [
        (lambda h: replace(h, id="other"), "commits/6 names other handles"),
        (lambda h: replace(h, changed_rows=1), "has 20 changed rows, and says 1"),
        (lambda h: with_files(h, last_version=8), "which is of version 8"),
        (lambda h: with_files(h, h.files_of()[-1]), "applies a file twice"),
        (lambda h: with_files(h, last_key_group=40), "of the key groups [0, 40], but owns"),
        (lambda h: replace(h, base_id="other"), "was made from other, not from 0/0/6_"),
    ],
)
def test_metadata_that_contradicts_itself(edit: Edit, what: str) -> None:
    assert whats(read(7), read(6)) == []
    found = whats(edited(edit), read(6))
    assert found and what in found[0]


def test_only_the_batch_before_is_compared() -> None:
    broken = edited(lambda h: replace(h, base_id="other"))
    assert whats(broken, read(5)) == [] and whats(broken) == []
    rescaled = replace(read(6), query_id="another")
    assert whats(broken, rescaled) == []


def test_files_of_spark_must_be_there_and_readable() -> None:
    metadata = read(7)
    for path in ("offsets/6", "commits/6"):
        others = tuple(state for state in metadata.master_states if state.path != path)
        assert f"it has no {path}" in whats(replace(metadata, master_states=others))[0]
        broken = (*others, MasterState(path, b"v9"))
        (error,) = inconsistencies(replace(metadata, master_states=broken), None, "here")
        assert error.path == f"{path} in {metadata_path(7)}" and "format version 9" in error.what


def test_damaged_metadata_leaves_the_others_to_be_verified() -> None:
    storage = copy_of_query()
    storage.write_atomic(metadata_path(6), b"damaged", overwrite=True)
    (problem,) = problems_of(storage)
    assert (problem["path"], problem["checkpoints"]) == (metadata_path(6), [6])
    assert problem["error"] == "CorruptStateError"
