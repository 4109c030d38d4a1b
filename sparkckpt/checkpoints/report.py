"""What one checkpoint consists of, as its metadata says; no file of state is opened."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone

import pyarrow as pa

from sparkckpt.checkpoints.directory import CheckpointDirectory, Location
from sparkckpt.coordinator.restored import Restored
from sparkckpt.format.handle import StateFileRef, StateHandle
from sparkckpt.format.manifest import manifest_of
from sparkckpt.format.metadata import CheckpointMetadata, CheckpointStatistics, OperatorState
from sparkckpt.format.operatorstate import OperatorStateHandle, OperatorStateInfo
from sparkckpt.paths import StateRoot, is_absolute

_EPOCH = datetime.fromtimestamp(0, timezone.utc)

HANDLE = "handle"
DELTA = "delta"
"""The changes of one commit."""
MERGE = "merge"
OPERATOR_STATE = "operator state"

OPERATORS = pa.schema(
    {
        "operator_id": pa.int64(),
        "name": pa.string(),
        "parallelism": pa.int64(),
        "max_parallelism": pa.int64(),
        "keyed": pa.bool_(),
        "stores": pa.list_(pa.string()),
        "rows": pa.int64(),
        "bytes": pa.int64(),
        "files": pa.int64(),
    }
)
KEY_GROUPS = pa.schema(
    {
        "operator_id": pa.int64(),
        "partition": pa.int64(),
        "first_key_group": pa.int64(),
        "last_key_group": pa.int64(),
        "rows": pa.int64(),
        "bytes": pa.int64(),
        "files": pa.int64(),
    }
)
OPERATOR_STATES = pa.schema(
    {
        "operator_id": pa.int64(),
        "store": pa.string(),
        "name": pa.string(),
        "mode": pa.string(),
        "partitions": pa.int64(),
        "items": pa.int64(),
        "bytes": pa.int64(),
    }
)
SOURCES = pa.schema({"source": pa.string(), "offset": pa.string()})
CONFS = pa.schema({"name": pa.string(), "value": pa.string()})
FILES = pa.schema(
    {
        "operator_id": pa.int64(),
        "partition": pa.int64(),
        "store": pa.string(),
        "family": pa.string(),
        "kind": pa.string(),
        "path": pa.string(),
        "offset": pa.int64(),
        "bytes": pa.int64(),
        "rows": pa.int64(),
        "first_key_group": pa.int64(),
        "last_key_group": pa.int64(),
        "first_version": pa.int64(),
        "last_version": pa.int64(),
        "level": pa.int64(),
        "base": pa.bool_(),
        "foreign": pa.bool_(),
    }
)


@dataclass(frozen=True)
class SourceReport:
    """What a checkpoint still needs of other checkpoint directories."""

    restored_from: str | None = None
    """Where the query was restored from, if it was."""
    restore_mode: str | None = None
    manifest: str | None = None
    """What the commit of its batch names, if the query was restored or rescaled at it."""
    foreign_files: int = 0
    foreign_bytes: int = 0


@dataclass(frozen=True)
class CheckpointReport:
    """A checkpoint, or a savepoint; the parts that may have many entries are Arrow tables.

    Rows are those in files: a key that was changed in several versions has several.
    """

    checkpoint_id: int
    batch_id: int
    query_id: str
    path: str
    completed: datetime
    watermark: datetime | None
    """None while there is none."""
    statistics: CheckpointStatistics
    source: SourceReport
    operators: pa.Table
    key_groups: pa.Table
    """Which partition has which key groups, and how much there is of them."""
    operator_states: pa.Table
    """State that belongs to no key, by its name: how many partitions have some, and the items and
    bytes of all of them."""
    sources: pa.Table
    """Where the batch ends in each source, in the source's own JSON; null if nowhere."""
    confs: pa.Table
    """The settings of Spark's that are pinned for the life of the query."""
    files: pa.Table
    """Every file, once for each store that refers to it, or once for each slice. Of a handle only
    the path is known; one that comes from a manifest is none of the files. `offset` is not 0 in a
    file that is inlined in a handle; `foreign` files belong to another checkpoint directory."""
    savepoint: str | None = None
    """The name of the savepoint that it is, if it is one."""

    def _repr_html_(self) -> str:
        from sparkckpt.pages.notebook import html_of_checkpoint

        return html_of_checkpoint(self)


def show_checkpoint(path: Location, checkpoint_id: int | None = None) -> CheckpointReport:
    """What a checkpoint, by default the newest, of a query's checkpointLocation consists of."""
    directory = CheckpointDirectory.open(path, claimed=True)
    metadata = directory.metadata(directory.choose(checkpoint_id))
    where, restored = directory.storage.where(""), directory.restored()
    report = report_of(metadata, where, directory.root, restored)
    name = directory.savepoint.name if directory.savepoint else None
    return replace(report, savepoint=name)


