"""The metadata of a completed checkpoint, as PROTOCOL.md section 7 lays it out.

Holds everything a restore needs in frozen values, and reads and writes their bytes. Metadata is
refused as a whole if any part of it is damaged or contradicts another; this module must never
repair or guess, and never look at another file.
"""

import base64
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from operator import attrgetter
from typing import Any

from sparkckpt.errors import CorruptStateError
from sparkckpt.fields import Fields
from sparkckpt.format.columns import from_columns, to_columns
from sparkckpt.format.frame import HEADER_LENGTH, Frame, compress, decompress
from sparkckpt.format.handle import StateHandle, camel_case
from sparkckpt.format.operatorstate import (
    OperatorStateHandle,
    operator_state_from,
    operator_state_to_json,
)
from sparkckpt.keygroups import DEFAULT_MAX_PARALLELISM, KeyGroupRange, range_of
from sparkckpt.sparklog import MasterState, OffsetEntry, offsets_path, parse_offsets

__all__ = [
    "CheckpointMetadata",
    "CheckpointStatistics",
    "MasterState",
    "OperatorState",
    "OperatorSubtaskState",
    "metadata_path",
    "read_metadata",
    "write_metadata",
]

FORMAT_VERSION = 2
MAGIC = b"SPCKMETA"

_FRAME = Frame(MAGIC, FORMAT_VERSION, "checkpoint's metadata")


@dataclass(frozen=True)
class OperatorSubtaskState:
    """The state of one partition of an operator: a handle for each of its stores."""

    partition: int
    handles: tuple[StateHandle, ...]

    @property
    def key_groups(self) -> KeyGroupRange:
        return self.handles[0].key_groups


@dataclass(frozen=True)
class OperatorState:
    """The state of an operator: that of each of its partitions, in their order."""

    operator_id: int
    operator_name: str
    parallelism: int
    max_parallelism: int
    keyed: bool
    subtasks: tuple[OperatorSubtaskState, ...]

    @property
    def handles(self) -> Iterator[StateHandle]:
        """Of all partitions, in their order."""
        return (handle for subtask in self.subtasks for handle in subtask.handles)


@dataclass(frozen=True)
class CheckpointStatistics:
    """How a checkpoint came about: times in milliseconds, the longest of any store."""

    duration_ms: int = 0
    """From the first acknowledgement to completion."""
    ack_spread_ms: int = 0
    """From the first acknowledgement to the last."""
    sync_ms: int = 0
    write_ms: int = 0
    state_bytes: int = 0
    """All files it refers to."""
    delta_bytes: int = 0
    """What its batch has written."""
    files: int = 0
    new_files: int = 0
    slowest: str = ""
    """The store that took longest, in words."""


@dataclass(frozen=True)
class CheckpointMetadata:
    """A completed checkpoint: the state after a batch, and what Spark needs to go on from it."""

    checkpoint_id: int
    batch_id: int
    query_id: str
    timestamp_ms: int
    operator_states: tuple[OperatorState, ...]
    master_states: tuple[MasterState, ...]
    statistics: CheckpointStatistics

    @property
    def handles(self) -> Iterator[StateHandle]:
        return (handle for operator in self.operator_states for handle in operator.handles)

    @property
    def format_version(self) -> int:
        """Readers that know no operator state must not lose it."""
        return max((handle.format_version for handle in self.handles), default=1)

    def files(self) -> Iterator[str]:
        """The distinct paths that the state lies in, of handles too, as they stand in handles."""
        seen = set()
        for handle in self.handles:
            for path in (handle.path, *(data.path for data in handle.data)):
                if path not in seen:
                    seen.add(path)
                    yield path

    def master_state(self, path: str) -> bytes:
        """The content of a file of Spark's own."""
        for state in self.master_states:
            if state.path == path:
                return state.content
        raise CorruptStateError(metadata_path(self.checkpoint_id), f"it has no {path}")

    @cached_property
    def offsets(self) -> OffsetEntry:
        """What the batch has read, and the settings it ran with."""
        path = offsets_path(self.batch_id)
        where = f"{path} in {metadata_path(self.checkpoint_id)}"
        return parse_offsets(self.master_state(path), where, self.batch_id)

    @property
    def source_offsets(self) -> tuple[str | None, ...]:
        return self.offsets.sources

    @property
    def watermark_ms(self) -> int:
        return self.offsets.watermark_ms

    @property
    def confs(self) -> Mapping[str, str]:
        return self.offsets.confs


