"""State as Spark's own operators show it to Python, out of Arrow and back.

Spark pickles state between the JVM and Python, which has consequences that a function may rely on:
timestamps come as naive datetimes of the worker's time zone, structs as Row, and a value that does
not fit its field is read back as null. They are reproduced here. Values of exactly the expected
Python types, which nearly all are, take a short way.
"""

import datetime
import decimal
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkValueError
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_type

from sparkckpt.processor import values as columns
from sparkckpt.processor.copies import copier

Adopt = Callable[[Any], Any]

_NONE = type(None)
_PLAIN: dict[type[T.DataType], tuple[type, ...]] = {
    T.BooleanType: (bool,),
    T.ByteType: (int,),
    T.ShortType: (int,),
    T.IntegerType: (int,),
    T.LongType: (int,),
    T.DoubleType: (float,),
    T.StringType: (str,),
    T.BinaryType: (bytes,),
    T.DateType: (datetime.date,),
}
"""Python types whose values Spark gives back as they were."""

_PYTHON = (bool, int, float, str, bytes, datetime.datetime, _NONE)

_BITS = {T.ByteType: 8, T.ShortType: 16, T.IntegerType: 32, T.LongType: 64}


class StateSchema:
    """Converts the values of one state variable. `zone` is the session's, for Arrow's types."""

    def __init__(self, schema: T.StructType, zone: str) -> None:
        self.schema = schema
        self.names = schema.names
        self.arrow: pa.StructType = to_arrow_type(schema, timezone=zone)
        self._fields = [field.dataType for field in schema.fields]
        self._read = [reader(kind) for kind in self._fields]
        self._adopt = [adopter(kind) for kind in self._fields]
        self._write = [writer(kind, zone) for kind in self._fields]
        self._plain = {tuple(_PLAIN.get(type(kind), (_NONE,))[0] for kind in self._fields)}
        self._is_adoptable = [type(kind) in _PLAIN for kind in self._fields]
        self._copy = copier(schema)

    def read(self, struct: pa.StructArray) -> list[tuple[Any, ...] | None]:
        """The value of each key, None where it has none."""
        lists = [read(c) for read, c in zip(self._read, struct.flatten(), strict=True)]
        rows: list[Any] = list(zip(*lists, strict=True)) if lists else [()] * len(struct)
        if struct.null_count:
            valid = struct.is_valid().to_numpy(zero_copy_only=False).tolist()
            rows = [row if ok else None for row, ok in zip(rows, valid, strict=True)]
        return rows

    def adopt(self, given: Any) -> tuple[Any, ...]:
        """The value as Spark gives it back once it has been stored."""
        value: tuple[Any, ...] = tuple(given)
        kinds = tuple(map(type, value))
        if kinds in self._plain:
            return value
        if self._learn(kinds):
            return value
        if len(value) != len(self._adopt):
            raise _wrong_length(value, len(self._adopt))
        return tuple(
            None if v is None else adopt(v)
            for adopt, v in zip(self._adopt, map(_normal, value), strict=True)
        )

    def given(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        """An adopted value for the user, who may change it in place."""
        if self._copy is None:
            return value
        copied: tuple[Any, ...] = self._copy(value)
        return copied

    def write(self, rows: Sequence[tuple[Any, ...] | None]) -> pa.StructArray:
        """The structs of these adopted values."""
        if not rows:
            return pa.array([], self.arrow)
        mask = None
        if None in rows:
            mask = pa.array([row is None for row in rows])
            empty = (None,) * len(self._write)
            rows = [empty if row is None else row for row in rows]
        lists: Any = zip(*rows, strict=True) if self._write else ()
        arrays = [write(list_) for write, list_ in zip(self._write, lists, strict=True)]
        fields = [self.arrow.field(i) for i in range(self.arrow.num_fields)]
        if not fields:
            return pa.array([None if row is None else {} for row in rows], self.arrow)
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=mask)

    def _learn(self, kinds: tuple[type, ...]) -> bool:
        """Whether values of these types may be taken as they are, from now on at once."""
        if len(kinds) != len(self._fields):
            return False
        for field, kind, known in zip(self._fields, kinds, self._is_adoptable, strict=True):
            if kind is not _NONE and not (known and kind in _PLAIN[type(field)]):
                return False
        self._plain.add(kinds)
        return True


