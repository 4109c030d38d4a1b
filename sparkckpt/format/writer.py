"""Writes state files, as PROTOCOL.md section 4 says.

The footer names offset and checksum of every record batch, and Arrow wants the footer's metadata
before the first batch. So a file is laid out twice, first to learn the index, then with it; record
batches come out the same, because only the footer differs. Rows must come in ascending key groups:
it must never sort, since the order of the rows of one key has a meaning.
"""

import io
import zlib
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparkckpt.format.handle import StateFileRef
from sparkckpt.format.statefile import BatchIndex, StateFamily, StateFileMetadata

DEFAULT_BATCH_ROWS = 16384


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
    """The bytes of a state file with these rows, and the reference to it at `path`.

    `offset` is where the bytes will lie if they are inlined in a handle.
    """
    key_groups = rows["kg"].to_numpy()
    if not _ascend(key_groups):
        raise ValueError("the rows of a state file must be in ascending key groups")
    options = pa.ipc.IpcWriteOptions(compression=codec)
    rows = rows.cast(_schema_of(rows)).combine_chunks()
    cuts = list(_cuts(key_groups, record_batch_rows))
    plain, spans = _lay_out(rows, cuts, options, {})
    batches = tuple(
        BatchIndex(
            offset=start,
            length=end - start,
            first_key_group=int(key_groups[first]),
            last_key_group=int(key_groups[last - 1]),
            rows=last - first,
            crc32=zlib.crc32(plain[start:end]),
        )
        for (first, last), (start, end) in zip(cuts, spans, strict=True)
    )
    data, _ = _lay_out(rows, cuts, options, StateFileMetadata(family, batches).to_footer())
    tail = data[spans[-1][1] if spans else _head_length(rows.schema) :]
    ref = StateFileRef(
        path=path,
        offset=offset,
        length=len(data),
        tail_length=len(tail),
        tail_crc32=zlib.crc32(tail),
        rows=rows.num_rows,
        first_key_group=int(key_groups[0]) if batches else 0,
        last_key_group=int(key_groups[-1]) if batches else 0,
        first_version=first_version,
        last_version=last_version,
        level=level,
        base=base,
    )
    return data, ref


def _schema_of(rows: pa.Table) -> pa.Schema:
    key_group = pa.field("kg", pa.uint16(), nullable=False)
    op = pa.field("op", pa.int8(), nullable=False)
    return pa.schema([key_group, op, rows.schema.field("key"), rows.schema.field("value")])


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


def _lay_out(
    rows: pa.Table,
    cuts: list[tuple[int, int]],
    options: pa.ipc.IpcWriteOptions,
    footer: Mapping[str, str],
) -> tuple[bytes, list[tuple[int, int]]]:
    """The file, and where each record batch begins and ends in it."""
    sink = io.BytesIO()
    start = _head_length(rows.schema)
    spans = []
    with pa.ipc.new_file(sink, rows.schema, options=options, metadata=dict(footer)) as writer:
        for first, end in cuts:
            (batch,) = rows.slice(first, end - first).to_batches()
            writer.write_batch(batch)
            spans.append((start, sink.tell()))
            start = sink.tell()
    return sink.getvalue(), spans


def _head_length(schema: pa.Schema) -> int:
    """What precedes the first record batch: the padded magic and the schema's message."""
    return 8 + int(schema.serialize().size)
