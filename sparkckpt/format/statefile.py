"""The state file: rows of one column family in an Arrow IPC file, as PROTOCOL.md section 4 says.

A reader takes footer and schema from the verified tail and then only those record batches that
overlap its key groups, by byte range, each verified before a row of it is used. It must never hand
out a row of bytes that it has not verified, nor read a file that no handle refers to: only the
handle knows the checksum of the tail.
"""

import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sparkckpt.errors import CorruptStateError, UnsupportedFormatVersionError
from sparkckpt.format.arrowhead import is_head_of
from sparkckpt.format.handle import StateFileRef
from sparkckpt.format.resolve import APPEND, PUT
from sparkckpt.keygroups import DEFAULT_MAX_PARALLELISM, KeyGroupRange
from sparkckpt.storage import Storage

FORMAT_VERSION = 1
PREFIX = "sparkckpt."
STRUCT = "struct"
UNSAFE_ROW = "unsaferow"

READ_AT_ONCE = 4 << 20
"""So many bytes of neighbouring record batches are read in one request."""

ReadRange = Callable[[int, int], bytes]
"""Reads `length` bytes at `offset` of the file that contains the state file."""


@dataclass(frozen=True)
class BatchIndex:
    """Where a record batch lies in its state file, which key groups it spans, and its crc."""

    offset: int
    length: int
    first_key_group: int
    last_key_group: int
    rows: int
    crc32: int

    @property
    def key_groups(self) -> KeyGroupRange:
        return KeyGroupRange(self.first_key_group, self.last_key_group)


@dataclass(frozen=True)
class StateFamily:
    """The family whose rows a file holds. The schemas are Spark's, as `StructType.json` gives."""

    operator_id: int
    store_name: str
    family: str
    multi_valued: bool
    max_parallelism: int
    key_schema: str
    value_schema: str
    key_encoding: str
    value_encoding: str


@dataclass(frozen=True)
class StateFileMetadata:
    """The custom metadata in the footer of a state file."""

    family: StateFamily
    batches: tuple[BatchIndex, ...]

    def to_footer(self) -> dict[str, str]:
        family = self.family
        entries = {
            "formatVersion": str(FORMAT_VERSION),
            "operator": str(family.operator_id),
            "store": family.store_name,
            "family": family.family,
            "multiValued": "true" if family.multi_valued else "false",
            "maxParallelism": str(family.max_parallelism),
            "keySchema": family.key_schema,
            "valueSchema": family.value_schema,
            "keyEncoding": family.key_encoding,
            "valueEncoding": family.value_encoding,
            "batches": json.dumps([list(vars(batch).values()) for batch in self.batches]),
        }
        return {PREFIX + name: value for name, value in entries.items()}

    @staticmethod
    def from_footer(footer: Mapping[str, str], where: str) -> "StateFileMetadata":
        def required(name: str) -> str:
            if PREFIX + name not in footer:
                raise CorruptStateError(where, f"its footer has no '{PREFIX}{name}'")
            return footer[PREFIX + name]

        try:
            version = int(required("formatVersion"))
            if version > FORMAT_VERSION:
                raise UnsupportedFormatVersionError(where, version, FORMAT_VERSION)
            if version < 1:
                raise CorruptStateError(where, f"it has format version {version}")
            family = StateFamily(
                operator_id=int(required("operator")),
                store_name=required("store"),
                family=required("family"),
                multi_valued={"true": True, "false": False}[required("multiValued")],
                max_parallelism=int(required("maxParallelism")),
                key_schema=required("keySchema"),
                value_schema=required("valueSchema"),
                key_encoding=required("keyEncoding"),
                value_encoding=required("valueEncoding"),
            )
            batches = tuple(BatchIndex(*map(_whole, b)) for b in json.loads(required("batches")))
        except (KeyError, TypeError, ValueError) as error:
            raise CorruptStateError(where, f"its footer cannot be understood: {error}") from error
        return StateFileMetadata(family, batches)


def _whole(number: object) -> int:
    if type(number) is not int:
        raise ValueError(f"{number!r} in the index of record batches")
    return number


