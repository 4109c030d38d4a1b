"""Spark's UnsafeRow bytes as typed Arrow values, for the sides that Arrow cannot hold as they are.

A row is a bitmap of nulls, a word for each field, and what does not fit a word. Types without an
Arrow type of their own come out as the nearest one: a variant as JSON text, a calendar interval as
months, days and nanoseconds, a user-defined type as what it is stored as. Only what Spark writes
into state is understood here; nothing is ever written.
"""

import json
import re
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pyarrow as pa

from sparkckpt.errors import CorruptStateError

Decoder = Callable[[bytes, int], Any]
"""Reads the value whose word is at an offset of a row, or of an array's fixed part."""

_LONG_DIGITS = 18
_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")
_FIXED: dict[str, tuple[str, pa.DataType]] = {
    "boolean": ("?", pa.bool_()),
    "byte": ("b", pa.int8()),
    "short": ("<h", pa.int16()),
    "integer": ("<i", pa.int32()),
    "long": ("<q", pa.int64()),
    "float": ("<f", pa.float32()),
    "double": ("<d", pa.float64()),
    "date": ("<i", pa.date32()),
    "timestamp": ("<q", pa.timestamp("us", "UTC")),
    "timestamp_ntz": ("<q", pa.timestamp("us")),
}
_INTERVALS = ("interval year", "interval month")


def decode_rows(rows: pa.Array, schema: str, where: str) -> pa.Array:
    """The structs that these rows are; `schema` is Spark's, as JSON; a null row is a null."""
    fields = json.loads(schema)["fields"]
    decoders = [_Field(field["type"]) for field in fields]
    kind = _struct_type(fields, decoders)
    try:
        values = [None if row is None else _fields_of(row, 0, decoders) for row in rows.to_pylist()]
        columns = list(zip(*(v or (None,) * len(decoders) for v in values), strict=True))
        arrays = [
            pa.array(column, decoder.arrow)
            for column, decoder in zip(columns or [()] * len(decoders), decoders, strict=True)
        ]
    except (struct.error, ValueError, IndexError, ArithmeticError) as error:
        raise CorruptStateError(where, f"it has a row that is not {schema}: {error}") from error
    missing = pa.array([value is None for value in values], pa.bool_())
    if not arrays:
        return pa.array([None if value is None else {} for value in values], kind)
    return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=missing)


def _struct_type(fields: list[Any], decoders: list["_Field"]) -> pa.DataType:
    """Names that occur twice get a suffix, as where Arrow holds the struct itself."""
    seen: set[str] = set()
    members = []
    for field, decoder in zip(fields, decoders, strict=True):
        name, number = field["name"], 0
        while name in seen:
            name, number = f"{field['name']}_{number}", number + 1
        seen.add(name)
        members.append(pa.field(name, decoder.arrow))
    return pa.struct(members)


class _Field:
    """How one type lies in a row or in an array, and what it is in Arrow."""

    def __init__(self, kind: Any) -> None:
        self.width = 8
        """Bytes of an array's item."""
        self.arrow, self.read = self._of(kind)

    def _of(self, kind: Any) -> tuple[pa.DataType, Decoder]:
        if isinstance(kind, dict):
            return self._of_nested(kind)
        if kind in _FIXED:
            code, arrow = _FIXED[kind]
            self.width = struct.calcsize(code)
            return arrow, lambda data, at: struct.unpack_from(code, data, at)[0]
        if found := _DECIMAL.fullmatch(kind):
            return self._of_decimal(int(found[1]), int(found[2]))
        if kind == "void":
            return pa.null(), lambda data, at: None
        if kind.startswith("time("):
            return pa.time64("ns"), _long
        if kind.startswith(_INTERVALS):
            self.width = 4
            return pa.int32(), lambda data, at: struct.unpack_from("<i", data, at)[0]
        if kind == "interval":
            return pa.month_day_nano_interval(), _calendar_interval
        if kind.startswith("interval "):
            return pa.duration("us"), _long
        if kind == "variant":
            return pa.string(), lambda data, at: _variant(_bytes(data, at))
        if kind.startswith(("string", "char", "varchar")):
            return pa.string(), lambda data, at: _bytes(data, at).decode()
        return pa.binary(), _bytes

    def _of_decimal(self, precision: int, scale: int) -> tuple[pa.DataType, Decoder]:
        def small(data: bytes, at: int) -> Decimal:
            return Decimal(_long(data, at)).scaleb(-scale)

        def large(data: bytes, at: int) -> Decimal:
            digits = str(abs(number := int.from_bytes(_bytes(data, at), "big", signed=True)))
            return Decimal((int(number < 0), tuple(map(int, digits)), -scale))

        return pa.decimal128(precision, scale), small if precision <= _LONG_DIGITS else large

    def _of_nested(self, kind: dict[str, Any]) -> tuple[pa.DataType, Decoder]:
        if kind["type"] == "struct":
            fields = [_Field(field["type"]) for field in kind["fields"]]
            arrow = _struct_type(kind["fields"], fields)
            names = [field.name for field in arrow]

            def struct_at(data: bytes, at: int) -> dict[str, Any]:
                values = _fields_of(_bytes(data, at), 0, fields)
                return dict(zip(names, values, strict=True))

            return arrow, struct_at
        if kind["type"] == "array":
            item = _Field(kind["elementType"])
            return pa.list_(item.arrow), lambda data, at: _items(_bytes(data, at), item)
        if kind["type"] == "map":
            key, value = _Field(kind["keyType"]), _Field(kind["valueType"])

            def map_at(data: bytes, at: int) -> list[tuple[Any, Any]]:
                entries = _bytes(data, at)
                end = 8 + _long(entries, 0)
                keys, values = _items(entries[8:end], key), _items(entries[end:], value)
                return list(zip(keys, values, strict=True))

            return pa.map_(key.arrow, value.arrow), map_at
        return self._of(kind["sqlType"])


def _fields_of(row: bytes, base: int, fields: list[_Field]) -> tuple[Any, ...]:
    words = base + (len(fields) + 63) // 64 * 8
    return tuple(
        None if row[base + index // 8] >> index % 8 & 1 else field.read(row, words + 8 * index)
        for index, field in enumerate(fields)
    )


def _items(array: bytes, item: _Field) -> list[Any]:
    """An array: the number of items, a bitmap of nulls, the items or where they lie."""
    count = _long(array, 0)
    start = 8 + (count + 63) // 64 * 8
    return [
        None
        if array[8 + index // 8] >> index % 8 & 1
        else item.read(array, start + item.width * index)
        for index in range(count)
    ]


def _long(data: bytes, at: int) -> int:
    return int(struct.unpack_from("<q", data, at)[0])


def _bytes(data: bytes, at: int) -> bytes:
    """A word has offset and size of what does not fit it."""
    size, offset = struct.unpack_from("<ii", data, at)
    if not 0 <= offset <= offset + size <= len(data):
        raise ValueError(f"{size} bytes at {offset} of {len(data)}")
    return data[offset : offset + size]


def _calendar_interval(data: bytes, at: int) -> pa.MonthDayNano:
    _, offset = struct.unpack_from("<ii", data, at)
    months, days, microseconds = struct.unpack_from("<iiq", data, offset)
    return pa.MonthDayNano([months, days, microseconds * 1000])


def _variant(data: bytes) -> str:
    from pyspark.sql.variant_utils import VariantUtils

    (size,) = struct.unpack_from("<i", data, 0)
    return str(VariantUtils.to_json(data[4 : 4 + size], data[4 + size :], "UTC"))
