"""What the rows of several state files come to: the current state.

A pure function on tables, the Python twin of `KeyGroupMerge.scala`. It must never read a file, and
never compare keys otherwise than by their exact values: a key that differs in one bit is another.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sparkckpt.errors import IncompatibleSchemasError

PUT, DELETE, APPEND = 0, 1, 2


def resolve(tables: Sequence[pa.Table]) -> pa.Table:
    """The state after applying the rows of the tables, oldest table first.

    The result has the columns of a state file and the form of a base: for each key one put and the
    appends that follow it; key groups ascend. It has the schema of the newest table.
    """
    rows = pa.concat_tables(_aligned(tables)).combine_chunks()
    if rows.num_rows == 0:
        return rows
    order, starts = _rows_by_key(rows)
    ops = rows["op"].to_numpy()[order]
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
    ops_index = rows.schema.get_field_index("op")
    return rows.take(kept[in_order]).set_column(
        ops_index, rows.schema.field(ops_index), pa.array(ops_of_base[in_order])
    )


def _rows_by_key(rows: pa.Table) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Row numbers key by key, in order within a key, and where each key's begin."""
    columns = [rows["kg"], *_identity(rows["key"].combine_chunks())]
    names = [str(index) for index in range(len(columns))]
    table = pa.table([*columns, np.arange(rows.num_rows)], [*names, "row"])
    lists = table.group_by(names, use_threads=False).aggregate([("row", "list")])["row_list"]
    grouped = lists.combine_chunks()
    if isinstance(grouped, pa.ChunkedArray):
        grouped = grouped.chunk(0)
    return grouped.flatten().to_numpy(), grouped.offsets.to_numpy()[:-1].astype(np.int64)


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
    return [_align(table, schema) for table in tables]


def _align(table: pa.Table, schema: pa.Schema) -> pa.Table:
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
