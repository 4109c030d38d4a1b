"""What the rows of several state files come to: the current state.

A pure function on tables, the Python twin of `KeyGroupMerge.scala`. Rows are resolved a run of key
groups at a time, which all tables have in the same order: what is looked up then fits the caches of
a processor. Most rows of a base are the only ones of their keys, which cheap hashes can tell; only
the others are compared. It must never read a file, and never take two keys for the same otherwise
than by their exact values: a key that differs in one bit is another.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sparkckpt.errors import IncompatibleSchemasError

PUT, DELETE, APPEND = 0, 1, 2

_ROWS_AT_ONCE = 1 << 16

Rows = npt.NDArray[np.int64]
"""Numbers of rows."""


def resolve(tables: Sequence[pa.Table], *, single_valued: bool = False) -> pa.Table:
    """The state after applying the rows of the tables, oldest table first.

    Each table has its rows in ascending key groups, as a state file has. The result has the columns
    of a state file and the form of a base: for each key one put and the appends that follow it; key
    groups ascend. It has the schema of the newest table. With `single_valued` no table has a key
    twice, which is so of files of single-valued state, and makes it faster.
    """
    aligned = [table.combine_chunks() for table in _aligned(tables)]
    schema = aligned[-1].schema
    filled = [table for table in aligned if table.num_rows]
    parts = [_resolve(run, single_valued) for run in _runs(filled)]
    return pa.concat_tables(parts) if parts else schema.empty_table()


def _runs(tables: Sequence[pa.Table]) -> Iterator[list[pa.Table]]:
    """The tables cut into runs of key groups, of which each has some number of rows together."""
    key_groups = [table["kg"].to_numpy() for table in tables]
    starts = [0] * len(tables)
    while any(start < len(groups) for start, groups in zip(starts, key_groups, strict=True)):
        border = _border(key_groups, starts)
        ends = [int(np.searchsorted(groups, border, side="right")) for groups in key_groups]
        yield [
            table.slice(start, end - start)
            for table, start, end in zip(tables, starts, ends, strict=True)
            if end > start
        ]
        starts = ends


def _border(key_groups: Sequence[npt.NDArray[np.uint16]], starts: Sequence[int]) -> np.uint16:
    """The last key group of a run: where the longest rest has had its share of the rows."""
    rests = [len(groups) - start for groups, start in zip(key_groups, starts, strict=True)]
    longest = int(np.argmax(rests))
    share = max(1, _ROWS_AT_ONCE * rests[longest] // sum(rests))
    groups = key_groups[longest]
    if share >= rests[longest]:
        return np.uint16(max(groups[-1] for groups in key_groups))
    return np.uint16(groups[starts[longest] + share - 1])


def _resolve(tables: Sequence[pa.Table], single_valued: bool) -> pa.Table:
    """The same for tables whose rows are few enough to be looked at together."""
    rows = pa.concat_tables(tables).combine_chunks()
    ops = rows["op"].to_numpy()
    if (ops == APPEND).any():
        kept, ops_of_base = _lists(rows, ops)
    else:
        largest = _largest(tables) if single_valued else None
        last = _last_of_each_key(rows, largest)
        kept = last[ops[last] != DELETE]
        key_groups = rows["kg"].to_numpy()[kept]
        if (key_groups[1:] < key_groups[:-1]).any():
            # Within a key group, keys stay in the order in which they were seen first.
            kept = kept[np.argsort(key_groups, kind="stable")]
        ops_of_base = np.zeros(len(kept), np.int8)
    ops_index = rows.schema.get_field_index("op")
    in_place = len(kept) == rows.num_rows and bool((np.diff(kept) == 1).all())
    resolved = rows if in_place else rows.take(kept)
    return resolved.set_column(ops_index, rows.schema.field(ops_index), pa.array(ops_of_base))


def _largest(tables: Sequence[pa.Table]) -> slice:
    """Which rows are those of the table that has most."""
    counts = [table.num_rows for table in tables]
    number = counts.index(max(counts))
    start = sum(counts[:number])
    return slice(start, start + counts[number])


def _last_of_each_key(rows: pa.Table, unique: slice | None) -> Rows:
    """The row with the last change of each key, in the order of the keys' first ones.

    Of the rows in `unique` no two have the same key.
    """
    compared = np.arange(rows.num_rows)
    last_by_first = np.arange(rows.num_rows)
    if unique is not None:
        alone = _alone(_hashes(rows), unique)
        compared = np.flatnonzero(~alone)
        last_by_first[compared] = -1
    keys = rows.select(["kg", "key"])
    table, names = _keyed(keys if unique is None else keys.take(compared))
    changes = [("row", "min"), ("row", "max")]
    grouped = table.group_by(names, use_threads=False).aggregate(changes)
    first, last = (compared[grouped[name].to_numpy()] for name in ("row_min", "row_max"))
    last_by_first[compared] = -1
    last_by_first[first] = last
    return last_by_first[last_by_first >= 0]


def _alone(hashes: npt.NDArray[np.uint64], unique: slice) -> npt.NDArray[np.bool_]:
    """The rows in the slice whose keys no other row can have."""
    others = len(hashes) - (unique.stop - unique.start)
    bits = max(10, int(others * 16).bit_length())
    buckets = (hashes >> np.uint64(64 - bits)).astype(np.int64)
    taken = np.zeros(1 << bits, np.bool_)
    taken[buckets[: unique.start]] = True
    taken[buckets[unique.stop :]] = True
    alone = np.zeros(len(hashes), np.bool_)
    alone[unique] = ~taken[buckets[unique]]
    return alone


_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def _hashes(rows: pa.Table) -> npt.NDArray[np.uint64]:
    """Numbers that are equal where keys are. They leave out what is not numbers or text."""
    hashes: npt.NDArray[np.uint64] = rows["kg"].to_numpy().astype(np.uint64)
    for column in _leaves(rows["key"].combine_chunks()):
        hashes = (hashes ^ (hashes >> np.uint64(32)) ^ column) * _MULTIPLIER
    return hashes


def _leaves(array: pa.Array) -> Iterator[npt.NDArray[np.uint64]]:
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0)
    kind = array.type
    if pa.types.is_struct(kind):
        for child in array.flatten():
            yield from _leaves(child)
    elif pa.types.is_string(kind) or pa.types.is_binary(kind):
        yield _ends_of(array)
    elif pa.types.is_primitive(kind) and kind.bit_width in (8, 16, 32, 64):
        unsigned = {8: pa.uint8(), 16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}
        numbers = array.view(unsigned[kind.bit_width]).fill_null(0)
        yield numbers.to_numpy(zero_copy_only=False).astype(np.uint64)


def _ends_of(array: pa.Array) -> npt.NDArray[np.uint64]:
    """Of each text its last eight bytes, where names that are counted up differ, and its length."""
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
    lengths = np.diff(ends).astype(np.uint64)
    padding = np.zeros(8, np.uint8)
    text = np.concatenate([padding, np.frombuffer(data or b"", np.uint8)])
    words = np.lib.stride_tricks.sliding_window_view(text, 8)[ends[1:]]
    last = np.ascontiguousarray(words).view(np.uint64).ravel()
    # In a shorter text's eight bytes the first ones are not its own.
    foreign = np.uint64(64) - np.uint64(8) * np.minimum(lengths, np.uint64(8))
    own = np.where(lengths > 0, last >> np.minimum(foreign, np.uint64(63)), np.uint64(0))
    present = array.is_valid().to_numpy(zero_copy_only=False)
    result: npt.NDArray[np.uint64] = np.where(present, own ^ (lengths << np.uint64(56)), 0)
    return result


def _lists(rows: pa.Table, ops: npt.NDArray[np.int8]) -> tuple[Rows, npt.NDArray[np.int8]]:
    """The rows that make up the lists of multi-valued state, and what each does in a base."""
    order, starts = _rows_by_key(rows)
    ops = ops[order]
    counts = np.diff(starts, append=len(order))
    key_of = np.repeat(np.arange(len(starts)), counts)
    position = np.arange(len(order))

    last_reset = np.maximum.reduceat(np.where(ops == APPEND, -1, position), starts)
    live = (position >= last_reset[key_of]) & (ops != DELETE)
    # The empty list stands for itself only as long as nothing is appended to it.
    empty = (ops == PUT) & pc.is_null(rows["value"]).to_numpy()[order]
    live &= ~(empty & (np.add.reduceat(live.astype(np.int64), starts)[key_of] > 1))

    kept, kept_keys = order[live], key_of[live]
    first_of_key = np.diff(kept_keys, prepend=-1) != 0
    ops_of_base = np.where(first_of_key, PUT, APPEND).astype(np.int8)
    first_seen = order[starts][kept_keys]
    in_order = np.lexsort((position[live], first_seen, rows["kg"].to_numpy()[kept]))
    return kept[in_order], ops_of_base[in_order]


def _rows_by_key(rows: pa.Table) -> tuple[Rows, Rows]:
    """Row numbers key by key, in order within a key, and where each key's begin."""
    table, names = _keyed(rows)
    lists = table.group_by(names, use_threads=False).aggregate([("row", "list")])["row_list"]
    grouped = lists.combine_chunks()
    if isinstance(grouped, pa.ChunkedArray):
        grouped = grouped.chunk(0)
    return grouped.flatten().to_numpy(), grouped.offsets.to_numpy()[:-1].astype(np.int64)