def reader(kind: T.DataType) -> Callable[[pa.Array], list[Any]]:
    """From a column to the objects that unpickling gives."""
    if isinstance(kind, T.TimestampType):
        return _read_timestamps
    if isinstance(kind, T.StructType):
        return _struct_reader(kind)
    if isinstance(kind, T.ArrayType):
        return _array_reader(kind)
    if isinstance(kind, T.MapType):
        return _map_reader(kind)
    return columns.to_list


def _read_timestamps(column: pa.Array) -> list[Any]:
    micros = column.cast(pa.int64()).to_pylist()
    read = T.TimestampType().fromInternal
    return [None if value is None else read(value) for value in micros]


def _struct_reader(kind: T.StructType) -> Callable[[pa.Array], list[Any]]:
    names = kind.names
    readers = [reader(field.dataType) for field in kind.fields]

    def read(column: pa.Array) -> list[Any]:
        lists = [r(c) for r, c in zip(readers, column.flatten(), strict=True)]
        rows = zip(*lists, strict=True) if lists else [()] * len(column)
        valid = column.is_valid().to_pylist()
        return [
            T._create_row(names, row) if ok else None for row, ok in zip(rows, valid, strict=True)
        ]

    return read


def _array_reader(kind: T.ArrayType) -> Callable[[pa.Array], list[Any]]:
    element = reader(kind.elementType)

    def read(column: pa.Array) -> list[Any]:
        offsets = column.offsets.to_pylist()
        values = element(column.values.slice(offsets[0], offsets[-1] - offsets[0]))
        return _cut(column, offsets, values)

    return read


def _map_reader(kind: T.MapType) -> Callable[[pa.Array], list[Any]]:
    key, item = reader(kind.keyType), reader(kind.valueType)

    def read(column: pa.Array) -> list[Any]:
        offsets = column.offsets.to_pylist()
        at, length = offsets[0], offsets[-1] - offsets[0]
        entries = list(
            zip(
                key(column.keys.slice(at, length)),
                item(column.items.slice(at, length)),
                strict=True,
            )
        )
        return [None if v is None else dict(v) for v in _cut(column, offsets, entries)]

    return read


def _cut(column: pa.Array, offsets: list[int], values: list[Any]) -> list[Any]:
    first = offsets[0] if offsets else 0
    return [
        values[offsets[i] - first : offsets[i + 1] - first] if ok else None
        for i, ok in enumerate(column.is_valid().to_pylist())
    ]


def adopter(kind: T.DataType) -> Adopt:
    """From what a user gives to what Spark gives back; the value is not None."""
    simple = _ADOPTERS.get(type(kind))
    if simple is not None:
        return simple
    if isinstance(kind, _INTEGERS):
        return _integer(_BITS[type(kind)])
    if isinstance(kind, T.DecimalType):
        return _decimal(kind)
    if isinstance(kind, T.StructType):
        return _struct(kind)
    if isinstance(kind, T.ArrayType):
        element = _nullable(adopter(kind.elementType))
        return lambda v: list(map(element, v)) if isinstance(v, (list, tuple)) else None
    if isinstance(kind, T.MapType):
        key, item = _nullable(adopter(kind.keyType)), _nullable(adopter(kind.valueType))
        return lambda v: {key(k): item(x) for k, x in v.items()} if isinstance(v, dict) else None
    return lambda v: kind.fromInternal(kind.toInternal(v))


def _nullable(adopt: Adopt) -> Adopt:
    return lambda v: None if v is None else adopt(v)


def _integer(bits: int) -> Adopt:
    def adopt(value: Any) -> int | None:
        if isinstance(value, bool) or not isinstance(value, int):
            return None
        if not -(2**63) <= value < 2**63:
            return None
        half = 1 << (bits - 1)
        return (value + half) % (1 << bits) - half

    return adopt


def _decimal(kind: T.DecimalType) -> Adopt:
    step = decimal.Decimal(1).scaleb(-kind.scale)
    context = decimal.Context(prec=60, rounding=decimal.ROUND_HALF_UP)

    def adopt(value: Any) -> decimal.Decimal | None:
        if not isinstance(value, decimal.Decimal):
            return None
        exact = value.quantize(step, context=context)
        if exact.adjusted() + 1 + kind.scale > kind.precision and exact:
            raise PySparkValueError(
                f"Decimal {value} does not fit {kind.simpleString()}, the type of its field."
            )
        return exact

    return adopt


