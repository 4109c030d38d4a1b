"""Types of columns: as a person names them, as Spark writes them in JSON, and as Arrow has them.

Only types that state files hold as structs (PROTOCOL.md section 4) are known here; of any other
type a state cannot be edited. Pure functions.
"""

import re
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from sparkckpt.errors import UnknownTypeError

SparkType = Any
"""A type as in Spark's JSON: a name, or an object for a nested one."""

_ARROW: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "integer": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_SQL_NAMES = {
    "tinyint": "byte",
    "smallint": "short",
    "int": "integer",
    "bigint": "long",
    "bool": "boolean",
    "real": "float",
    "str": "string",
}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")
_WIDER = {
    "byte": ("short", "integer", "long", "float", "double"),
    "short": ("integer", "long", "float", "double"),
    "integer": ("long", "double"),
    "float": ("double",),
}


def spark_type(kind: object) -> SparkType:
    """The type that is meant by Spark's name, by a pyspark DataType or by an Arrow type."""
    if isinstance(kind, pa.DataType):
        return _of_arrow(kind)
    found: Any = kind
    if hasattr(kind, "jsonValue"):
        found = kind.jsonValue()
    elif isinstance(kind, str):
        name = kind.strip().lower()
        found = _SQL_NAMES.get(name, name)
    try:
        arrow_type(found)
    except UnknownTypeError:
        raise UnknownTypeError(kind) from None
    return found


def arrow_type(kind: SparkType) -> pa.DataType:
    """How state files hold it."""
    if isinstance(kind, str):
        if kind in _ARROW:
            return _ARROW[kind]
        if found := _DECIMAL.fullmatch(kind):
            return _decimal(int(found[1]), int(found[2]))
    elif isinstance(kind, Mapping):
        if kind.get("type") == "struct" and kind["fields"]:
            return pa.struct(
                [pa.field(field["name"], arrow_type(field["type"])) for field in kind["fields"]]
            )
        if kind.get("type") == "array":
            return pa.list_(arrow_type(kind["elementType"]))
        if kind.get("type") == "map":
            return pa.map_(arrow_type(kind["keyType"]), arrow_type(kind["valueType"]))
    raise UnknownTypeError(kind)


def field_of(name: str, kind: SparkType) -> dict[str, Any]:
    """A field of a struct, as in Spark's JSON."""
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


def is_wider(kind: SparkType, than: SparkType) -> bool:
    """Whether every value of the one type is one of the other, with nothing lost."""
    if isinstance(than, str) and kind in _WIDER.get(than, ()):
        return True
    pair = [_DECIMAL.fullmatch(one) if isinstance(one, str) else None for one in (kind, than)]
    if pair[0] is None or pair[1] is None or kind == than:
        return False
    (precision, scale), (old_precision, old_scale) = (map(int, one.groups()) for one in pair if one)
    return scale >= old_scale and precision - scale >= old_precision - old_scale


def _decimal(precision: int, scale: int) -> pa.DataType:
    if not (0 < precision <= 38 and 0 <= scale <= precision):
        raise UnknownTypeError(f"decimal({precision},{scale})")
    return pa.decimal128(precision, scale)


def _of_arrow(kind: pa.DataType) -> SparkType:
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    if pa.types.is_decimal(kind):
        name = f"decimal({kind.precision},{kind.scale})"
        arrow_type(name)
        return name
    if pa.types.is_struct(kind) and kind.num_fields:
        fields = [field_of(field.name, _of_arrow(field.type)) for field in kind]
        return {"type": "struct", "fields": fields}
    if pa.types.is_map(kind):
        return {
            "type": "map",
            "keyType": _of_arrow(kind.key_type),
            "valueType": _of_arrow(kind.item_type),
            "valueContainsNull": True,
        }
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = _of_arrow(kind.value_type)
        return {"type": "array", "elementType": element, "containsNull": True}
    plain = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}.get(kind, kind)
    for name, arrow in _ARROW.items():
        if arrow == plain:
            return name
    raise UnknownTypeError(kind)