def _keyed(rows: pa.Table) -> tuple[pa.Table, list[str]]:
    """The numbers of the rows beside what they can be grouped by, and the names of the latter."""
    columns = [rows["kg"], *_identity(rows["key"].combine_chunks())]
    names = [str(index) for index in range(len(columns))]
    return pa.table([*columns, np.arange(rows.num_rows)], [*names, "row"]), names


def _identity(array: pa.Array) -> list[pa.Array]:
    """Columns that can be grouped by and are equal exactly where the values are."""
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0)
    kind = array.type
    if pa.types.is_struct(kind):
        presence = [array.is_valid()] if array.null_count else []
        return presence + [column for child in array.flatten() for column in _identity(child)]
    if pa.types.is_nested(kind):
        return [pa.array([repr(value) for value in array.to_pylist()], pa.string())]
    if pa.types.is_floating(kind):
        return [array.view(pa.int32() if kind.bit_width == 32 else pa.int64())]
    return [array]


def _aligned(tables: Sequence[pa.Table]) -> list[pa.Table]:
    """The tables with the schema of the newest, where Spark let a schema evolve in between."""
    schema = tables[-1].schema.remove_metadata()
    return [align(table, schema) for table in tables]


def align(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with another schema, as far as the one may have become the other."""
    if table.schema.equals(schema):
        return table.replace_schema_metadata(None)
    columns = [
        pa.chunked_array(
            [_convert(chunk, field.type, field.name) for chunk in table[field.name].chunks],
            field.type,
        )
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _convert(array: pa.Array, wanted: pa.DataType, name: str) -> pa.Array:
    """Matches the fields of a struct by position where their number and types agree, else by name;
    a field that is new is null, one that is gone is dropped, one that was widened is cast."""
    found = array.type
    if found == wanted:
        return array
    if pa.types.is_struct(found) and pa.types.is_struct(wanted):
        old, new = found.fields, wanted.fields
        children = array.flatten()
        if [field.type for field in old] == [field.type for field in new]:
            converted = children
        else:
            by_name = {field.name: child for field, child in zip(old, children, strict=True)}
            converted = [
                _convert(by_name[field.name], field.type, f"{name}.{field.name}")
                if field.name in by_name
                else pa.nulls(len(array), field.type)
                for field in new
            ]
        return pa.StructArray.from_arrays(converted, fields=new, mask=array.is_null())
    try:
        return array.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise IncompatibleSchemasError(name, str(found), str(wanted)) from error
