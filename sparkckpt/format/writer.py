"""Writes state files, as PROTOCOL.md section 4 says.

The footer names offset and checksum of every record batch, and Arrow wants the footer's metadata
before the first batch. So the record batches are written below a footer without it, and take the
place of empty ones in a second file that has it: each is compressed once. Rows must come in
ascending key groups: it must never sort, since the order of the rows of one key has a meaning.
"""

import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparkckpt.format.handle import StateFileRef
from sparkckpt.format.statefile import BatchIndex, StateFamily, StateFileMetadata

DEFAULT_BATCH_ROWS = 16384

_BLOCK = struct.Struct("<qi4xq")
"""What an Arrow footer says of a record batch: its offset, and the lengths of its two parts."""
_MESSAGE_PREFIX = struct.Struct("<4xi")
"""A marker of four bytes, and the length of the metadata that follows."""


class StateFileWriter:
    """A state file in the making: takes tables, and gives the bytes in the end."""

    def __init__(
        self,
        schema: pa.Schema,
        family: StateFamily,
        codec: str | None = "zstd",
        record_batch_rows: int = DEFAULT_BATCH_ROWS,
    ) -> None:
        self._schema = _schema_of(schema)
        self._family = family
        self._record_batch_rows = record_batch_rows
        # Many files are written at the same time, so that one need not use several threads.
        self._options = pa.ipc.IpcWriteOptions(compression=codec, use_threads=False)
        self._sink = pa.BufferOutputStream()
        self._writer = pa.ipc.new_file(self._sink, self._schema, options=self._options)
        self._ends = [_head_length(self._schema)]
        self._batches: list[tuple[int, int, int]] = []
        """Of each record batch its first and last key group, and its number of rows."""

    def write(self, rows: pa.Table) -> None:
        """Adds rows; their key groups must not be below those that are written already."""
        key_groups = rows["kg"].to_numpy()
        before = self._batches[-1][1] if self._batches else 0
        if len(key_groups) and (int(key_groups[0]) < before or not _ascend(key_groups)):
            raise ValueError("the rows of a state file must be in ascending key groups")
        rows = rows.cast(self._schema).combine_chunks()
        for first, end in _cuts(key_groups, self._record_batch_rows):
            (batch,) = rows.slice(first, end - first).to_batches()
            self._writer.write_batch(batch)
            self._ends.append(self._sink.tell())
            self._batches.append((int(key_groups[first]), int(key_groups[end - 1]), end - first))

    def finish(
        self,
        path: str,
        *,
        first_version: int,
        last_version: int,
        level: int = 0,
        base: bool = False,
        offset: int = 0,
    ) -> tuple[bytes, StateFileRef]:
        """The bytes of the file, and the reference to it at `path`.

        `offset` is where the bytes will lie if they are inlined in a handle.
        """
        self._writer.close()
        content = memoryview(self._sink.getvalue())[: self._ends[-1]]
        batches = tuple(
            BatchIndex(start, end - start, first, last, rows, zlib.crc32(content[start:end]))
            for (first, last, rows), (start, end) in zip(
                self._batches, pairwise(self._ends), strict=True
            )
        )
        tail = self._tail(content, StateFileMetadata(self._family, batches).to_footer())
        ref = StateFileRef(
            path=path,
            offset=offset,
            length=len(content) + len(tail),
            tail_length=len(tail),
            tail_crc32=zlib.crc32(tail),
            rows=sum(batch.rows for batch in batches),
            first_key_group=batches[0].first_key_group if batches else 0,
            last_key_group=batches[-1].last_key_group if batches else 0,
            first_version=first_version,
            last_version=last_version,
            level=level,
            base=base,
        )
        return b"".join((content, tail)), ref

    def _tail(self, content: memoryview, footer: Mapping[str, str]) -> bytes:
        """What follows the last record batch: Arrow's, of a file with as many empty batches, but
        with the places of those that there are."""
        sink = pa.BufferOutputStream()
        empty = pa.RecordBatch.from_pylist([], self._schema)
        ends = self._ends[:1]
        with pa.ipc.new_file(
            sink, self._schema, options=self._options, metadata=dict(footer)
        ) as writer:
            for _ in self._batches:
                writer.write_batch(empty)
                ends.append(sink.tell())
        stand_in = memoryview(sink.getvalue())
        tail = bytes(stand_in[ends[-1] :])
        if not self._batches:
            return tail
        blocks = _blocks(stand_in, ends)
        if tail.count(blocks) != 1:
            raise RuntimeError("Arrow has written its footer in another way than expected")
        return tail.replace(blocks, _blocks(content, self._ends))


def write_state_file(
    rows: pa.Table,
    family: StateFamily,
    path: str,
    *,
    first_version: int,
    last_version: int,
    level: int = 0,
    base: bool = False,
    offset: int = 0,
    codec: str | None = "zstd",
    record_batch_rows: int = DEFAULT_BATCH_ROWS,
) -> tuple[bytes, StateFileRef]:
    """The bytes of a state file with these rows, and the reference to it at `path`."""
    writer = StateFileWriter(rows.schema, family, codec, record_batch_rows)
    writer.write(rows)
    return writer.finish(
        path,
        first_version=first_version,
        last_version=last_version,
        level=level,
        base=base,
        offset=offset,
    )


def _blocks(data: memoryview, ends: Sequence[int]) -> bytes:
    """How a footer lists the record batches between these positions."""
    blocks = []
    for start, end in pairwise(ends):
        (metadata_length,) = _MESSAGE_PREFIX.unpack_from(data, start)
        head = _MESSAGE_PREFIX.size + metadata_length
        blocks.append(_BLOCK.pack(start, head, end - start - head))
    return b"".join(blocks)


def _schema_of(schema: pa.Schema) -> pa.Schema:
    key_group = pa.field("kg", pa.uint16(), nullable=False)
    op = pa.field("op", pa.int8(), nullable=False)
    return pa.schema([key_group, op, schema.field("key"), schema.field("value")])


def _ascend(key_groups: npt.NDArray[np.uint16]) -> bool:
    return not bool((key_groups[1:] < key_groups[:-1]).any())


def _cuts(key_groups: npt.NDArray[np.uint16], limit: int) -> Iterator[tuple[int, int]]:
    """First row and end of each record batch: at a key-group border where there is one in reach."""
    first, rows = 0, len(key_groups)
    while first < rows:
        end = min(first + limit, rows)
        if end < rows:
            border = int(np.searchsorted(key_groups, key_groups[end - 1], side="right"))
            end = min(border, first + 2 * limit)
        yield first, end
        first = end


def _head_length(schema: pa.Schema) -> int:
    """What precedes the first record batch: the padded magic and the schema's message."""
    return 8 + int(schema.serialize().size)
