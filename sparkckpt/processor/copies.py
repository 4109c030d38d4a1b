"""Copies of values that can be changed in place: arrays and maps, and structs that hold them.

What a function is given and what it gives back is kept until a record batch is full. Spark turns it
into bytes at once, so a list that is reused, or appended to without an update, must change nothing.
"""

import copy
from collections.abc import Callable
from typing import Any

from pyspark.sql import types as T

Copy = Callable[[Any], Any]


def copier(kind: T.DataType) -> Copy | None:
    """How values of this type are copied; None: they cannot be changed."""
    if isinstance(kind, T.ArrayType):
        return _array_copier(copier(kind.elementType))
    if isinstance(kind, T.MapType):
        return _map_copier(copier(kind.valueType))
    if isinstance(kind, T.StructType):
        return _struct_copier([copier(field.dataType) for field in kind.fields])
    return None


def _array_copier(element: Copy | None) -> Copy:
    def copied(value: Any) -> Any:
        if type(value) is not list:
            return copy.deepcopy(value)
        return list(value) if element is None else [_of(element, x) for x in value]

    return copied


def _map_copier(item: Copy | None) -> Copy:
    def copied(value: Any) -> Any:
        if type(value) is not dict:
            return copy.deepcopy(value)
        return dict(value) if item is None else {k: _of(item, x) for k, x in value.items()}

    return copied


def _struct_copier(parts: list[Copy | None]) -> Copy | None:
    if not any(parts):
        return None

    def copied(value: Any) -> Any:
        if not isinstance(value, tuple) or len(value) != len(parts):
            return copy.deepcopy(value)
        values = [x if p is None else _of(p, x) for p, x in zip(parts, value, strict=True)]
        made: Any = tuple.__new__(type(value), values)
        if hasattr(value, "__dict__"):
            made.__dict__.update(value.__dict__)
        return made

    return copied


def _of(copied: Copy, value: Any) -> Any:
    return None if value is None else copied(value)
