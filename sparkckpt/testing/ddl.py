"""Schemas from DDL strings without Spark, whose own parser is in the JVM.

It knows the types that can travel in-band. In a query the strings are parsed by Spark.
"""

import re
from collections.abc import Callable

from pyspark.sql import types as T

_TOKEN = re.compile(r"\s*(`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|[\w.]+|[<>(),:])")
_SIMPLE: dict[str, Callable[[], T.DataType]] = {
    "boolean": T.BooleanType,
    "tinyint": T.ByteType,
    "byte": T.ByteType,
    "smallint": T.ShortType,
    "short": T.ShortType,
    "int": T.IntegerType,
    "integer": T.IntegerType,
    "bigint": T.LongType,
    "long": T.LongType,
    "float": T.FloatType,
    "real": T.FloatType,
    "double": T.DoubleType,
    "string": T.StringType,
    "binary": T.BinaryType,
    "date": T.DateType,
    "timestamp": T.TimestampType,
    "timestamp_ltz": T.TimestampType,
    "timestamp_ntz": T.TimestampNTZType,
}


def parse_schema(schema: T.StructType | str) -> T.StructType:
    """ValueError says where a string is not understood."""
    if isinstance(schema, T.StructType):
        return schema
    parser = _Parser(schema)
    fields = parser.fields(end=None)
    return T.StructType(fields)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = _TOKEN.findall(text)
        if "".join(text.split()) != "".join("".join(self._tokens).split()):
            raise self._wrong("has an unknown character")
        self._at = 0

    def fields(self, end: str | None) -> list[T.StructField]:
        fields: list[T.StructField] = []
        while self._peek() != end:
            if fields:
                self._take(",")
            fields.append(self._field())
        return fields

    def _field(self) -> T.StructField:
        name = self._next()
        if name.startswith("`"):
            name = name[1:-1].replace("``", "`")
        if self._peek() == ":":
            self._next()
        kind = self._type()
        nullable = True
        if (self._peek() or "").lower() == "not":
            self._next()
            self._take("null")
            nullable = False
        if (self._peek() or "").lower() == "comment":
            self._next()
            self._next()
        return T.StructField(name, kind, nullable)

    def _type(self) -> T.DataType:
        name = self._next().lower()
        if name in _SIMPLE:
            kind = _SIMPLE[name]()
            if name == "string" and (self._peek() or "").lower() == "collate":
                self._next()
                return T.StringType(self._next())
            return kind
        if name in ("decimal", "dec", "numeric"):
            return T.DecimalType(*self._numbers()) if self._peek() == "(" else T.DecimalType()
        if name in ("char", "character", "varchar"):
            (length,) = self._numbers()
            return T.VarcharType(length) if name == "varchar" else T.CharType(length)
        return self._nested(name)

    def _nested(self, name: str) -> T.DataType:
        if name not in ("array", "map", "struct"):
            raise self._wrong(f"has an unknown type {name!r}")
        self._take("<")
        if name == "array":
            kind: T.DataType = T.ArrayType(self._type())
        elif name == "map":
            key = self._type()
            self._take(",")
            kind = T.MapType(key, self._type())
        else:
            kind = T.StructType(self.fields(end=">"))
        self._take(">")
        return kind

    def _numbers(self) -> list[int]:
        self._take("(")
        numbers = [int(self._next())]
        while self._peek() == ",":
            self._next()
            numbers.append(int(self._next()))
        self._take(")")
        return numbers

    def _peek(self) -> str | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _next(self) -> str:
        token = self._peek()
        if token is None:
            raise self._wrong("ends too early")
        self._at += 1
        return str(token)

    def _take(self, expected: str) -> None:
        token = self._next()
        if token.lower() != expected:
            raise self._wrong(f"has {token!r} where {expected!r} is expected")

    def _wrong(self, why: str) -> ValueError:
        return ValueError(f"The schema {self._text!r} {why}.")
