"""Values of state as text: for a terminal, for JSON and for CSV.

Unlike those of reports they are a user's own, of any type, and nothing may be read into their
names. What JSON has no form for becomes text from which the value can be told.
"""

import json
import math
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from sparkckpt.tables.identity import whole

_LONGEST = 200
"""So many characters of a value are shown in a terminal."""


def python_rows(rows: pa.Table | pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows as Python has them; a time that Python cannot hold is text."""
    try:
        found: list[dict[str, Any]] = rows.to_pylist()
    except (ValueError, OverflowError):
        columns = [_times_as_text(column) for column in pa.table(rows).columns]
        found = pa.table(columns, rows.schema.names).to_pylist()
    return found


def _times_as_text(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    values = whole(values)
    kind = values.type
    if pa.types.is_temporal(kind):
        return values.cast(pa.int64() if pa.types.is_duration(kind) else pa.string())
    if pa.types.is_struct(kind):
        fields = [_times_as_text(field) for field in values.flatten()]
        names = [field.name for field in kind]
        return pa.StructArray.from_arrays(fields, names, mask=values.is_null())
    return values


def is_number(kind: pa.DataType) -> bool:
    return any(
        check(kind) for check in (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    )


def value_text(value: Any) -> str:
    """For people: a null as a dash, a struct as `name=value`, long texts cut off."""
    text = _text(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"


def _text(value: Any) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "true" if value else "false"
        case Mapping():
            return " ".join(f"{name}={_text(item)}" for name, item in value.items())
        case pa.MonthDayNano():
            return str(json_value(value))
        case list():
            return "[" + ", ".join(map(_text, value)) + "]"
        case tuple():
            return ": ".join(map(_text, value))
        case datetime():
            return value.isoformat(" ").removesuffix("+00:00")
        case bytes() | date() | time():
            return str(json_value(value))
    return str(value)


def json_value(value: Any) -> Any:
    """For programs: times in ISO 8601, binary in hexadecimal, decimals as text."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case Mapping():
            return {name: json_value(item) for name, item in value.items()}
        case pa.MonthDayNano():
            return {"months": value.months, "days": value.days, "nanoseconds": value.nanoseconds}
        case list() | tuple():
            return [json_value(item) for item in value]
        case datetime() | date() | time():
            return value.isoformat()
        case bytes():
            return value.hex()
        case Decimal():
            return str(value)
        case timedelta():
            return value.total_seconds()
    return value


Fits = Callable[[pa.DataType], bool]
"""Whether a form can hold a type."""


def fitted(batch: pa.RecordBatch, fits: Fits) -> pa.RecordBatch:
    """The rows with columns that do not fit as text: JSON, or binary in hexadecimal."""
    columns = [
        column if fits(column.type) else pa.array(map(_plain_text, column.to_pylist()), pa.string())
        for column in batch.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def fitted_schema(schema: pa.Schema, fits: Fits) -> pa.Schema:
    return pa.schema(
        [field if fits(field.type) else pa.field(field.name, pa.string()) for field in schema]
    )


def fits_parquet(kind: pa.DataType) -> bool:
    """It has no intervals of months, days and nanoseconds."""
    if pa.types.is_nested(kind):
        return all(fits_parquet(kind.field(index).type) for index in range(kind.num_fields))
    return not pa.types.is_interval(kind)


def fits_csv(kind: pa.DataType) -> bool:
    return is_number(kind) or any(
        check(kind)
        for check in (
            pa.types.is_boolean,
            pa.types.is_string,
            pa.types.is_date,
            pa.types.is_timestamp,
            pa.types.is_null,
        )
    )


def _plain_text(value: Any) -> str | None:
    if value is None:
        return None
    plain = json_value(value)
    return plain if isinstance(plain, str) else json.dumps(plain)
