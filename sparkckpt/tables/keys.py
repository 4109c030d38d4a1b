"""A grouping key that a person names: its key group, and which rows have it.

Values may be Python's own or what JSON has for them: text in ISO 8601 for dates and times, seconds
for durations, digits in text for decimals, hexadecimal text for binary. They become exactly the
type of the state, or an error that says what the key must look like.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sparkckpt.errors import InvalidKeyError
from sparkckpt.keygroups import key_group_of
from sparkckpt.murmur3 import hash_columns

Key = Mapping[str, Any]


def key_from_json(text: str, columns: pa.Schema) -> Key:
    """The key in a text such as `{"k": 7}`."""
    try:
        key = json.loads(text)
    except ValueError as error:
        raise InvalidKeyError(f"{text!r} is not JSON ({error})", described(columns)) from error
    if not isinstance(key, dict):
        raise InvalidKeyError(f"{text!r} is no JSON object", described(columns))
    return key


def key_row(key: Key, columns: pa.Schema) -> pa.RecordBatch:
    """The key as one row with the types of the state."""
    if set(key) != set(columns.names):
        named = ", ".join(sorted(map(str, key))) or "nothing"
        raise InvalidKeyError(f"it names {named}", described(columns))
    arrays = []
    for field in columns:
        try:
            arrays.append(pa.array([_convert(key[field.name], field.type)], field.type))
        except (pa.ArrowException, TypeError, ValueError, OverflowError, InvalidOperation) as error:
            why = f"{field.name} cannot be {key[field.name]!r} ({error})"
            raise InvalidKeyError(why, described(columns)) from error
    return pa.RecordBatch.from_arrays(arrays, schema=columns)


def described(columns: pa.Schema) -> list[str]:
    return [f"{field.name} ({field.type})" for field in columns]


def key_groups_of(columns: Sequence[pa.Array], rows: int, max_parallelism: int) -> Any:
    """The key group of each row of these grouping key columns."""
    hashes = hash_columns(columns, rows)
    return key_group_of(hashes.astype(np.int64), max_parallelism)  # type: ignore[arg-type]


def rows_with(key: pa.RecordBatch, columns: Sequence[pa.Array], rows: int) -> pa.Array:
    """Which rows have the key, as booleans; nulls are equal to each other, and so are NaNs."""
    same = np.ones(rows, np.bool_)
    for wanted, column in zip(key.columns, columns, strict=True):
        same &= _equal(column, wanted)
    return pa.array(same)


def _equal(values: pa.Array, wanted: pa.Array) -> npt.NDArray[np.bool_]:
    """Which values are the one in `wanted`, an array of one."""
    missing: npt.NDArray[np.bool_] = values.is_null().to_numpy(zero_copy_only=False)
    if wanted[0].as_py() is None:
        return missing
    kind = values.type
    if pa.types.is_struct(kind):
        same: npt.NDArray[np.bool_] = ~missing
        for field, one in zip(values.flatten(), wanted.flatten(), strict=True):
            same &= _equal(field, one)
        return same
    if pa.types.is_nested(kind):
        item = repr(wanted[0].as_py())
        return np.array([repr(value) == item for value in values.to_pylist()], np.bool_)
    equal = pc.equal(values, wanted[0])
    if pa.types.is_floating(kind):
        equal = pc.or_(equal, pc.and_(pc.is_nan(values), pc.is_nan(wanted[0])))
    return np.asarray(pc.fill_null(equal, False).to_numpy(zero_copy_only=False), np.bool_)


def _convert(value: Any, kind: pa.DataType) -> Any:
    """What JSON writes as text, as Python has it; anything else as it is."""
    if value is None or (isinstance(value, bool) and not pa.types.is_boolean(kind)):
        return _refuse_boolean(value)
    if pa.types.is_struct(kind) and isinstance(value, Mapping):
        names = [field.name for field in kind]
        if set(value) != set(names):
            raise ValueError(f"it has the fields {', '.join(names)}")
        return {field.name: _convert(value[field.name], field.type) for field in kind}
    if pa.types.is_list(kind) and isinstance(value, Sequence) and not isinstance(value, str):
        return [_convert(item, kind.value_type) for item in value]
    if pa.types.is_decimal(kind):
        return Decimal(str(value)) if isinstance(value, int | float | str) else value
    if pa.types.is_duration(kind) and isinstance(value, int | float):
        return timedelta(seconds=value)
    if pa.types.is_timestamp(kind) and isinstance(value, str | datetime):
        return _instant(value, kind.tz is not None)
    if isinstance(value, str):
        return _from_text(value, kind)
    return value


def _refuse_boolean(value: Any) -> None:
    if value is not None:
        raise ValueError("it is no boolean")


def _from_text(text: str, kind: pa.DataType) -> Any:
    if pa.types.is_date(kind):
        return date.fromisoformat(text)
    if pa.types.is_time(kind):
        return time.fromisoformat(text)
    if pa.types.is_binary(kind):
        return bytes.fromhex(text)
    if pa.types.is_floating(kind):
        return float(text)
    if pa.types.is_integer(kind):
        return int(text)
    return text


def _instant(value: str | datetime, zoned: bool) -> datetime:
    """A time without a zone is one in UTC, as files have it."""
    if isinstance(value, str):
        value = datetime.fromisoformat(
            value.removesuffix("Z") + ("+00:00" if value.endswith("Z") else "")
        )
    if zoned and value.tzinfo is None:
        return value.replace(tzinfo=timezone.utc)
    return value if zoned else value.replace(tzinfo=None)
