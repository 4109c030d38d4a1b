"""Operator state: what belongs to a partition and to no key, as PROTOCOL.md section 10 lays it out.

The operator states of a partition lie in one blob, inlined in a handle or in a file of their own.
This module knows the bytes of blobs, and how handles and metadata refer to them. What an item says
is the processor's business: it must never be looked into, and here it is bytes.
"""

import json
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sparkckpt.errors import CorruptStateError, UnsupportedFormatVersionError
from sparkckpt.fields import Fields
from sparkckpt.storage import Storage

FORMAT_VERSION = 1
SPLIT, UNION, BROADCAST = "split", "union", "broadcast"
MODES = (SPLIT, UNION, BROADCAST)

MAX_BLOB_BYTES = 2**31 - 1
MAX_NAME_LENGTH = 1024

_HEAD = struct.Struct("<ii")


@dataclass(frozen=True)
class OperatorStateItems:
    """One operator state of a partition, with its items.

    It is `inherited` as long as the partition has only what it was given in a redistribution, where
    every partition got the items of all: the others have the same copy. Blobs do not say so.
    """

    name: str
    mode: str
    items: tuple[bytes, ...]
    inherited: bool = False

    @property
    def info(self) -> "OperatorStateInfo":
        size = sum(map(len, self.items))
        return OperatorStateInfo(self.name, self.mode, len(self.items), size, self.inherited)


@dataclass(frozen=True)
class OperatorStateInfo:
    """One operator state of a partition, without its items."""

    name: str
    mode: str
    items: int
    bytes: int
    inherited: bool = False


@dataclass(frozen=True)
class OperatorStateHandle:
    """Where the operator states of a partition lie.

    `path` is relative to the state root or absolute, as that of a state file. The blob is inlined
    in a handle, of this or an earlier version; or it is a file of its own, and then `offset` is 0.
    """

    path: str
    offset: int
    length: int
    crc32: int
    states: tuple[OperatorStateInfo, ...]

    @property
    def inlined(self) -> bool:
        return self.offset > 0


def write_blob(states: Iterable[OperatorStateItems]) -> bytes:
    """The blob with these states; ValueError if it could not be read again."""
    states = tuple(states)
    header = json.dumps(
        {
            "states": [
                {"name": state.name, "mode": state.mode, "lengths": list(map(len, state.items))}
                for state in states
            ]
        },
        separators=(",", ":"),
    ).encode()
    parts = [_HEAD.pack(FORMAT_VERSION, len(header)), header]
    parts.extend(item for state in states for item in state.items)
    for violation in _violations([state.info for state in states]):
        raise ValueError(violation)
    blob = b"".join(parts)
    if len(blob) > MAX_BLOB_BYTES:
        raise ValueError(f"the operator state has {len(blob)} bytes")
    return blob


def read_blob(blob: bytes, where: str) -> tuple[OperatorStateItems, ...]:
    """The states in a blob; `where` names it in messages."""
    if len(blob) < _HEAD.size:
        raise CorruptStateError(where, f"the operator state is truncated to {len(blob)} bytes")
    version, header_length = _HEAD.unpack_from(blob)
    if version > FORMAT_VERSION:
        raise UnsupportedFormatVersionError(where, version, FORMAT_VERSION)
    position = _HEAD.size + header_length
    if version < 1 or not _HEAD.size <= position <= len(blob):
        raise CorruptStateError(where, "the operator state does not begin as one does")
    try:
        header = Fields(json.loads(blob[_HEAD.size : position]), "its operator states", where)
    except (ValueError, RecursionError) as error:
        raise CorruptStateError(where, f"the head of its operator state is: {error}") from error
    states = []
    for state in header.objects("states", "an operator state"):
        items = []
        for length in state.integers("lengths"):
            items.append(blob[position : position + length])
            position += length
        states.append(OperatorStateItems(state.text("name"), state.text("mode"), tuple(items)))
    if position != len(blob):
        raise CorruptStateError(
            where, f"its operator states have {position} bytes instead of {len(blob)}"
        )
    for violation in _violations([state.info for state in states]):
        raise CorruptStateError(where, violation)
    return tuple(states)


def handle_of(
    path: str, blob: bytes, states: Iterable[OperatorStateItems], offset: int = 0
) -> OperatorStateHandle:
    """How a handle or metadata refers to the blob with these states at this path."""
    infos = tuple(state.info for state in states)
    return OperatorStateHandle(path, offset, len(blob), zlib.crc32(blob), infos)


def load_operator_state(
    storage: Storage, handle: OperatorStateHandle
) -> tuple[OperatorStateItems, ...]:
    """The states and their items; `storage` is at the state root that paths are relative to."""
    where = storage.where(handle.path)
    blob = storage.read_range(handle.path, handle.offset, handle.length)
    return check_blob(blob, handle, where)


def check_blob(
    blob: bytes, handle: OperatorStateHandle, where: str
) -> tuple[OperatorStateItems, ...]:
    """The states in the bytes that the handle refers to, if they are those it was made for."""
    if len(blob) != handle.length:
        raise CorruptStateError(where, f"it is truncated: its operator state has {len(blob)} bytes")
    if zlib.crc32(blob) != handle.crc32:
        raise CorruptStateError(where, "the checksum of its operator state does not match")
    states = read_blob(blob, where)
    said = [(info.name, info.mode, info.items, info.bytes) for info in handle.states]
    found = [(i.name, i.mode, i.items, i.bytes) for i in (state.info for state in states)]
    if found != said:
        raise CorruptStateError(where, f"its operator states are {found}, but should be {said}")
    return tuple(
        replace(state, inherited=info.inherited)
        for state, info in zip(states, handle.states, strict=True)
    )


def operator_state_from(fields: Fields) -> OperatorStateHandle:
    """The handle that these fields of a description make up."""
    infos = tuple(map(_info_from, fields.objects("states", "an operator state")))
    handle = OperatorStateHandle(
        path=fields.text("path"),
        offset=fields.integer("offset"),
        length=fields.integer("length", _HEAD.size, MAX_BLOB_BYTES),
        crc32=fields.integer("crc32", 0, 2**32 - 1),
        states=infos,
    )
    fields.require(len(infos) > 0, "there are no states")
    for violation in _violations(infos):
        raise fields.corrupt(violation)
    fields.require(
        sum(info.bytes for info in infos) <= handle.length,
        "the states have more bytes than all of it",
    )
    return handle


def operator_state_to_json(handle: OperatorStateHandle) -> dict[str, Any]:
    states = [dict(vars(info)) for info in handle.states]
    for state in states:
        if not state["inherited"]:
            del state["inherited"]
    return {**vars(handle), "states": states}


def _info_from(fields: Fields) -> OperatorStateInfo:
    return OperatorStateInfo(
        name=fields.text("name"),
        mode=fields.text("mode"),
        items=fields.integer("items"),
        bytes=fields.integer("bytes"),
        inherited=fields.has("inherited") and fields.flag("inherited"),
    )


def _violations(infos: Sequence[OperatorStateInfo]) -> Iterable[str]:
    """What the operator states of a partition must not say, each in words."""
    names = [info.name for info in infos]
    if len(set(names)) < len(names):
        yield f"an operator state occurs twice: {names}"
    for info in infos:
        if not 1 <= len(info.name) <= MAX_NAME_LENGTH:
            yield f"an operator state has the name {info.name[:80]!r}"
        if info.mode not in MODES:
            yield f"the operator state {info.name!r} has the mode {info.mode!r}"
        if info.inherited and info.mode != UNION:
            yield f"the operator state {info.name!r} is {info.mode}, and inherited"
