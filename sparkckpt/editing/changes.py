"""Changes of a state's columns, as a person asks for them: which are possible, and what each does.

A schema must be one that the query, as it will be, declares: Spark compares them by the order of
the columns and their types when the query starts.
"""

from abc import ABC, abstractmethod
from typing import Any, TypeVar

import pyarrow as pa

from sparkckpt.editing.columns import FieldChange, added, dropped, field_at, renamed, widened
from sparkckpt.editing.layout import STRUCT, Layout
from sparkckpt.editing.types import arrow_type, is_wider, spark_type
from sparkckpt.errors import SchemaChangeError
from sparkckpt.tables.keys import described
from sparkckpt.tables.shapes import INDEX, INTERNAL, ROWS, TIMER, Column

_KEY_ALONE = ("applyInPandasWithState", "flatMapGroupsWithState")
"""Operators that have their key in one column family only."""
_GROUP_STATE = "groupState"

Self = TypeVar("Self", bound="ColumnChanges")


class ColumnChanges(ABC):
    """The methods of a state's editor that change columns."""

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """How the state lies at the moment."""

    @abstractmethod
    def _change(self: Self, change: FieldChange, after: Layout) -> Self:
        """Notes a change that leads to a layout."""

    def add_column(
        self: Self, name: str, kind: object, default: Any = None, *, after: str | None = None
    ) -> Self:
        """Adds a column to the value, with a default in all rows: the last one, or that after
        another."""
        layout = self.layout
        if name in layout.schema.names:
            raise self._error(name, "there is a column of that name already")
        spark = spark_type(kind)
        try:
            pa.scalar(default, arrow_type(spark))
        except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError, ValueError, OverflowError) as error:
            raise self._error(name, f"{default!r} is no default for it ({error})") from error
        if after is not None:
            before = self._column(after)
        else:
            values = [
                c for c in layout.table.shape.columns if c.path[0] == "value" and c.time is None
            ]
            if not values:
                raise self._error(name, "the state has no value that could have a column more")
            before = values[-1]
        self._refuse_if_fixed(name, before)
        side, *parent, position = before.path
        indices = tuple(map(int, parent))
        return self._apply(added(str(side), indices, int(position) + 1, name, spark, default))

    def drop_column(self: Self, name: str) -> Self:
        """Drops a column and its values."""
        column = self._column(name)
        self._refuse_if_fixed(name, column)
        others = [c for c in self.layout.table.shape.columns if c.path[:-1] == column.path[:-1]]
        if len(others) == 1:
            raise self._error(name, "it is the only one")
        return self._apply(dropped(column.path))

    def rename_column(self: Self, name: str, new_name: str) -> Self:
        """Gives a column another name."""
        column = self._column(name)
        self._refuse_if_fixed(name, column)
        if new_name in self.layout.schema.names:
            raise self._error(name, f"there is a column {new_name!r} already")
        return self._apply(renamed(column.path, self._field(column), new_name))

    def widen_column(self: Self, name: str, kind: object) -> Self:
        """Gives a column a type that has all values of its own: a long for an int, a double for a
        float, a decimal with more digits."""
        column = self._column(name)
        self._refuse_if_fixed(name, column)
        spark, field = spark_type(kind), self._field(column)
        if not is_wider(spark, field["type"]):
            raise self._error(
                name,
                f"not every {_named(field['type'])} is a {_named(spark)} (to change values, add a "
                "column, fill it with `transform`, and drop this one)",
            )
        return self._apply(widened(column.path, field, spark))

    def _apply(self: Self, change: FieldChange) -> Self:
        return self._change(change, self.layout.changed(change))

    def _column(self, name: str) -> Column:
        columns = self.layout.columns
        if name not in columns:
            what = "it is computed" if name in self.layout.schema.names else "there is none"
            raise self._error(name, what)
        return columns[name]

    def _field(self, column: Column) -> dict[str, Any]:
        side, *path = column.path
        return field_at(self.layout.json_of(str(side)), [int(index) for index in path])

    def _refuse_if_fixed(self, name: str, column: Column) -> None:
        layout = self.layout
        operator = layout.table.operator.operator_name
        encoding = layout.family.key_encoding, layout.family.value_encoding
        if encoding[column.path[0] != "key"] != STRUCT:
            raise self._error(name, "the state has a type that Arrow cannot hold as Spark does")
        if column.path[0] == "key" and operator not in _KEY_ALONE:
            why = f"the columns of a key are fixed for {operator}: other state has the same key"
            raise self._error(name, why)
        is_fixed = column.time is not None or name == INDEX
        if is_fixed or layout.table.name.kind in (ROWS, INTERNAL, TIMER):
            raise self._error(name, "its form is Spark's own")
        if column.path[0] == "value" and operator in _KEY_ALONE and len(column.path) < 3:
            raise self._error(name, "the state of a group is no struct with columns")

    def _error(self, column: str, why: str) -> SchemaChangeError:
        layout = self.layout
        return SchemaChangeError(str(layout), column, why, described(layout.schema))


def _named(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind["type"])