def metadata_path(checkpoint_id: int) -> str:
    """Where the metadata of a checkpoint lies, relative to the checkpoint directory."""
    return f"_sparkckpt/chk-{checkpoint_id}/_metadata"


def write_metadata(metadata: CheckpointMetadata) -> bytes:
    """The bytes of the metadata; ValueError if they could not be read again."""
    for violation in _violations(metadata):
        raise ValueError(f"in the metadata of checkpoint {metadata.checkpoint_id} {violation}")
    return _FRAME.pack(compress(_to_json(metadata)), version=metadata.format_version)


def read_metadata(data: bytes, where: str) -> CheckpointMetadata:
    """The metadata in these bytes; `where` names them in messages."""
    description, start = _FRAME.unpack(data, where)
    if start != HEADER_LENGTH:
        raise CorruptStateError(where, f"it has {start - HEADER_LENGTH} bytes too many")
    metadata = _from_json(Fields(decompress(description, where), "its description", where))
    _FRAME.check_version(data, metadata.format_version, where)
    for violation in _violations(metadata):
        raise CorruptStateError(where, violation)
    return metadata


def _to_json(metadata: CheckpointMetadata) -> dict[str, Any]:
    return {
        "checkpointId": metadata.checkpoint_id,
        "batchId": metadata.batch_id,
        "queryId": metadata.query_id,
        "timestampMs": metadata.timestamp_ms,
        "statistics": _members(metadata.statistics),
        "operatorStates": [_operator_to_json(operator) for operator in metadata.operator_states],
        "masterStates": [_master_state_to_json(state) for state in metadata.master_states],
    }


def _members(value: object) -> dict[str, Any]:
    return {camel_case(name): member for name, member in vars(value).items()}


def _operator_to_json(operator: OperatorState) -> dict[str, Any]:
    operator_state = [
        {
            "partition": handle.partition,
            "storeName": handle.store_name,
            **operator_state_to_json(handle.operator_state),
        }
        for handle in operator.handles
        if handle.operator_state is not None
    ]
    members = _members(operator)
    del members["subtasks"]
    return {**members, **to_columns(list(operator.handles)), "operatorState": operator_state}


def _master_state_to_json(state: MasterState) -> dict[str, str]:
    try:
        return {"path": state.path, "text": state.content.decode()}
    except UnicodeDecodeError:
        return {"path": state.path, "base64": base64.b64encode(state.content).decode()}


def _from_json(description: Fields) -> CheckpointMetadata:
    return CheckpointMetadata(
        checkpoint_id=description.integer("checkpointId"),
        batch_id=description.integer("batchId"),
        query_id=description.text("queryId"),
        timestamp_ms=description.integer("timestampMs"),
        statistics=_statistics_from(description.object("statistics", "its statistics")),
        operator_states=tuple(
            _operator_from(operator)
            for operator in description.objects("operatorStates", "an operator")
        ),
        master_states=tuple(
            _master_state_from(state)
            for state in description.objects("masterStates", "a master state")
        ),
    )


def _statistics_from(fields: Fields) -> CheckpointStatistics:
    return CheckpointStatistics(
        duration_ms=fields.integer("durationMs"),
        ack_spread_ms=fields.integer("ackSpreadMs"),
        sync_ms=fields.integer("syncMs"),
        write_ms=fields.integer("writeMs"),
        state_bytes=fields.integer("stateBytes"),
        delta_bytes=fields.integer("deltaBytes"),
        files=fields.integer("files"),
        new_files=fields.integer("newFiles"),
        slowest=fields.text("slowest", r"(?s).*"),
    )


