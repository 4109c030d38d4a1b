"""Which types can travel in-band, and schemas from what users give."""

from typing import TYPE_CHECKING

from pyspark.sql import types as T

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ATOMIC = (
    T.BooleanType,
    T.ByteType,
    T.ShortType,
    T.IntegerType,
    T.LongType,
    T.FloatType,
    T.DoubleType,
    T.DecimalType,
    T.StringType,
    T.CharType,
    T.VarcharType,
    T.BinaryType,
    T.DateType,
    T.TimestampType,
    T.TimestampNTZType,
    T.DayTimeIntervalType,
)


def unsupported(kind: T.DataType) -> T.DataType | None:
    """The first type in it that cannot travel in-band."""
    if isinstance(kind, T.StructType):
        return _first([field.dataType for field in kind.fields])
    if isinstance(kind, T.ArrayType):
        return unsupported(kind.elementType)
    if isinstance(kind, T.MapType):
        return _first([kind.keyType, kind.valueType])
    return None if isinstance(kind, _ATOMIC) else kind


def _first(kinds: list[T.DataType]) -> T.DataType | None:
    return next((found for found in map(unsupported, kinds) if found is not None), None)


def why_not(**schemas: T.StructType) -> str | None:
    """Why these cannot travel in-band, None if they can."""
    for name, schema in schemas.items():
        if not schema.fields:
            return f"its {name} schema has no fields"
        found = unsupported(schema)
        if found is not None:
            return f"its {name} has type {found.simpleString()}, which cannot travel in-band"
    return None


def parsed(schema: T.StructType | str, session: "SparkSession") -> T.StructType:
    if isinstance(schema, str):
        parsed = session._parse_ddl(schema)
        assert isinstance(parsed, T.StructType)
        return parsed
    return schema