def report_of(
    metadata: CheckpointMetadata, where: str, root: StateRoot, restored: Restored | None = None
) -> CheckpointReport:
    offsets = metadata.offsets
    operators = metadata.operator_states
    sources = [
        {"source": name, "offset": offset}
        for name, offset in zip(offsets.names, offsets.sources, strict=True)
    ]
    confs = [{"name": name, "value": value} for name, value in sorted(offsets.confs.items())]
    manifest = manifest_of(metadata)
    has_handles = manifest is None
    ranges = [row for operator in operators for row in _ranges(operator, has_handles)]
    files = [row for handle in metadata.handles for row in _files(handle, root, has_handles)]
    return CheckpointReport(
        checkpoint_id=metadata.checkpoint_id,
        batch_id=metadata.batch_id,
        query_id=metadata.query_id,
        path=where,
        completed=_time(metadata.timestamp_ms),
        watermark=_time(metadata.watermark_ms) if metadata.watermark_ms else None,
        statistics=metadata.statistics,
        source=_source(metadata, root, manifest, restored),
        operators=pa.Table.from_pylist([_operator(o, has_handles) for o in operators], OPERATORS),
        key_groups=pa.Table.from_pylist(ranges, KEY_GROUPS),
        operator_states=pa.Table.from_pylist(
            [row for operator in operators for row in _operator_states(operator)], OPERATOR_STATES
        ),
        sources=pa.Table.from_pylist(sources, SOURCES),
        confs=pa.Table.from_pylist(confs, CONFS),
        files=pa.Table.from_pylist(files, FILES),
    )


def _time(milliseconds: int) -> datetime:
    return _EPOCH + timedelta(milliseconds=milliseconds)


def _source(
    metadata: CheckpointMetadata, root: StateRoot, manifest: str | None, restored: Restored | None
) -> SourceReport:
    refs = (data for handle in metadata.handles for data in handle.data)
    foreign = {
        (name, file.offset): file.length
        for file in refs
        if is_absolute(name := root.name_of(file.path))
    }
    return SourceReport(
        restored_from=restored.source if restored else None,
        restore_mode=restored.mode if restored else None,
        manifest=manifest,
        foreign_files=len({name for name, _ in foreign}),
        foreign_bytes=sum(foreign.values()),
    )


def _operator(operator: OperatorState, has_handles: bool) -> dict[str, object]:
    return {
        "operator_id": operator.operator_id,
        "name": operator.operator_name,
        "parallelism": operator.parallelism,
        "max_parallelism": operator.max_parallelism,
        "keyed": operator.keyed,
        "stores": [handle.store_name for handle in operator.subtasks[0].handles],
        **_totals(operator.handles, has_handles),
    }


def _ranges(operator: OperatorState, has_handles: bool) -> Iterator[dict[str, object]]:
    for subtask in operator.subtasks:
        yield {
            "operator_id": operator.operator_id,
            "partition": subtask.partition,
            "first_key_group": subtask.key_groups.first,
            "last_key_group": subtask.key_groups.last,
            **_totals(subtask.handles, has_handles),
        }


def _operator_states(operator: OperatorState) -> Iterator[dict[str, object]]:
    """Partitions that differ in the mode of a state are told apart."""
    infos: dict[tuple[str, str, str], list[OperatorStateInfo]] = {}
    for handle in operator.handles:
        for info in handle.operator_state.states if handle.operator_state else ():
            infos.setdefault((handle.store_name, info.name, info.mode), []).append(info)
    for (store, name, mode), those in infos.items():
        yield {
            "operator_id": operator.operator_id,
            "store": store,
            "name": name,
            "mode": mode,
            "partitions": len(those),
            "items": sum(info.items for info in those),
            "bytes": sum(info.bytes for info in those),
        }


def _totals(handles: Iterable[StateHandle], has_handles: bool) -> dict[str, int]:
    """Each file counts once, though several stores may refer to it. Of a slice all rows and bytes
    of its file count: what is in it is not known without reading."""
    refs: dict[tuple[str, int], StateFileRef | OperatorStateHandle] = {}
    paths: set[str] = set()
    for handle in handles:
        if has_handles:
            paths.add(handle.path)
        for data in handle.data:
            paths.add(data.path)
            refs[data.path, data.offset] = data
    return {
        "rows": sum(ref.rows for ref in refs.values() if isinstance(ref, StateFileRef)),
        "bytes": sum(ref.length for ref in refs.values()),
        "files": len(paths),
    }


def _files(handle: StateHandle, root: StateRoot, has_handles: bool) -> Iterator[dict[str, object]]:
    store = {
        "operator_id": handle.operator_id,
        "partition": handle.partition,
        "store": handle.store_name,
    }
    if has_handles:
        yield {**store, "kind": HANDLE, "path": handle.path, "foreign": False}
    for family in handle.families:
        for file in family.files:
            path = root.name_of(file.path)
            yield {
                **store,
                "family": family.family,
                "kind": MERGE if file.level else DELTA,
                "path": path,
                "offset": file.offset,
                "bytes": file.length,
                "rows": file.rows,
                "first_key_group": file.first_key_group,
                "last_key_group": file.last_key_group,
                "first_version": file.first_version,
                "last_version": file.last_version,
                "level": file.level,
                "base": file.base,
                "foreign": is_absolute(path),
            }
    if handle.operator_state is not None:
        path = root.name_of(handle.operator_state.path)
        yield {
            **store,
            "kind": OPERATOR_STATE,
            "path": path,
            "offset": handle.operator_state.offset,
            "bytes": handle.operator_state.length,
            "foreign": is_absolute(path),
        }
