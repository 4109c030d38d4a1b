"""Values of tables as people and as programs want to read them.

What a number means is told by the name of its column: `bytes` or `..._bytes`, `..._ms`.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pyarrow as pa

_NOTHING = "-"
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


def text_of(column: str, value: object) -> str:
    """For people: sizes and times in units, and nothing as a dash."""
    match value:
        case None:
            return _NOTHING
        case bool():
            return "yes" if value else "no"
        case int() if column == "bytes" or column.endswith("_bytes"):
            return size_text(value)
        case int() if column.endswith("_ms"):
            return duration_text(value)
        case datetime():
            return f"{value:%Y-%m-%d %H:%M:%S}"
        case list() | tuple():
            return ", ".join(text_of("", item) for item in value) or _NOTHING
    return str(value)


def size_text(size: int) -> str:
    if size < 1024:
        return f"{size} B"
    scaled, units = float(size), iter(_UNITS)
    unit = ""
    while scaled >= 1024 and (larger := next(units, None)):
        scaled, unit = scaled / 1024, larger
    return f"{scaled:.1f} {unit}"


def duration_text(milliseconds: int) -> str:
    if milliseconds < 1000:
        return f"{milliseconds} ms"
    seconds = milliseconds / 1000
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds) // 60} min {int(seconds) % 60} s"


def heading_of(column: str) -> str:
    """The name of a column without what its values say already."""
    return column.removesuffix("_ms").removesuffix("_bytes").removesuffix("_id").replace("_", " ")


def with_ranges(table: pa.Table) -> pa.Table:
    """One column `xs` in place of each two, `first_x` and `last_x`."""
    for first in [name for name in table.column_names if name.startswith("first_")]:
        last = first.replace("first_", "last_", 1)
        pairs = zip(table[first].to_pylist(), table[last].to_pylist(), strict=True)
        ranges = [None if a is None else str(a) if a == b else f"{a} to {b}" for a, b in pairs]
        name = first.removeprefix("first_") + "s"
        at = table.schema.get_field_index(first)
        table = table.set_column(at, name, pa.array(ranges, pa.string())).drop_columns(last)
    return table


def json_of(value: Any) -> Any:
    """For programs: raw numbers, times in ISO 8601."""
    match value:
        case datetime():
            return value.isoformat()
        case Mapping():
            return {name: json_of(item) for name, item in value.items()}
        case pa.Table():
            return json_of(value.to_pylist())
        case list() | tuple():
            return [json_of(item) for item in value]
    return value
