"""Every SQL type with values that are easy to get wrong, as SQL literals.

The streams of the type tests carry only numbers; a typed column picks a literal by number, so no
file format stands between a value and the state. On the way out a value becomes text that loses
nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf


@dataclass(frozen=True)
class SqlType:
    """A type: its literals, how a value `{}` of it is shown, whether it can be a key, or null."""

    name: str
    literals: tuple[str, ...]
    shown: str = "cast({} as string)"
    key: bool = True
    nullable: bool = True

    def pick(self, number: str) -> Column:
        """The literal of this number, counted round and round; null once each round."""
        values = [*self.literals, "null"] if self.nullable else self.literals
        index = f"cast(pmod({number}, {len(values)}) + 1 as int)"
        return sf.expr(f"element_at(array({', '.join(values)}), {index})")

    def show(self, expression: str) -> Column:
        return sf.expr(self.shown.format(expression))

    def show_all(self, expression: str) -> Column:
        return sf.expr(f"transform({expression}, x -> {self.shown.format('x')})")


def of(name: str, *literals: str, **properties: Any) -> SqlType:
    return SqlType(name, literals, **properties)


LONG_TEXT = "concat(length({0}), ' ', left({0}, 8), ' ', sha2(cast({0} as binary), 256))"

NUMBERS = (
    of("boolean", "true", "false"),
    of("tinyint", "-128Y", "0Y", "127Y"),
    of("smallint", "-32768S", "0S", "32767S"),
    of("int", "cast(-2147483648 as int)", "0", "2147483647"),
    of("bigint", "-9223372036854775807L - 1L", "0L", "9223372036854775807L"),
    of("float", "float('NaN')", "-0.0F", "0.0F", "float('-Infinity')", "1.17549435E-38F"),
    of("double", "double('NaN')", "-0.0D", "0.0D", "double('Infinity')", "4.9E-324D"),
    of("decimal(5,2)", "999.99BD", "-0.01BD"),
    of(
        "decimal(18,0)", "999999999999999999BD", "-999999999999999999BD", "cast(0 as decimal(18,0))"
    ),
    of(
        "decimal(38,10)",
        "9999999999999999999999999999.9999999999BD",
        "cast(-1 as decimal(38,10))",
        "cast(0 as decimal(38,10))",
    ),
)

TIMES = (
    of("date", "date'0001-01-01'", "date'1970-01-01'", "date'9999-12-31'"),
    of(
        "timestamp",
        "timestamp'0001-01-01 00:00:00'",
        "timestamp'1969-12-31 23:59:59.999999'",
        "timestamp'9999-12-31 23:59:59.999999'",
    ),
    of(
        "timestamp_ntz",
        "timestamp_ntz'1582-10-10 00:00:00'",
        "timestamp_ntz'2024-02-29 12:00:00.1'",
    ),
    of("time", "time'00:00:00'", "time'23:59:59.999999'"),
    of(
        "year-month interval",
        "interval '-178956970-8' year to month",
        "interval '1-2' year to month",
    ),
    of("years", "interval '3' year", "interval '-3' year"),
    of(
        "day-time interval",
        "interval '106751991 04:00:54.775807' day to second",
        "interval '-0 00:00:00.000001' day to second",
    ),
    of("hours", "interval '30' hour", "interval '-1' hour"),
)

TEXTS = (
    of("string", "''", "'a'", "'ü€😀'", "repeat('long ', 209716)", "'nul\\0byte'", shown=LONG_TEXT),
    of("binary", "x''", "x'00FF80'", "cast(repeat('b', 70000) as binary)", shown="sha2({}, 256)"),
    of("char", "cast('a' as char(3))", "cast('abc' as char(3))"),
)

COLLATED_TEXTS = (
    of("UNICODE", "'Ä' collate UNICODE", "'ä'", "''", key=False),
    of("UTF8_LCASE", "'Straße' collate UTF8_LCASE", "'STRASSE'", "'straße'", key=False),
    of("UNICODE_CI", "'Ä' collate UNICODE_CI", "'ä'", "''", key=False),
    of("UTF8_BINARY_RTRIM", "'a ' collate UTF8_BINARY_RTRIM", "'a'", "' a'", key=False),
)
"""Spark takes no text as a key of state whose equality is not that of its bytes."""

NESTED = (
    of(
        "struct",
        "named_struct('a', 1, 'b', 'x')",
        "named_struct('a', 2, 'b', cast(null as string))",
        "named_struct('a', cast(null as int), 'b', cast(null as string))",
    ),
    of("array", "array(1, null, 3)", "array()", "array(cast(null as int))"),
    of(
        "struct in struct",
        "named_struct('d', 1.5D, 's', named_struct('day', date'2024-01-01', 'raw', x'01'))",
    ),
    of(
        "array of structs",
        "array(named_struct('k', 'k', 'v', array(1.25BD, null)), null)",
        "array(named_struct('k', cast(null as string), 'v', cast(array() as array<decimal(3,2)>)))",
    ),
)

POINT = "x'0101000000000000000000F03F0000000000000040'"
WKB = "hex(st_asbinary({}))"

VALUES_ONLY = (
    of("map", "map('a', 1, '', null)", "cast(map() as map<string, int>)", key=False),
    of("map in array", "array(map(1, array('x', null)), null)", "array()", key=False),
    of("map of structs", "map(struct(1 as k), struct('v' as v, null as n))", key=False),
    of("variant", "parse_json('{\"a\": [1, 2.5, null]}')", "parse_json('null')", key=False),
    of(
        "variant inside",
        "struct(parse_json('[true]') as v, 1 as i)",
        shown="to_json({})",
        key=False,
    ),
    of("void", key=False),
    of("geometry", f"st_geomfromwkb({POINT})", shown=WKB, key=False),
    of("geography", f"st_geogfromwkb({POINT})", shown=WKB, key=False),
    # Spark's validation of state rows takes a null interval for a broken row.
    of(
        "interval",
        "make_interval(1, -2, 3, 4, 5, 6, 7.5)",
        "make_interval(0, 0, 0, -1)",
        key=False,
        nullable=False,
    ),
)

GROUPS: Mapping[str, tuple[SqlType, ...]] = {
    "numbers": NUMBERS,
    "times": TIMES,
    "texts": TEXTS,
    "collated texts": COLLATED_TEXTS,
    "nested": NESTED,
    "values only": VALUES_ONLY,
}


def column_of(index: int) -> str:
    return f"c{index}"


def typed(df: DataFrame, types: tuple[SqlType, ...], number: str = "i") -> DataFrame:
    """One column c0, c1... per type, each counting its literals at its own pace."""
    columns = [
        sql_type.pick(f"{number} + {index}").alias(column_of(index))
        for index, sql_type in enumerate(types)
    ]
    return df.select("*", *columns)
