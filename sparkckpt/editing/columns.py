"""Changes of a state's schema: one field of a struct that is added, dropped, renamed or widened.

A change applies alike to Spark's schema in JSON and to the struct that a state file holds. Fields
are found by position, as names may occur twice. Pure functions; whether a change is allowed is for
others to say.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from sparkckpt.editing.types import SparkType, arrow_type, field_of

Children = list[tuple[pa.Field, pa.Array]]


@dataclass(frozen=True)
class FieldChange:
    """One field of the struct at `parent`, a path below the side `side`."""

    side: str
    parent: tuple[int, ...]
    position: int
    field: dict[str, Any] | None
    """What the field is to be, as in Spark's JSON; None: it goes."""
    is_new: bool = False
    default: Any = None
    is_retyped: bool = False

    def of_json(self, schema: SparkType) -> SparkType:
        """The schema of the side, changed."""
        return _json_at(schema, self.parent, self._fields)

    def of_array(self, values: pa.Array) -> pa.Array:
        """The values of the side, changed."""
        return _array_at(values, self.parent, self._children)

    def _fields(self, fields: list[dict[str, Any]]) -> list[dict[str, Any]]:
        before, after = self._around(fields)
        return [*before, *([] if self.field is None else [self.field]), *after]

    def _children(self, children: Children, rows: int) -> Children:
        before, after = self._around(children)
        if self.field is None:
            return [*before, *after]
        name = self.field["name"]
        if self.is_new:
            kind = arrow_type(self.field["type"])
            value = pa.array([self.default], kind).take(pa.array([0] * rows, pa.int64()))
        else:
            value = children[self.position][1]
            kind = arrow_type(self.field["type"]) if self.is_retyped else value.type
            value = value.cast(kind)
        return [*before, (pa.field(name, kind), value), *after]

    def _around(self, items: list[Any]) -> tuple[list[Any], list[Any]]:
        return items[: self.position], items[self.position + (not self.is_new) :]


def added(
    side: str, parent: tuple[int, ...], position: int, name: str, kind: SparkType, default: Any
) -> FieldChange:
    return FieldChange(side, parent, position, field_of(name, kind), True, default)


def dropped(path: Sequence[str | int]) -> FieldChange:
    side, parent, position = _split(path)
    return FieldChange(side, parent, position, None)


def renamed(path: Sequence[str | int], field: dict[str, Any], name: str) -> FieldChange:
    side, parent, position = _split(path)
    return FieldChange(side, parent, position, {**field, "name": name})


def widened(path: Sequence[str | int], field: dict[str, Any], kind: SparkType) -> FieldChange:
    side, parent, position = _split(path)
    return FieldChange(side, parent, position, {**field, "type": kind}, is_retyped=True)


def field_at(schema: SparkType, path: Sequence[int]) -> dict[str, Any]:
    """The field at a path in a schema, as JSON."""
    fields = schema["fields"]
    for index in path[:-1]:
        fields = fields[index]["type"]["fields"]
    found: dict[str, Any] = fields[path[-1]]
    return found


def _split(path: Sequence[str | int]) -> tuple[str, tuple[int, ...], int]:
    side, *positions = path
    *parent, position = map(int, positions)
    return str(side), tuple(parent), position


def _json_at(
    schema: SparkType,
    path: tuple[int, ...],
    change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]],
) -> SparkType:
    fields = list(schema["fields"])
    if not path:
        return {**schema, "fields": change(fields)}
    field = fields[path[0]]
    fields[path[0]] = {**field, "type": _json_at(field["type"], path[1:], change)}
    return {**schema, "fields": fields}


def _array_at(
    values: pa.Array, path: tuple[int, ...], change: Callable[[Children, int], Children]
) -> pa.Array:
    children: Children = list(zip(values.type, values.flatten(), strict=True))
    if path:
        field, child = children[path[0]]
        inner = _array_at(child, path[1:], change)
        children[path[0]] = (pa.field(field.name, inner.type), inner)
    else:
        children = change(children, len(values))
    return pa.StructArray.from_arrays(
        [array for _, array in children],
        fields=[field.with_nullable(True) for field, _ in children],
        mask=values.is_null(),
    )
