"""Rows, families and damaged copies of files for the tests of the format."""

import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import zstandard

from sparkckpt.format import (
    BatchIndex,
    FamilyFiles,
    StateFamily,
    StateFileMetadata,
    StateFileRef,
    StateHandle,
    write_state_file,
)
from sparkckpt.format.handle import HEADER_LENGTH, MAGIC

DATA = Path(__file__).parent / "data"
MAX_PARALLELISM = 64
KEY = pa.struct({"k": pa.string(), "x": pa.float64()})
VALUE = pa.struct({"n": pa.int64()})
SCHEMA = pa.schema(
    [
        pa.field("kg", pa.uint16(), nullable=False),
        pa.field("op", pa.int8(), nullable=False),
        pa.field("key", KEY),
        pa.field("value", VALUE),
    ]
)
FAMILY = StateFamily(
    operator_id=0,
    store_name="default",
    family="default",
    multi_valued=False,
    max_parallelism=MAX_PARALLELISM,
    key_schema='{"type":"struct","fields":[]}',
    value_schema='{"type":"struct","fields":[]}',
    key_encoding="struct",
    value_encoding="struct",
)

Row = tuple[int, int, Any, Any]
"""kg, op, key, value."""


def table_of(rows: Sequence[Row], schema: pa.Schema = SCHEMA) -> pa.Table:
    columns = zip(*rows, strict=True) if rows else ((), (), (), ())
    arrays = [pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def puts(count: int, first: int = 0) -> pa.Table:
    """So many rows in ascending key groups, three to a group."""
    return table_of(
        [
            ((first + i) // 3, 0, {"k": f"key {i}", "x": i / 2}, {"n": i} if i % 5 else None)
            for i in range(count)
        ]
    )


def state_file(rows: pa.Table, **options: Any) -> tuple[bytes, StateFileRef]:
    defaults: dict[str, Any] = {"first_version": 1, "last_version": 1, "record_batch_rows": 10}
    return write_state_file(rows, FAMILY, "0/0/1_a.delta.arrow", **{**defaults, **options})


def handle_of(*files: StateFileRef) -> StateHandle:
    return StateHandle(
        operator_id=0,
        operator_name="stateStoreSave",
        store_name="default",
        partition=0,
        version=1,
        id="a",
        base_id=None,
        keyed=True,
        parallelism=1,
        max_parallelism=MAX_PARALLELISM,
        first_key_group=0,
        last_key_group=MAX_PARALLELISM - 1,
        changed_rows=0,
        change_digest="0" * 16,
        families=(FamilyFiles("default", False, files),) if files else (),
    )


def with_footer(
    data: bytes, ref: StateFileRef, edit: Callable[[dict[str, str]], None]
) -> tuple[bytes, StateFileRef]:
    """The same record batches below an edited footer, and a reference that vouches for it."""
    reader = pa.ipc.open_file(data)
    footer = {name.decode(): value.decode() for name, value in reader.metadata.items()}
    edit(footer)
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(sink, reader.schema, options=options, metadata=footer) as writer:
        for index in range(reader.num_record_batches):
            writer.write_batch(reader.get_batch(index))
    edited = sink.getvalue().to_pybytes()
    # End-of-stream marker, footer, its length, magic: all that follows the last record batch.
    tail_length = 8 + int.from_bytes(edited[-10:-6], "little") + 4 + 6
    return edited, replace(
        ref,
        length=len(edited),
        tail_length=tail_length,
        tail_crc32=zlib.crc32(edited[-tail_length:]),
    )


def with_batches(
    data: bytes, ref: StateFileRef, edit: Callable[[list[BatchIndex]], Sequence[BatchIndex]]
) -> tuple[bytes, StateFileRef]:
    """The same file with an edited index of record batches."""

    def edit_footer(footer: dict[str, str]) -> None:
        metadata = StateFileMetadata.from_footer(footer, "sample")
        footer.update(replace(metadata, batches=tuple(edit(list(metadata.batches)))).to_footer())

    return with_footer(data, ref, edit_footer)


def description_of(data: bytes) -> dict[str, Any]:
    """The description in a handle, read without any of the checks."""
    length = int.from_bytes(data[-16:-12], "little")
    parsed: dict[str, Any] = json.loads(zstandard.decompress(data[-16 - length : -16]))
    return parsed


def with_description(data: bytes, description: object) -> bytes:
    """The handle with another description and a checksum that vouches for it."""
    length = int.from_bytes(data[-16:-12], "little")
    packed = zstandard.compress(json.dumps(description).encode())
    trailer = len(packed).to_bytes(4, "little") + zlib.crc32(packed).to_bytes(4, "little") + MAGIC
    return data[: max(HEADER_LENGTH, len(data) - 16 - length)] + packed + trailer


def flipped(data: bytes, position: int, mask: int = 0xFF) -> bytes:
    return data[:position] + bytes([data[position] ^ mask]) + data[position + 1 :]
