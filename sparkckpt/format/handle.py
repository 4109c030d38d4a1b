"""The handle: one version of one store, as PROTOCOL.md section 3 lays it out.

Reads and writes the bytes of handles and holds what they say in frozen values. A handle is refused
as a whole if any part of it is damaged or contradicts another; this module must never repair or
guess, and never look at a state file.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from operator import itemgetter
from pathlib import Path
from typing import Any

from sparkckpt.errors import CorruptStateError
from sparkckpt.fields import MAX_LONG, Fields
from sparkckpt.format.frame import HEADER_LENGTH, Frame, compress, decompress
from sparkckpt.format.operatorstate import (
    OperatorStateHandle,
    operator_state_from,
    operator_state_to_json,
)
from sparkckpt.keygroups import DEFAULT_MAX_PARALLELISM, KeyGroupRange, range_of
from sparkckpt.storage import Storage

FORMAT_VERSION = 2
MAGIC = b"SPCKHNDL"
DEFAULT_NAME = "default"
"""Spark's name for the store or column family of operators that need only one."""

_MAX_CRC32 = 2**32 - 1
_INTEGERS = [int] * 10
_FRAME = Frame(MAGIC, FORMAT_VERSION, "handle")


@dataclass(frozen=True)
class StateFileRef:
    """A state file as a handle refers to it.

    `path` is relative to the state root of the checkpoint or absolute. `offset` is not 0 where the
    file is inlined in a handle. The crc covers the tail, all that follows the last record batch.
    The span from `first_key_group` to `last_key_group` is that of the rows that count. It is that
    of all rows, or of a part of them: a slice, made by a rescale. `rows` is always of the file.
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
    operator_state: OperatorStateHandle | None = None

    @property
    def key_groups(self) -> KeyGroupRange:
        return KeyGroupRange(self.first_key_group, self.last_key_group)

    @property
    def format_version(self) -> int:
        """Readers that know no operator state must not take a handle for one that has none."""
        return 1 if self.operator_state is None else 2

    @property
    def files(self) -> Iterator[StateFileRef]:
        """Of all column families."""
        return (file for family in self.families for file in family.files)

    @property
    def data(self) -> Iterator[StateFileRef | OperatorStateHandle]:
        """Every place in a file where state of this version lies."""
        yield from self.files
        if self.operator_state is not None:
            yield self.operator_state

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
    description, start = _FRAME.unpack(source, where)
    handle = read_description(description, where)
    _FRAME.check_version(source, handle.format_version, where)
    for data in handle.data:
        inlined_here = data.path == handle.path
        if inlined_here and not HEADER_LENGTH <= data.offset <= start - data.length:
            raise CorruptStateError(where, f"it has no room for the file inlined at {data.offset}")
    return handle


def check_unread_bytes(data: bytes, handle: StateHandle, where: str) -> None:
    """Checks that what is inlined in a handle's bytes lies one after the other and fills them."""
    _, end = _FRAME.unpack(data, where)
    inlined = [(part.offset, part.length) for part in handle.data if part.path == handle.path]
    position = HEADER_LENGTH
    for offset, length in sorted(inlined):
        if offset != position:
            break
        position += length
    if position != end:
        raise CorruptStateError(where, f"nothing accounts for its bytes {position} to {end}")


def write_handle(handle: StateHandle, inlined: bytes = b"") -> bytes:
    """The bytes of a handle; `inlined` is what it holds of state, from HEADER_LENGTH on."""
    return _FRAME.pack(write_description(handle), inlined, handle.format_version)


def read_description(description: bytes, where: str) -> StateHandle:
    """The handle with this description; files may be inlined in it that are not at hand."""
    fields = Fields(decompress(description, where), "its description", where)
    max_parallelism = max_parallelism_of(fields)
    families = fields.objects("families", "a family")
    return handle_from(
        fields,
        [_family_from(family, max_parallelism) for family in families],
        operator_state_from(fields.object("operatorState", "the operator state"))
        if fields.has("operatorState")
        else None,
    )


def write_description(handle: StateHandle) -> bytes:
    """The description alone: what a handle says, without the files inlined in it."""
    return compress(_to_json(handle))


def max_parallelism_of(fields: Fields) -> int:
    return fields.integer("maxParallelism", 1, DEFAULT_MAX_PARALLELISM)


def handle_from(
    fields: Fields,
    families: Sequence[FamilyFiles],
    operator_state: OperatorStateHandle | None = None,
) -> StateHandle:
    """The handle that these fields of a description make up with what it refers to."""
    max_parallelism = max_parallelism_of(fields)
    parallelism = fields.integer("parallelism", 1, max_parallelism)
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
        families=tuple(families),
        operator_state=operator_state,
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


def _family_from(fields: Fields, max_parallelism: int) -> FamilyFiles:
    try:
        files = list(map(_FILE_VALUES, fields.array("files")))
    except (KeyError, TypeError) as error:
        raise fields.corrupt(f"a file of a column family is incomplete: {error}") from error
    return family_from(fields, files, max_parallelism)


def family_from(
    fields: Fields, files: Iterable[Sequence[Any]], max_parallelism: int
) -> FamilyFiles:
    """The family with these files, each given by its values in the order of FILE_FIELDS."""
    return FamilyFiles(
        fields.text("family"),
        fields.flag("multiValued"),
        tuple(_file_from(values, max_parallelism, fields) for values in files),
    )


def _file_from(values: Sequence[Any], max_parallelism: int, family: Fields) -> StateFileRef:
    """Checked in one go, and told apart only when it fails: a checkpoint has many of these."""
    path, _, length, tail_length, tail_crc32, _ = values[:6]
    first_key_group, last_key_group, first_version, last_version, _, base = values[6:]
    numbers = values[1:11]
    if not (
        type(path) is str
        and path
        and list(map(type, numbers)) == _INTEGERS
        and type(base) is bool
        and 0 <= min(numbers) <= max(numbers) <= MAX_LONG
        and 1 <= tail_length <= length
        and tail_crc32 <= _MAX_CRC32
        and first_key_group <= last_key_group < max_parallelism
        and 1 <= first_version <= last_version
    ):
        entry = dict(zip(FILE_FIELDS, values, strict=True))
        raise family.corrupt(f"in {family.what} the file {entry} is impossible")
    return StateFileRef(*values)


def camel_case(name: str) -> str:
    """A field's name as our JSON has it."""
    return re.sub(r"_(\w)", lambda match: match[1].upper(), name)


FILE_FIELDS = tuple(camel_case(field.name) for field in fields(StateFileRef))
_FILE_VALUES = itemgetter(*FILE_FIELDS)


def _to_json(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_to_json(item) for item in value]
    if isinstance(value, OperatorStateHandle):
        return operator_state_to_json(value)
    if isinstance(value, (StateHandle, FamilyFiles, StateFileRef)):
        members = ((camel_case(name), _to_json(item)) for name, item in vars(value).items())
        return {name: item for name, item in members if item is not None}
    return value