class StateFile:
    """A state file opened at its tail; `read` fetches the record batches it needs."""

    def __init__(self, read_range: ReadRange, ref: StateFileRef, where: str) -> None:
        self.ref = ref
        self.where = where
        self._read_range = read_range
        tail_start = ref.length - ref.tail_length
        tail = self._read_verified(tail_start, ref.tail_length, ref.tail_crc32, "its tail")
        self._tail = tail
        self.schema, self.metadata, arrow_batches = _parse_footer(tail, where)
        self._check_schema()
        self._check_index(tail_start, arrow_batches)

    @classmethod
    def open(cls, storage: Storage, ref: StateFileRef) -> "StateFile":
        """The file that a handle refers to; `storage` is at the state root."""

        def read_range(offset: int, length: int) -> bytes:
            return storage.read_range(ref.path, offset, length)

        return cls(read_range, ref, storage.where(ref.path))

    @classmethod
    def from_bytes(cls, data: bytes, ref: StateFileRef, where: str | None = None) -> "StateFile":
        """The same over the bytes of the file at `ref.path`, a handle where it is inlined."""
        return cls(lambda offset, length: data[offset : offset + length], ref, where or ref.path)

    @property
    def batches(self) -> tuple[BatchIndex, ...]:
        return self.metadata.batches

    def read(self, key_groups: KeyGroupRange | None = None) -> pa.Table:
        """The rows of these key groups, by default of all, in the order of the file.

        Rows outside of the slice that the handle refers to are never among them.
        """
        refers_to = self.ref.key_groups
        inside = refers_to if key_groups is None else refers_to.clip_to(key_groups)
        if inside is None:
            return self.schema.empty_table()
        wanted = [b for b in self.batches if b.key_groups.overlaps(inside)]
        table = pa.Table.from_batches(self.read_batches(wanted), self.schema)
        if all(b.first_key_group in inside and b.last_key_group in inside for b in wanted):
            return table
        key_group = table["kg"]
        return table.filter(
            pc.and_(
                pc.greater_equal(key_group, inside.first), pc.less_equal(key_group, inside.last)
            )
        )

    @property
    def span(self) -> KeyGroupRange:
        """The key groups of all rows; those that the handle refers to may be a slice of it."""
        if not self.batches:
            return KeyGroupRange(0, 0)
        return KeyGroupRange(self.batches[0].first_key_group, self.batches[-1].last_key_group)

    def check_slice(self, ref: StateFileRef) -> None:
        """Checks that a reference to this file refers to rows it can have."""
        key_groups = ref.key_groups
        if self.batches and key_groups.clip_to(self.span) != key_groups:
            raise self._corrupt(f"it spans {self.span}, its handle says {key_groups}")

    def check_unread_bytes(self) -> None:
        """Checks what `read` never looks at: the head, and that nothing else lies between."""
        end = self.ref.length - self.ref.tail_length
        starts = [*(batch.offset for batch in self.batches), end]
        ends = [batch.offset + batch.length for batch in self.batches]
        for position, start in zip(ends, starts[1:], strict=True):
            if position != start:
                raise self._corrupt(f"nothing accounts for its bytes {position} to {start}")
        head = self._read_range(self.ref.offset, starts[0])
        if not is_head_of(head, self._tail):
            raise self._corrupt(
                f"its head, {starts[0]} bytes, is not the one its footer belongs to"
            )

    def read_batch(self, batch: BatchIndex) -> pa.RecordBatch:
        """The rows of one record batch."""
        return next(self.read_batches([batch]))

    def read_batches(self, batches: Sequence[BatchIndex]) -> Iterator[pa.RecordBatch]:
        """The rows of record batches, in their order; some that lie together are read at once."""
        position = 0
        while position < len(batches):
            end = _end_of_run(batches, position)
            run, position = batches[position:end], end
            start = run[0].offset
            length = run[-1].offset + run[-1].length - start
            data = memoryview(self._read_range(self.ref.offset + start, length))
            for batch in run:
                first = batch.offset - start
                yield self._rows_in(data[first : first + batch.length], batch)

    def _rows_in(self, data: memoryview, batch: BatchIndex) -> pa.RecordBatch:
        what = f"the record batch of the key groups {batch.key_groups}"
        self._verify(data, batch.offset, batch.length, batch.crc32, what)
        try:
            rows = pa.ipc.read_record_batch(pa.ipc.read_message(pa.py_buffer(data)), self.schema)
            rows.validate(full=True)
        except (pa.ArrowException, OSError, EOFError) as error:
            raise self._corrupt(f"{what} is not one of Arrow: {error}") from error
        self._check_rows(rows, batch, what)
        return rows

    def _read_verified(self, offset: int, length: int, crc32: int, what: str) -> bytes:
        data = self._read_range(self.ref.offset + offset, length)
        self._verify(data, offset, length, crc32, what)
        return data

    def _verify(
        self, data: bytes | memoryview, offset: int, length: int, crc32: int, what: str
    ) -> None:
        where = f"{what}, {length} bytes at {self.ref.offset + offset},"
        if len(data) != length:
            raise self._corrupt(f"{where} is cut off: it is truncated")
        if zlib.crc32(data) != crc32:
            raise self._corrupt(f"the checksum of {where} does not match")

    def _corrupt(self, why: str) -> CorruptStateError:
        return CorruptStateError(self.where, why)

    def _check_schema(self) -> None:
        family = self.metadata.family
        sides = {"key": family.key_encoding, "value": family.value_encoding}
        if self.schema.names != ["kg", "op", "key", "value"]:
            raise self._corrupt(f"its columns are {', '.join(self.schema.names)}")
        if self.schema.field("kg").type != pa.uint16() or self.schema.field("op").type != pa.int8():
            raise self._corrupt("the columns kg and op have other types than uint16 and int8")
        for name, encoding in sides.items():
            found = self.schema.field(name).type
            fits = {STRUCT: pa.types.is_struct(found), UNSAFE_ROW: pa.types.is_binary(found)}
            if not fits.get(encoding, False):
                raise self._corrupt(f"its {name} is {found}, which does not fit '{encoding}'")
        if not 1 <= family.max_parallelism <= DEFAULT_MAX_PARALLELISM:
            raise self._corrupt(f"its maxParallelism is {family.max_parallelism}")

    def _check_index(self, tail_start: int, arrow_batches: int) -> None:
        position, key_group = 0, 0
        for batch in self.batches:
            inside = position <= batch.offset and 0 < batch.length <= tail_start - batch.offset
            ascending = key_group <= batch.first_key_group <= batch.last_key_group
            if not (inside and ascending and batch.rows > 0):
                raise self._corrupt(f"its index of record batches has the impossible entry {batch}")
            position, key_group = batch.offset + batch.length, batch.last_key_group
        if key_group >= self.metadata.family.max_parallelism:
            raise self._corrupt(f"it has the key group {key_group}, which does not exist")
        if len(self.batches) != arrow_batches:
            raise self._corrupt(f"{arrow_batches} record batches, but {len(self.batches)} indexed")
        rows = sum(batch.rows for batch in self.batches)
        if rows != self.ref.rows:
            raise self._corrupt(f"it has {rows} rows, its handle says {self.ref.rows}")
        self.check_slice(self.ref)

    def _check_rows(self, rows: pa.RecordBatch, batch: BatchIndex, what: str) -> None:
        if rows.num_rows != batch.rows:
            raise self._corrupt(f"{what} has {rows.num_rows} rows, its index says {batch.rows}")
        if any(rows[name].null_count for name in ("kg", "op", "key")):
            raise self._corrupt(f"{what} has nulls in kg, op or key")
        key_groups, ops = rows["kg"].to_numpy(), rows["op"].to_numpy()
        if KeyGroupRange(int(key_groups[0]), int(key_groups[-1])) != batch.key_groups or (
            (key_groups[1:] < key_groups[:-1]).any()
        ):
            raise self._corrupt(f"{what} has other key groups, or not in ascending order")
        if ((ops < PUT) | (ops > APPEND)).any():
            raise self._corrupt(f"{what} holds an unknown operation")


def _end_of_run(batches: Sequence[BatchIndex], start: int) -> int:
    """Where the record batches end that lie one behind the other, and are not too many bytes."""
    end, length = start + 1, batches[start].length
    while end < len(batches):
        before, batch = batches[end - 1], batches[end]
        length += batch.length
        if batch.offset != before.offset + before.length or length > READ_AT_ONCE:
            break
        end += 1
    return end


def _parse_footer(tail: bytes, where: str) -> tuple[pa.Schema, StateFileMetadata, int]:
    """Schema, metadata and number of record batches. Arrow finds its footer from the end."""
    try:
        reader: Any = pa.ipc.open_file(pa.py_buffer(tail))
        entries = dict(reader.metadata or {})
        footer = {name.decode(): value.decode() for name, value in entries.items()}
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise CorruptStateError(where, f"its Arrow footer cannot be read: {error}") from error
    return (
        reader.schema,
        StateFileMetadata.from_footer(footer, where),
        reader.num_record_batches,
    )