def _operator_from(fields: Fields) -> OperatorState:
    operator_state: dict[tuple[int, str], OperatorStateHandle] = {}
    for state in fields.objects("operatorState", "an operator state"):
        store = (state.integer("partition"), state.text("storeName"))
        state.require(store not in operator_state, f"{store} occurs twice")
        operator_state[store] = operator_state_from(state)
    handles = [
        replace(handle, operator_state=operator_state.pop(key, None))
        if (key := (handle.partition, handle.store_name)) in operator_state
        else handle
        for handle in from_columns(fields)
    ]
    fields.require(not operator_state, f"the stores {list(operator_state)} do not exist")
    subtasks = tuple(
        OperatorSubtaskState(partition, tuple(of_partition))
        for partition, of_partition in groupby(handles, attrgetter("partition"))
    )
    return OperatorState(
        operator_id=fields.integer("operatorId"),
        operator_name=fields.text("operatorName"),
        parallelism=fields.integer("parallelism", 1),
        max_parallelism=fields.integer("maxParallelism", 1),
        keyed=fields.flag("keyed"),
        subtasks=subtasks,
    )


def _master_state_from(fields: Fields) -> MasterState:
    path = fields.text("path")
    try:
        if fields.has("base64"):
            return MasterState(path, base64.b64decode(fields.text("base64"), validate=True))
        return MasterState(path, fields.text("text", r"(?s).*").encode())
    except ValueError as error:
        raise fields.corrupt(f"the content of {path} cannot be decoded: {error}") from error


def _violations(metadata: CheckpointMetadata) -> Iterator[str]:
    """What the parts of the metadata must not say together, each in words."""
    for name in ("checkpoint_id", "batch_id", "timestamp_ms"):
        if getattr(metadata, name) < 0:
            yield f"the {name} is {getattr(metadata, name)}"
    operator_ids = [operator.operator_id for operator in metadata.operator_states]
    if len(set(operator_ids)) < len(operator_ids):
        yield f"an operator occurs twice: {operator_ids}"
    for operator in metadata.operator_states:
        for violation in _operator_violations(operator, metadata.batch_id + 1):
            yield f"in operator {operator.operator_id} {violation}"
    paths = [state.path for state in metadata.master_states]
    if len(set(paths)) < len(paths):
        yield f"a master state occurs twice: {paths}"
    for path in paths:
        if path.startswith("/") or "://" in path or not {"", ".", ".."}.isdisjoint(path.split("/")):
            yield f"the master state {path!r} does not lie in the checkpoint directory"


def _operator_violations(operator: OperatorState, version: int) -> Iterator[str]:
    parallelism, max_parallelism = operator.parallelism, operator.max_parallelism
    if not 1 <= parallelism <= max_parallelism <= DEFAULT_MAX_PARALLELISM:
        yield f"the parallelism is {parallelism} of {max_parallelism}"
    if not operator.keyed and parallelism > 1:
        yield f"all tuples are in one place, but in {parallelism} partitions"
    partitions = [subtask.partition for subtask in operator.subtasks]
    if partitions != list(range(parallelism)):
        yield _gaps_and_overlaps(partitions, parallelism, max_parallelism)
    stores = [handle.store_name for handle in operator.subtasks[0].handles]
    if not stores or len(set(stores)) < len(stores):
        yield f"the stores are {stores}"
    for subtask in operator.subtasks:
        names = [handle.store_name for handle in subtask.handles]
        if names != stores:
            yield f"partition {subtask.partition} has the stores {names}, partition 0 has {stores}"
        for handle in subtask.handles:
            if handle.partition != subtask.partition or handle.version != version:
                yield f"partition {subtask.partition} has the handle {handle.path}"
            if _shared(handle) != _shared(operator):
                yield f"the handle {handle.path} is of another operator: {_shared(handle)}"


_shared = attrgetter("operator_id", "operator_name", "keyed", "parallelism", "max_parallelism")


def _gaps_and_overlaps(partitions: list[int], parallelism: int, max_parallelism: int) -> str:
    for partition in range(parallelism):
        owners = partitions.count(partition)
        if owners != 1:
            key_groups = range_of(partition, parallelism, max_parallelism)
            return f"the key groups {key_groups} have {owners} owners"
    return f"the partitions are {partitions}"
