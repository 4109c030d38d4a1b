"""How a state lies in its files, and as a table: from one to the other and back.

A layout is a value: a change of the schema gives another one. Rows in the form of files are those
of a base (PROTOCOL.md section 4) but for their order, which `ordered` gives them at last. It must
never guess a value: what a table does not tell is refused before.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkckpt.editing.columns import FieldChange
from sparkckpt.editing.types import SparkType
from sparkckpt.errors import DuplicateKeysError, EditedRowsError, UneditableStateError
from sparkckpt.format import StateFamily
from sparkckpt.format.resolve import APPEND, PUT, Rows
from sparkckpt.tables.identity import grouped, whole
from sparkckpt.tables.keys import described, key_groups_of
from sparkckpt.tables.shapes import INDEX, MAP, Column, Path, Variable, shape_of
from sparkckpt.tables.table import StateTable
from sparkckpt.tables.unsaferow import decode_rows

STRUCT = "struct"
"""How a side is encoded that is no bytes of Spark's own."""
_PLACEHOLDERS = ("__dummy__", "__empty__", "dummy")


@dataclass(frozen=True)
class Layout:
    """Column family and table of one state."""

    family: StateFamily
    key: pa.StructType
    value: pa.StructType
    table: StateTable
    variables: tuple[Variable, ...]

    def __str__(self) -> str:
        return f"the state {self.table.name.name!r} of operator {self.family.operator_id}"

    @classmethod
    def of(
        cls,
        family: StateFamily,
        key: pa.StructType,
        value: pa.StructType,
        table: StateTable,
        variables: Sequence[Variable],
    ) -> "Layout":
        shape = shape_of(
            table.operator.operator_name,
            table.name,
            key,
            value,
            multi_valued=family.multi_valued,
            confs=table.snapshot.confs,
            map_indexes=[variable.name for variable in variables if variable.kind == MAP],
        )
        plain = replace(table, shape=shape, with_key_group=False)
        return cls(family, key, value, plain, tuple(variables))

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns of the table."""
        return self.table.project(self.empty).schema

    @property
    def empty(self) -> pa.Table:
        """No rows, in the form of files."""
        kinds = [("kg", pa.uint16()), ("op", pa.int8()), ("key", self.key), ("value", self.value)]
        return pa.schema(kinds).empty_table()

    @property
    def file_schema(self) -> pa.Schema:
        """The columns of the files: a side that Arrow cannot hold is bytes there."""
        sides = {"key": self.family.key_encoding, "value": self.family.value_encoding}
        kinds = [
            (field.name, pa.binary() if sides.get(field.name, STRUCT) != STRUCT else field.type)
            for field in self.empty.schema
        ]
        return pa.schema(kinds)

    def typed(self, rows: pa.Table) -> pa.Table:
        """The rows with values for bytes."""
        schemas = {"key": self.family.key_schema, "value": self.family.value_schema}
        for index, field in enumerate(self.file_schema):
            if field.type != self.empty.schema.field(index).type:
                decoded = decode_rows(whole(rows[field.name]), schemas[field.name], str(self))
                rows = rows.set_column(index, field.name, decoded)
        return rows

    @property
    def columns(self) -> dict[str, Column]:
        return {column.name: column for column in self.table.shape.columns}

    @property
    def is_struct(self) -> bool:
        """Whether files hold both sides as they are, and not as bytes."""
        return self.family.key_encoding == self.family.value_encoding == STRUCT

    def json_of(self, side: str) -> SparkType:
        text = self.family.key_schema if side == "key" else self.family.value_schema
        return json.loads(text)

    def changed(self, change: FieldChange) -> "Layout":
        """The layout after a change of the schema."""
        schema = json.dumps(change.of_json(self.json_of(change.side)), separators=(",", ":"))
        empty: pa.Array = pa.array([], self.key if change.side == "key" else self.value)
        kind = change.of_array(empty).type
        if change.side == "key":
            family = replace(self.family, key_schema=schema)
            return Layout.of(family, kind, self.value, self.table, self.variables)
        family = replace(self.family, value_schema=schema)
        return Layout.of(family, self.key, kind, self.table, self.variables)

    def refuse_if_unwritable(self, what: str) -> None:
        """An error unless the columns of the table say all that is in files."""
        instead = "Its rows can be filtered, or the operator's state be dropped."
        if not self.is_struct:
            why = "it has a type that Arrow cannot hold as Spark does"
            raise UneditableStateError(str(self), what, why, instead)
        paths = {column.path for column in self.table.shape.columns}
        for path, field in self._leaves():
            if path not in paths and field.name not in _PLACEHOLDERS:
                why = f"it repeats {field.name} within a row"
                raise UneditableStateError(str(self), what, why, instead)

    def conform(self, rows: pa.Table) -> pa.Table:
        """Rows that somebody has made, with the columns and types of the table."""
        optional = {INDEX} if self.table.shape.numbered else set()
        optional |= {column.name for column in self.table.shape.columns if column.unset is not None}
        if self._exists:
            optional.add(self._exists)
        found, wanted = set(rows.column_names), set(self.schema.names)
        if len(found) != rows.num_columns:
            raise self._misfit("a column occurs twice")
        if missing := sorted(wanted - found - optional):
            raise self._misfit(f"there is no column {', '.join(missing)}")
        if unknown := sorted(found - wanted):
            raise self._misfit(f"there is no such column as {', '.join(map(repr, unknown))}")
        columns = []
        for field in self.schema:
            if field.name not in found:
                columns.append(self._left_out(field, rows.num_rows))
                continue
            try:
                columns.append(whole(rows[field.name]).cast(field.type))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                kind = rows[field.name].type
                raise self._misfit(f"{field.name} is {kind}: {error}") from error
        return pa.table(columns, schema=self.schema)

    def to_rows(self, table: pa.Table) -> pa.Table:
        """Rows of files, of a table that conforms."""
        table = table.combine_chunks()
        sides = {
            side: self._side(kind, (side,), table)
            for side, kind in (("key", self.key), ("value", self.value))
        }
        grouping = [whole(table[column.name]) for column in self.table.shape.grouping]
        groups = self._key_groups(grouping, table.num_rows)
        ops = np.full(table.num_rows, PUT, np.int8)
        rows = pa.table([groups, ops, sides["key"], sides["value"]], schema=self.empty.schema)
        return self.ordered(rows, whole(table[INDEX])) if self.table.shape.numbered else rows

    def with_own_key_groups(self, rows: pa.Table) -> pa.Table:
        """The same rows in the key groups that their keys belong to."""
        projected = self.table.project(self.typed(rows))
        grouping = [whole(projected[column.name]) for column in self.table.shape.grouping]
        return rows.set_column(0, rows.schema.field(0), self._key_groups(grouping, rows.num_rows))

    def checked(self, rows: pa.Table) -> pa.Table:
        """The same rows; an error if their keys are not hashed by their values. Spark can hash text
        by a collation that the schema of the state does not tell."""
        present = rows.filter(rows["value"].is_valid()) if self.table.shape.numbered else rows
        if not self.with_own_key_groups(present)["kg"].equals(present["kg"]):
            why = "its keys are not in the key groups of their values, as of text with a collation"
            instead = "Its rows can be filtered or dropped, and its schema be changed."
            raise UneditableStateError(str(self), "Changing rows", why, instead)
        return rows

    def ordered(self, rows: pa.Table, places: pa.Array | None = None) -> pa.Table:
        """All rows of some key groups in the form of a base; each key may occur only as often as
        it can. `places` are those of the rows in the lists of their keys, if not their order."""
        rows = rows.combine_chunks()
        if rows.num_rows == 0:
            return rows
        table, names = grouped([whole(rows["kg"]), whole(rows["key"])], rows.num_rows)
        keys = table.group_by(names, use_threads=False).aggregate([("row", "list")])["row_list"]
        lists = whole(keys)
        numbers = lists.flatten().to_numpy()
        key_of = np.repeat(np.arange(len(lists)), np.diff(lists.offsets.to_numpy()))
        if not self.table.shape.numbered:
            if len(lists) < rows.num_rows:
                raise self._duplicates(rows, numbers, key_of)
            return rows.take(np.argsort(rows["kg"].to_numpy(), kind="stable"))
        place = np.arange(len(numbers)) if places is None else places.to_numpy()[numbers]
        groups = rows["kg"].to_numpy()[numbers]
        order = np.lexsort((place, key_of, groups))
        firsts = np.diff(key_of[order], prepend=-1) != 0
        ops = pa.array(np.where(firsts, PUT, APPEND).astype(np.int8))
        return rows.take(numbers[order]).set_column(1, rows.schema.field(1), ops)

    def _key_groups(self, grouping: Sequence[pa.Array], rows: int) -> pa.Array:
        keys = grouping if self.table.operator.keyed else []
        groups = key_groups_of(keys, rows, self.family.max_parallelism)
        return pa.array(groups.astype(np.uint16), pa.uint16())

    @property
    def _exists(self) -> str | None:
        """The column that says whether a group has state."""
        if self.table.shape.presence is None:
            return None
        return str(self.schema.names[-1])

    def _left_out(self, field: pa.Field, rows: int) -> pa.Array:
        if field.name == self._exists:
            return pa.repeat(pa.scalar(True), rows)
        if field.name == INDEX and self.table.shape.numbered:
            return pa.array(np.arange(rows), field.type)
        return pa.nulls(rows, field.type)

    def _side(self, kind: pa.DataType, path: Path, table: pa.Table) -> pa.Array:
        for column in self.table.shape.columns:
            if column.path == path:
                return _stored(column, whole(table[column.name]), kind)
        if not pa.types.is_struct(kind):
            return pa.nulls(table.num_rows, kind)
        children = [
            self._side(field.type, (*path, index), table) for index, field in enumerate(kind)
        ]
        mask = None
        if path == self.table.shape.presence:
            mask = pc.invert(pc.fill_null(whole(table[self._exists]), False))
        return pa.StructArray.from_arrays(children, fields=list(kind), mask=mask)

    def _leaves(self) -> list[tuple[Path, pa.Field]]:
        paths = {column.path for column in self.table.shape.columns}
        found: list[tuple[Path, pa.Field]] = []

        def visit(kind: pa.StructType, path: Path) -> None:
            for index, field in enumerate(kind):
                here = (*path, index)
                if here not in paths and pa.types.is_struct(field.type):
                    visit(field.type, here)
                else:
                    found.append((here, field))

        visit(self.key, ("key",))
        visit(self.value, ("value",))
        return found

    def _misfit(self, why: str) -> EditedRowsError:
        return EditedRowsError(str(self), why, described(self.schema))

    def _duplicates(self, rows: pa.Table, numbers: Rows, key_of: Rows) -> DuplicateKeysError:
        counts = np.bincount(key_of)
        twice = numbers[np.flatnonzero(counts[key_of] > 1)[0]]
        key = rows["key"][int(twice)].as_py()
        return DuplicateKeysError(str(self), repr(key))


def _stored(column: Column, values: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values of a column as files have them."""
    if column.time is None:
        return values
    numbers = values.cast(pa.timestamp(column.time, "UTC")).cast(pa.int64())
    if column.unset is not None:
        numbers = pc.fill_null(numbers, column.unset)
    return numbers.cast(kind)
