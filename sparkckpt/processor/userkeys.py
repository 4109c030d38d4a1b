"""What stands for a key in a dict of Python: equal where the bytes of the keys are, as in a store.

Python says otherwise of some numbers: NaN is not equal to itself, and -0.0 is equal to 0.0.
"""

import math
from collections.abc import Callable
from typing import Any

from pyspark.sql import types as T

_NAN = ("NaN",)
_NEGATIVE_ZERO = ("-0.0",)


def stand_in(schema: T.StructType) -> Callable[[Any], Any]:
    """The function that makes it of a key of this schema."""
    return exact if _has_fractions(schema) else _hashable


def exact(value: Any) -> Any:
    if isinstance(value, float):
        if math.isnan(value):
            return _NAN
        return _NEGATIVE_ZERO if value == 0 and math.copysign(1, value) < 0 else value
    if isinstance(value, dict):
        return tuple((exact(k), exact(v)) for k, v in value.items())
    if isinstance(value, (tuple, list)):
        return tuple(map(exact, value))
    return bytes(value) if isinstance(value, bytearray) else value


def _hashable(value: Any) -> Any:
    """Bytes, lists and maps in a key cannot be hashed as they are."""
    try:
        hash(value)
    except TypeError:
        return exact(value)
    return value


def _has_fractions(kind: T.DataType) -> bool:
    if isinstance(kind, T.StructType):
        return any(_has_fractions(field.dataType) for field in kind.fields)
    if isinstance(kind, T.ArrayType):
        return _has_fractions(kind.elementType)
    if isinstance(kind, T.MapType):
        return _has_fractions(kind.keyType) or _has_fractions(kind.valueType)
    return isinstance(kind, (T.FloatType, T.DoubleType))
