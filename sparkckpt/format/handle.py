"""The handle: one version of one store, as PROTOCOL.md section 3 lays it out.

Reads and writes the bytes of handles and holds what they say in frozen values. A handle is refused
as a whole if any part of it is damaged or contradicts another; this module must never repair or
guess, and never look at a state file.
"""

import json
import os
import re
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zstandard

from sparkckpt.errors import CorruptStateError, UnsupportedFormatVersionError
from sparkckpt.keygroups import DEFAULT_MAX_PARALLELISM, KeyGroupRange, range_of
from sparkckpt.storage import Storage

FORMAT_VERSION = 1
MAGIC = b"SPCKHNDL"
DEFAULT_NAME = "default"
"""Spark's name for the store or column family of operators that need only one."""

_HEADER = struct.Struct("<8sI")
_TRAILER = struct.Struct("<II8s")
_MAX_DESCRIPTION_BYTES = 256 << 20
_ZSTD_LEVEL = 3

HEADER_LENGTH = _HEADER.size
"""Where the first inlined state file begins."""


@dataclass(frozen=True)
class StateFileRef:
    """A state file as a handle refers to it.

    `path` is relative to the state root of the checkpoint or absolute. `offset` is not 0 where the
    file is inlined in a handle. The crc covers the tail, all that follows the last record batch.
    """

    path: str
    offset: int
    length: int
    tail_length: int
    tail_crc32: int
    rows: int
    first_key_group: int
    last_key_group: int
    first_version: int
    last_version: int
    level: int
    base: bool

    @property
    def key_groups(self) -> KeyGroupRange:
        return KeyGroupRange(self.first_key_group, self.last_key_group)

    @property
    def inlined(self) -> bool:
        return self.offset > 0


@dataclass(frozen=True)
class FamilyFiles:
    """The files that make up one column family, in the order in which they apply."""

    family: str
    multi_valued: bool
    files: tuple[StateFileRef, ...]


@dataclass(frozen=True)
class StateHandle:
    """One version of one store: every file it consists of, and where it came from."""

    operator_id: int
    operator_name: str
    store_name: str
    partition: int
    version: int
    id: str
    base_id: str | None
    keyed: bool
    parallelism: int
    max_parallelism: int
    first_key_group: int
    last_key_group: int
    changed_rows: int
    change_digest: str
    families: tuple[FamilyFiles, ...]

    @property
    def key_groups(self) -> KeyGroupRange:
        return KeyGroupRange(self.first_key_group, self.last_key_group)

    @property
    def path(self) -> str:
        """Where the handle lies, relative to the state root."""
        return handle_path(self.operator_id, self.partition, self.version, self.id, self.store_name)

    def files_of(self, family: str = DEFAULT_NAME) -> tuple[StateFileRef, ...]:
        return next((f.files for f in self.families if f.family == family), ())


def handle_path(
    operator_id: int,
    partition: int,
    version: int,
    checkpoint_id: str,
    store_name: str = DEFAULT_NAME,
) -> str:
    """The path of a handle relative to the state root."""
    store = "" if store_name == DEFAULT_NAME else f"{store_name}/"
    return f"{operator_id}/{partition}/{store}{version}_{checkpoint_id}.handle"


def load_handle(
    storage: Storage,
    operator_id: int,
    partition: int,
    version: int,
    checkpoint_id: str,
    store_name: str = DEFAULT_NAME,
) -> StateHandle:
    """The handle that Spark's commit log names for a store; `storage` is at the state root."""
    path = handle_path(operator_id, partition, version, checkpoint_id, store_name)
    where = storage.where(path)
    handle = read_handle(storage.read_all(path), where)
    if handle.path != path:
        raise CorruptStateError(where, f"it is the handle {handle.path}, not the one of this name")
    return handle


def read_handle(source: bytes | os.PathLike[str], where: str | None = None) -> StateHandle:
    """The handle in these bytes, or in this local file; `where` names it in messages."""
    if not isinstance(source, bytes):
        return read_handle(Path(source).read_bytes(), where or os.fspath(source))
    where = where or "the handle"
    description, start = _description_of(source, where)
    try:
        fields = _Fields(json.loads(description), "its description", where)
    except ValueError as error:
        raise CorruptStateError(where, f"its description is not JSON: {error}") from error
    handle = _handle_from(fields)
    for file in (file for family in handle.families for file in family.files):
        inlined_here = file.inlined and file.path == handle.path
        if inlined_here and not HEADER_LENGTH <= file.offset <= start - file.length:
            raise CorruptStateError(where, f"it has no room for the file inlined at {file.offset}")
    return handle


def write_handle(handle: StateHandle, inlined: bytes = b"") -> bytes:
    """The bytes of a handle; `inlined` are its state files, the first at HEADER_LENGTH."""
    description = zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(
        json.dumps(_to_json(handle), separators=(",", ":")).encode()
    )
    trailer = _TRAILER.pack(len(description), zlib.crc32(description), MAGIC)
    return _HEADER.pack(MAGIC, FORMAT_VERSION) + inlined + description + trailer


