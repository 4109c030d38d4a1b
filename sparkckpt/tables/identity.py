"""What rows can be told apart and weighed by: columns to group by, and bytes.

Arrow groups by flat columns alone, and takes all NaNs for one; here values are the same only if
every bit of them is. Pure functions on arrays.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc


def whole(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A column in one piece."""
    if not isinstance(values, pa.ChunkedArray):
        return values
    return pa.concat_arrays(values.chunks) if values.num_chunks else pa.array([], values.type)


def comparable(values: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    """Flat columns that are equal exactly where the values are, bit by bit."""
    values = whole(values)
    kind = values.type
    if pa.types.is_struct(kind):
        return [values.is_valid(), *(leaf for f in values.flatten() for leaf in comparable(f))]
    if pa.types.is_floating(kind):
        return [values.view(pa.int32() if kind.bit_width == 32 else pa.int64())]
    if pa.types.is_nested(kind) or pa.types.is_interval(kind) or pa.types.is_null(kind):
        return [as_text(values)]
    return [values]


def as_text(values: pa.Array) -> pa.Array:
    texts = [None if value is None else repr(value) for value in values.to_pylist()]
    return pa.array(texts, pa.string())


def grouped(columns: list[pa.Array], rows: int) -> tuple[pa.Table, list[str]]:
    """The numbers of rows, as `row`, beside columns to group them by, and the names of these."""
    leaves = [leaf for column in columns for leaf in comparable(column)] or [
        pa.nulls(rows, pa.int8())
    ]
    names = [str(index) for index in range(len(leaves))]
    return pa.table([*leaves, np.arange(rows)], [*names, "row"]), names


def sizes(values: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.int64]:
    """The bytes of each value, as they are in memory, without what says where they lie."""
    values = whole(values)
    kind, none = values.type, np.zeros(len(values), np.int64)
    if pa.types.is_struct(kind):
        return sum((sizes(field) for field in values.flatten()), none)
    if pa.types.is_map(kind):
        return _of_items(values.offsets, sizes(values.keys) + sizes(values.items), values)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _of_items(values.offsets, sizes(values.values), values)
    if pa.types.is_null(kind):
        return none
    try:
        lengths = np.full(len(values), (kind.bit_width + 7) // 8, np.int64)
    except ValueError:
        lengths = pc.binary_length(values).fill_null(0).to_numpy(zero_copy_only=False)
    return _where_valid(lengths.astype(np.int64), values)


def _of_items(
    offsets: pa.Array, items: npt.NDArray[np.int64], values: pa.Array
) -> npt.NDArray[np.int64]:
    before = np.concatenate([[0], np.cumsum(items)])
    ends = offsets.to_numpy()
    return _where_valid(before[ends[1:]] - before[ends[:-1]], values)


def _where_valid(found: npt.NDArray[np.int64], values: pa.Array) -> npt.NDArray[np.int64]:
    return np.where(values.is_valid().to_numpy(zero_copy_only=False), found, 0)
