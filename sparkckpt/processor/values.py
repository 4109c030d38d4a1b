"""Columns of Arrow as lists of Python objects, and back, column by column.

The objects are those that Arrow's own `as_py` gives, which is what Spark's transformWithState hands
to a processor; only the way there is shorter. Nothing here knows of keys or of state.
"""

import datetime
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

_UTC = datetime.timezone.utc
_RULES_END = 2**31 * 1_000_000
"""Where the transitions end that time zone files list, in microseconds: 2038."""
_UTC_NAMES = ("UTC", "Etc/UTC", "GMT", "Z", "+00:00")


def to_list(column: pa.Array) -> list[Any]:
    """What `column.to_pylist()` gives, sooner."""
    kind = column.type
    if pa.types.is_timestamp(kind):
        return _timestamps(column)
    if _keeps_nulls(kind) or (column.null_count == 0 and _is_number(kind)):
        values: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
        return values
    pylist: list[Any] = column.to_pylist()
    return pylist


def to_tuples(columns: Sequence[pa.Array], length: int) -> list[tuple[Any, ...]]:
    if not columns:
        return [()] * length
    return list(zip(*map(to_list, columns), strict=True))


def rows_of(struct: pa.StructArray) -> list[tuple[Any, ...] | None]:
    """The fields of each struct as a tuple, None where it is null."""
    rows: list[tuple[Any, ...] | None] = list(to_tuples(struct.flatten(), len(struct)))
    if struct.null_count:
        valid = struct.is_valid().to_numpy(zero_copy_only=False).tolist()
        rows = [row if ok else None for row, ok in zip(rows, valid, strict=True)]
    return rows


def from_list(values: Sequence[Any], kind: pa.DataType, naive: datetime.tzinfo = _UTC) -> pa.Array:
    """A column of these objects; timestamps without a time zone are taken to be in `naive`."""
    if pa.types.is_timestamp(kind) and kind.tz is not None and naive is not _UTC:
        values = [localized(v, naive) for v in values]
    return pa.array(values, kind)


def from_tuples(
    rows: Sequence[Any], kind: pa.StructType, naive: datetime.tzinfo = _UTC
) -> pa.StructArray:
    """The structs of `kind` with these fields, by position; None gives null."""
    fields = [kind.field(i) for i in range(kind.num_fields)]
    if not rows:
        return pa.array([], kind)
    mask = None
    if None in rows:
        mask = pa.array([row is None for row in rows])
        rows = [(None,) * len(fields) if row is None else row for row in rows]
    columns = list(zip(*rows, strict=True))
    if len(columns) != len(fields):
        raise ValueError(
            f"A row has {len(columns)} values where the schema has {len(fields)} fields: "
            f"{', '.join(field.name for field in fields)}"
        )
    arrays = [
        from_list(values, field.type, naive) for values, field in zip(columns, fields, strict=True)
    ]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=mask)


def localized(value: Any, zone: datetime.tzinfo) -> Any:
    if isinstance(value, datetime.datetime) and value.tzinfo is None:
        return value.replace(tzinfo=zone)
    return value


def zone_of(name: str) -> datetime.tzinfo:
    """The zone as Arrow names it in what it gives to Python."""
    zone: datetime.tzinfo = pa.scalar(0, pa.timestamp("us", name)).as_py().tzinfo
    return zone


def struct_of(columns: Sequence[pa.Array], kind: pa.StructType) -> pa.StructArray:
    return pa.StructArray.from_arrays(columns, fields=[kind.field(i) for i in range(len(columns))])


def _timestamps(column: pa.Array) -> list[Any]:
    if column.type.unit != "us":
        pylist: list[Any] = column.to_pylist()
        return pylist
    naive = column.to_numpy(zero_copy_only=False).tolist()
    if column.type.tz is None:
        return list(naive)
    zone = zone_of(column.type.tz)
    if isinstance(zone, ZoneInfo) and _is_modern(column) and _is_known(column.type.tz):
        return _local_times(column, zone)
    if column.type.tz in _UTC_NAMES and not any(type(value) is int for value in naive):
        return [None if value is None else value.replace(tzinfo=zone) for value in naive]
    return list(map(_in_zone(zone), naive))


def _is_modern(column: pa.Array) -> bool:
    """Whether Arrow and Python surely know the same rules of a zone at all of these times."""
    limits = pc.min_max(column.cast(pa.int64())).as_py()
    low, high = limits["min"], limits["max"]
    return low is not None and low >= 0 and high < _RULES_END


@cache
def _is_known(zone: str) -> bool:
    """Whether Arrow finds the zone, too: Python may have it from a package, the system not."""
    try:
        pc.local_timestamp(pa.array([0], pa.timestamp("us", zone)))
    except pa.ArrowInvalid:
        return False
    return True


def _local_times(column: pa.Array, zone: datetime.tzinfo) -> list[Any]:
    local = pc.local_timestamp(column)
    times = local.to_numpy(zero_copy_only=False).tolist()
    earliest = pc.assume_timezone(local, column.type.tz, ambiguous="earliest")
    second = pc.fill_null(pc.not_equal(earliest, column), False)
    aware: list[Any] = [None if time is None else time.replace(tzinfo=zone) for time in times]
    for i in np.flatnonzero(second.to_numpy(zero_copy_only=False)):
        aware[i] = aware[i].replace(fold=1)
    return aware


def _in_zone(zone: datetime.tzinfo) -> Callable[[Any], Any]:
    def aware(value: Any) -> datetime.datetime | None:
        if value is None:
            return None
        # An int is what numpy gives for a year that datetime does not know.
        if isinstance(value, int):
            raise OverflowError(f"timestamp {value} us is out of the range of datetime")
        moment: datetime.datetime = value.replace(tzinfo=_UTC)
        return moment.astimezone(zone)

    return aware


def _keeps_nulls(kind: pa.DataType) -> bool:
    """Whether numpy's list has None, and nothing else, for null."""
    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_binary(kind)
        or types.is_large_binary(kind)
        or types.is_decimal(kind)
        or types.is_date32(kind)
    )


def _is_number(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))