def _struct(kind: T.StructType) -> Adopt:
    adopters = [_nullable(adopter(field.dataType)) for field in kind.fields]

    def adopt(value: Any) -> Any:
        if isinstance(value, dict):
            value = tuple(value.get(name) for name in kind.names)
        elif not isinstance(value, (tuple, list)):
            value = kind.toInternal(value)
        elif isinstance(value, T.Row) and getattr(value, "__from_dict__", False):
            value = tuple(value[name] for name in kind.names)
        if len(value) != len(adopters):
            raise _wrong_length(value, len(adopters))
        return T._create_row(
            kind.names, tuple(adopt(v) for adopt, v in zip(adopters, value, strict=True))
        )

    return adopt


def _wrong_length(value: Any, expected: int) -> PySparkValueError:
    return PySparkValueError(
        "[STRUCT_ARRAY_LENGTH_MISMATCH] Input row doesn't have expected number of values required "
        f"by the schema. {expected} fields are required while {len(value)} values are provided."
    )


def _text(value: Any) -> str:
    """What Java's toString gives for what the value is unpickled to."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _normal(value: Any) -> Any:
    """Objects of numpy and pandas as those of Python, at any depth."""
    kind = type(value)
    if kind in _PYTHON:
        return value
    if isinstance(value, np.generic):
        return value.tolist()
    if isinstance(value, tuple) and (isinstance(value, T.Row) or hasattr(value, "_fields")):
        normal = kind(*map(_normal, value))
        if hasattr(value, "__fields__"):
            normal.__fields__ = value.__fields__
        return normal
    if isinstance(value, (list, tuple)):
        return kind(map(_normal, value))
    if isinstance(value, dict):
        return {_normal(k): _normal(v) for k, v in value.items()}
    for method in ("to_pytimedelta", "to_pydatetime"):
        if hasattr(value, method):
            return getattr(value, method)()
    return value


def _timestamp(value: Any) -> datetime.datetime:
    kind = T.TimestampType()
    adopted: datetime.datetime = kind.fromInternal(kind.toInternal(value))
    return adopted


_INTEGERS = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)
_ADOPTERS: dict[type[T.DataType], Adopt] = {
    T.BooleanType: lambda v: v if isinstance(v, bool) else None,
    T.DoubleType: lambda v: v if isinstance(v, float) else None,
    T.FloatType: lambda v: float(np.float32(v)) if isinstance(v, float) else None,
    T.StringType: _text,
    T.BinaryType: lambda v: bytes(v) if isinstance(v, (bytes, bytearray)) else None,
    T.TimestampType: _timestamp,
}


def writer(kind: T.DataType, zone: str) -> Callable[[Sequence[Any]], pa.Array]:
    """From adopted objects to a column."""
    arrow = to_arrow_type(kind, timezone=zone)
    plain = storable(kind)

    def write(values: Sequence[Any]) -> pa.Array:
        if plain is not None:
            values = [None if v is None else plain(v) for v in values]
        try:
            return pa.array(values, arrow)
        except (pa.ArrowInvalid, OverflowError):
            # Integers that are too large; Spark lets them overflow.
            return pa.array([None if v is None else adopter(kind)(v) for v in values], arrow)

    return write


@lru_cache(maxsize=256)
def storable(kind: T.DataType) -> Adopt | None:
    """How an adopted object is turned into one that Arrow takes; None: it takes it as it is."""
    if isinstance(kind, T.TimestampType):
        return kind.toInternal
    if isinstance(kind, T.StructType):
        return _storable_struct(kind)
    if isinstance(kind, T.ArrayType):
        element = storable(kind.elementType)
        return None if element is None else lambda v: [None if x is None else element(x) for x in v]
    if isinstance(kind, T.MapType):
        key, item = (storable(k) or (lambda x: x) for k in (kind.keyType, kind.valueType))
        return lambda v: [(key(k), None if x is None else item(x)) for k, x in v.items()]
    return None


def _storable_struct(kind: T.StructType) -> Adopt:
    parts = [storable(field.dataType) for field in kind.fields]
    if not any(parts):
        return tuple
    return lambda v: tuple(
        x if part is None or x is None else part(x) for part, x in zip(parts, v, strict=True)
    )
