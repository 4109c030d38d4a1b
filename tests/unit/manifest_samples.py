"""Queries that were rescaled or restored: what such a command leaves, and what tasks make of it."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from sparkckpt.coordinator.committed import CommittedState
from sparkckpt.coordinator.pending import PendingCheckpoint
from sparkckpt.format import (
    CheckpointMetadata,
    CheckpointStatistics,
    FamilyFiles,
    OperatorState,
    StateFileRef,
    StateHandle,
)
from sparkckpt.format.manifest import load_manifest, new_manifest_id, store_manifest
from sparkckpt.keygroups import KeyGroupRange, range_of
from sparkckpt.paths import is_absolute
from sparkckpt.storage import Storage
from tests.unit.checkpoint_samples import StatefulQuery
from tests.unit.coordinator_samples import MAX_PARALLELISM, OPERATORS, QUERY_ID, FakeQuery, Store

PIN = "restore-1"


def operators_of(query: FakeQuery, batch_id: int) -> tuple[OperatorState, ...]:
    """The state that a batch was committed with."""
    committed = CommittedState(query.storage)
    pending = PendingCheckpoint(batch_id)
    pending.commit(committed.entry(batch_id).state_ids)
    for store, handle in committed.load(batch_id, pending.outstanding()):
        pending.supply(store, handle)
    return pending.operator_states()


def write_manifest(storage: Storage, batch_id: int, operators: Iterable[OperatorState]) -> str:
    manifest_id = new_manifest_id()
    metadata = CheckpointMetadata(
        checkpoint_id=0,
        batch_id=batch_id,
        query_id=QUERY_ID,
        timestamp_ms=0,
        operator_states=tuple(operators),
        master_states=(),
        statistics=CheckpointStatistics(),
    )
    store_manifest(storage, manifest_id, metadata)
    return manifest_id


def adopt_manifest(query: FakeQuery, batch_id: int, manifest_id: str, parallelism: int) -> None:
    """Has the commit log name the manifest, and the query's tasks find their slices in it."""
    operators = load_manifest(query.storage, manifest_id).operator_states
    ids = {
        str(operator.operator_id): [[manifest_id] * len(OPERATORS[operator.operator_id][1])]
        * max(operator.parallelism, parallelism)
        for operator in operators
    }
    entry = {"nextBatchWatermarkMs": 0, "stateUniqueIds": ids}
    query.write(f"commits/{batch_id}", f"v2\n{json.dumps(entry)}".encode())
    query.parallelism = parallelism
    handles = {(o.operator_id, h.store_name): list(o.handles) for o in operators for h in o.handles}
    query.committed[batch_id] = {
        store: _view(
            store,
            manifest_id,
            parallelism,
            [h for h in handles[store.operator_id, store.name] if h.store_name == store.name],
        )
        for store in query.stores
    }


def _view(
    store: Store, manifest_id: str, parallelism: int, sources: Sequence[StateHandle]
) -> StateHandle:
    """What a task that loads the manifest takes for its store's version."""
    owned = range_of(store.partition, parallelism, MAX_PARALLELISM)
    files = [list(slices_of(source, owned)) for source in sources]
    one_source = sum(map(bool, files)) < 2
    merged = sorted((ref for part in files for ref in part), key=lambda ref: ref.last_version)
    refs = tuple(replace(ref, base=ref.base and one_source) for ref in merged)
    return replace(
        sources[0],
        partition=store.partition,
        id=manifest_id,
        base_id=None,
        parallelism=parallelism,
        first_key_group=owned.first,
        last_key_group=owned.last,
        families=(FamilyFiles("default", False, refs),),
    )


def slices_of(source: StateHandle, owned: KeyGroupRange) -> Iterable[StateFileRef]:
    mine = source.key_groups.clip_to(owned)
    for ref in source.files_of():
        inside = None if mine is None else ref.key_groups.clip_to(mine)
        if inside is not None:
            yield replace(ref, first_key_group=inside.first, last_key_group=inside.last)


def rescale(query: FakeQuery, parallelism: int) -> str:
    """The query goes on with so many partitions; the id of the manifest."""
    batch_id = query.latest
    manifest_id = write_manifest(query.storage, batch_id, operators_of(query, batch_id))
    adopt_manifest(query, batch_id, manifest_id, parallelism)
    return manifest_id


def restore(
    source: FakeQuery, location: Path, mode: str, parallelism: int = 3, scheme: str = "file://"
) -> StatefulQuery:
    """A query that goes on elsewhere from where `source` is; its files are named by URL."""
    target = StatefulQuery(
        Storage.at(location), source.operators, parallelism, source.min_batches, seed=7
    )
    root, batch_id = f"{scheme}{source.storage.below('state').root}", source.latest
    operators = operators_of(source, batch_id)
    files = {ref.path for operator in operators for h in operator.handles for ref in h.files_of()}
    if mode == "no-claim":
        pin = {"formatVersion": 1, "files": sorted(files)}
        source.write(f"_sparkckpt/pins/{PIN}.json", json.dumps(pin).encode())
    if mode == "claim":
        claimed = {"formatVersion": 1, "by": target.storage.where("")}
        source.write("_sparkckpt/claimed.json", json.dumps(claimed).encode())
    manifest_id = write_manifest(target.storage, batch_id, _elsewhere(operators, root))
    adopt_manifest(target, batch_id, manifest_id, parallelism)
    for planned in (batch_id - 1, batch_id):
        target.plan(planned)
    restored = {
        "formatVersion": 1,
        "checkpointId": 40,
        "source": source.storage.where(""),
        "mode": mode,
        "pin": PIN if mode == "no-claim" else None,
        "sourceStateRoot": root,
    }
    target.write("_sparkckpt/restored.json", json.dumps(restored).encode())
    return target


def _elsewhere(operators: Iterable[OperatorState], root: str) -> Iterable[OperatorState]:
    """The same with absolute paths."""
    for operator in operators:
        subtasks = tuple(
            replace(s, handles=tuple(_absolute(handle, root) for handle in s.handles))
            for s in operator.subtasks
        )
        yield replace(operator, subtasks=subtasks)


def _absolute(handle: StateHandle, root: str) -> StateHandle:
    files = tuple(
        ref if is_absolute(ref.path) else replace(ref, path=f"{root}/{ref.path}")
        for ref in handle.files_of()
    )
    return replace(handle, families=(FamilyFiles("default", False, files),))


def own_files(handles: Iterable[StateHandle]) -> set[str]:
    """The files below the query's own state root that these need, manifests' handles left out."""
    handles = list(handles)
    refs = {ref.path for handle in handles for ref in handle.files_of()}
    own = {handle.path for handle in handles if not handle.id.startswith("manifest-")}
    return own | {path for path in refs if not is_absolute(path)}


def foreign_files(handles: Iterable[StateHandle]) -> set[str]:
    """The files of other directories that these need, by their names there."""
    refs = {ref.path for handle in handles for ref in handle.files_of()}
    return {path.rpartition("/state/")[2] for path in refs if is_absolute(path)}