def _description_of(data: bytes, where: str) -> tuple[bytes, int]:
    """The verified and decompressed description, and where it begins in the handle."""
    if len(data) < _HEADER.size + _TRAILER.size:
        raise CorruptStateError(where, f"it is truncated to {len(data)} bytes")
    magic, version = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise CorruptStateError(where, "it does not begin as a handle does")
    if version > FORMAT_VERSION:
        raise UnsupportedFormatVersionError(where, version, FORMAT_VERSION)
    if version < 1:
        raise CorruptStateError(where, "it has format version 0")
    end = len(data) - _TRAILER.size
    length, crc32, magic = _TRAILER.unpack_from(data, end)
    if magic != MAGIC:
        raise CorruptStateError(where, "it does not end as a handle does: it is truncated")
    start = end - length
    if start < _HEADER.size:
        raise CorruptStateError(where, f"its description cannot have {length} bytes")
    compressed = data[start:end]
    if zlib.crc32(compressed) != crc32:
        raise CorruptStateError(where, "the checksum of its description does not match")
    try:
        size = zstandard.frame_content_size(compressed)
        if not 0 <= size <= _MAX_DESCRIPTION_BYTES:
            raise CorruptStateError(where, f"its description would have {size} bytes")
        return zstandard.ZstdDecompressor().decompress(compressed), start
    except zstandard.ZstdError as error:
        raise CorruptStateError(where, f"its description is not zstd: {error}") from error


class _Fields:
    """Typed access to a JSON object. Fields it is not asked for are ignored, as the law demands."""

    def __init__(self, value: object, what: str, where: str) -> None:
        self.what, self.where = what, where
        if not isinstance(value, dict):
            raise self.corrupt(f"{what} is no JSON object")
        self._values: dict[str, Any] = value

    def corrupt(self, why: str) -> CorruptStateError:
        return CorruptStateError(self.where, why)

    def require(self, condition: bool, why: str) -> None:
        if not condition:
            raise self.corrupt(f"in {self.what} {why}")

    def _get(self, name: str, kind: type) -> Any:
        value = self._values.get(name)
        self.require(type(value) is kind, f"'{name}' is {value!r}")
        return value

    def integer(self, name: str, minimum: int = 0, maximum: int = 2**63 - 1) -> int:
        value: int = self._get(name, int)
        self.require(minimum <= value <= maximum, f"'{name}' is {value}")
        return value

    def text(self, name: str, pattern: str = r"(?s).+") -> str:
        value: str = self._get(name, str)
        self.require(re.fullmatch(pattern, value) is not None, f"'{name}' is {value!r}")
        return value

    def flag(self, name: str) -> bool:
        value: bool = self._get(name, bool)
        return value

    def has(self, name: str) -> bool:
        return self._values.get(name) is not None

    def objects(self, name: str, what: str) -> Sequence["_Fields"]:
        return [_Fields(value, what, self.where) for value in self._get(name, list)]


def _handle_from(fields: _Fields) -> StateHandle:
    max_parallelism = fields.integer("maxParallelism", 1, DEFAULT_MAX_PARALLELISM)
    parallelism = fields.integer("parallelism", 1, max_parallelism)
    families = tuple(
        _family_from(family, max_parallelism) for family in fields.objects("families", "a family")
    )
    handle = StateHandle(
        operator_id=fields.integer("operatorId"),
        operator_name=fields.text("operatorName"),
        store_name=fields.text("storeName"),
        partition=fields.integer("partition", 0, parallelism - 1),
        version=fields.integer("version", 1),
        id=fields.text("id"),
        base_id=fields.text("baseId") if fields.has("baseId") else None,
        keyed=fields.flag("keyed"),
        parallelism=parallelism,
        max_parallelism=max_parallelism,
        first_key_group=fields.integer("firstKeyGroup"),
        last_key_group=fields.integer("lastKeyGroup"),
        changed_rows=fields.integer("changedRows"),
        change_digest=fields.text("changeDigest", "[0-9a-f]{16}"),
        families=families,
    )
    owned = range_of(handle.partition, parallelism, max_parallelism)
    fields.require(
        handle.key_groups == owned,
        f"the key groups are {handle.key_groups}, but partition {handle.partition} of "
        f"{parallelism} owns {owned}",
    )
    names = [family.family for family in families]
    fields.require(len(set(names)) == len(names), "a column family occurs twice")
    return handle


def _family_from(fields: _Fields, max_parallelism: int) -> FamilyFiles:
    name = fields.text("family")
    files = fields.objects("files", f"a file of the family {name!r}")
    return FamilyFiles(
        name, fields.flag("multiValued"), tuple(_file_from(file, max_parallelism) for file in files)
    )


def _file_from(fields: _Fields, max_parallelism: int) -> StateFileRef:
    file = StateFileRef(
        path=fields.text("path"),
        offset=fields.integer("offset"),
        length=fields.integer("length", 1),
        tail_length=fields.integer("tailLength", 1),
        tail_crc32=fields.integer("tailCrc32", 0, 2**32 - 1),
        rows=fields.integer("rows"),
        first_key_group=fields.integer("firstKeyGroup", 0, max_parallelism - 1),
        last_key_group=fields.integer("lastKeyGroup", 0, max_parallelism - 1),
        first_version=fields.integer("firstVersion", 1),
        last_version=fields.integer("lastVersion", 1),
        level=fields.integer("level"),
        base=fields.flag("base"),
    )
    fields.require(file.tail_length <= file.length, "the tail is longer than the file")
    fields.require(file.first_key_group <= file.last_key_group, "the key groups are reversed")
    fields.require(file.first_version <= file.last_version, "the versions are reversed")
    return file


def _to_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_to_json(item) for item in value]
    if isinstance(value, (StateHandle, FamilyFiles, StateFileRef)):
        members = ((_camel_case(name), _to_json(item)) for name, item in vars(value).items())
        return {name: item for name, item in members if item is not None}
    return value


def _camel_case(name: str) -> str:
    return re.sub(r"_(\w)", lambda match: match[1].upper(), name)
