"""What restored and rescaled directories hold, as queries would find it; and sudden deaths."""

import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sparkckpt.format import StateHandle, read_state
from sparkckpt.format.manifest import load_manifest, named_manifest
from sparkckpt.format.metadata import CheckpointMetadata, OperatorState
from sparkckpt.keygroups import range_of
from sparkckpt.restoration.plan import shares
from sparkckpt.restoration.state import Logs, committed_batch
from sparkckpt.storage import Storage
from tests.unit.checkpoint_samples import checkpoints_at

Rows = dict[tuple[int, str], list[Any]]
"""By operator and store."""


def sample(tmp_path: Path, planned: bool = True) -> Path:
    """A stopped query with seven batches, two operators, two partitions, and three checkpoints."""
    location = tmp_path / "sample"
    query = checkpoints_at(location)
    if planned:
        query.plan(7)
    for path in ("sources/0/0", "sources/0/1", "sources/0/.2.tmp", "sources/1/deep/4.compact"):
        query.write(path, path.encode())
    return location


def copy_of(location: Path, name: str) -> Path:
    target = location.parent / name
    shutil.copytree(location, target)
    return target


def handle_for(
    operator: OperatorState, store: str, partition: int, parallelism: int
) -> StateHandle:
    """What a partition of another parallelism commits after it has loaded the state."""
    parallelism = parallelism if operator.keyed else 1
    (share,) = (
        s
        for s in shares(operator, parallelism)
        if (s.store_name, s.partition) == (store, partition)
    )
    (like, *_) = (handle for handle in operator.handles if handle.store_name == store)
    owned = range_of(partition, parallelism, operator.max_parallelism)
    return replace(
        like,
        partition=partition,
        parallelism=parallelism,
        first_key_group=owned.first,
        last_key_group=owned.last,
        families=share.families,
    )


def rows_in(storage: Storage, operators: tuple[OperatorState, ...], parallelism: int) -> Rows:
    """The state that the partitions of this parallelism load, in an order that means nothing."""
    found: Rows = {}
    for operator in operators:
        for store in [handle.store_name for handle in operator.subtasks[0].handles]:
            rows = found.setdefault((operator.operator_id, store), [])
            for partition in range(parallelism if operator.keyed else 1):
                handle = handle_for(operator, store, partition, parallelism)
                if handle.families:
                    table = read_state(storage.below("state"), handle)
                    assert all(kg in handle.key_groups for kg in table["kg"].to_pylist())
                    rows += table.to_pylist()
            rows.sort(key=repr)
    return found


def metadata_in(storage: Storage) -> CheckpointMetadata:
    """The state that the query on this directory goes on from."""
    logs = Logs.read(storage)
    assert logs.commit is not None
    names = storage.list_names("_sparkckpt")
    return committed_batch(storage, logs.commit, names, lambda done, total: None).metadata


def loaded_rows(storage: Storage) -> tuple[int, Rows]:
    """The parallelism that the query on this directory goes on with, and what it then loads."""
    logs = Logs.read(storage)
    assert logs.commit is not None and logs.parallelism is not None
    manifest_id = named_manifest(logs.commit, "commits")
    if manifest_id is not None:
        operators = load_manifest(storage, manifest_id).operator_states
        for operator in operators:
            entries = logs.commit.state_ids[operator.operator_id]
            assert len(entries) >= (logs.parallelism if operator.keyed else 1)
            stores = len(operator.subtasks[0].handles)
            assert all(entry == (manifest_id,) * stores for entry in entries)
    else:
        operators = metadata_in(storage).operator_states
        assert all(o.parallelism == logs.parallelism for o in operators if o.keyed)
    return logs.parallelism, rows_in(storage, operators, logs.parallelism)


class Killed(BaseException):
    """The process is gone: nothing of it goes on."""


@contextmanager
def killed_at(
    monkeypatch: pytest.MonkeyPatch, number: int, after: bool = False
) -> Iterator[Callable[[], int]]:
    """The process dies at its so many-th change of storage, before it is made or just after.

    Gives how many changes there were.
    """
    calls, lock = 0, threading.Lock()

    def dying(change: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any, **options: Any) -> None:
            nonlocal calls
            with lock:
                calls += 1
                mine = calls
            if mine > number or (mine == number and not after):
                raise Killed
            change(*arguments, **options)
            if mine == number:
                raise Killed

        return call

    with monkeypatch.context() as patch:
        for name in ("write_atomic", "delete", "copy"):
            patch.setattr(Storage, name, dying(getattr(Storage, name)))
        yield lambda: calls
