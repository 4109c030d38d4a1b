"""Which types can travel in-band, and schemas from what users give."""

from typing import TYPE_CHECKING, Any

from pyspark.sql import types as T

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.group import GroupedData

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


def keys_of(grouped: "GroupedData") -> T.StructType:
    return T.StructType(grouped.count().schema.fields[:-1])


def why_not_keyed(grouped: "GroupedData") -> str | None:
    """Why these keys cannot be told apart in-band, None if they can.

    In-band, rows that compare equal are one key; in a state store, only the same bytes are. Spark
    refuses such keys for operators other than transformWithState.
    """
    session: Any = grouped.session
    keys = keys_of(grouped)
    utils = session._jvm.org.apache.spark.sql.catalyst.util.UnsafeRowUtils
    for field in keys.fields:
        schema = T.StructType([field]).json()
        if not utils.isBinaryStable(session._jsparkSession.parseDataType(schema)):
            return f"its key {field.name} has a collation other than UTF8_BINARY"
    return None


def parsed(schema: T.StructType | str, session: "SparkSession") -> T.StructType:
    if isinstance(schema, str):
        parsed = session._parse_ddl(schema)
        assert isinstance(parsed, T.StructType)
        return parsed
    return schema
