"""What is done to the rows of a state, one step after the other.

A step takes rows in the form of files, some key groups at a time, and gives others; so state of any
size passes through. Steps know nothing of where rows come from or go to.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from threading import Event
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkckpt.editing.columns import FieldChange
from sparkckpt.editing.layout import Layout
from sparkckpt.errors import EditedRowsError
from sparkckpt.tables.identity import whole
from sparkckpt.tables.keys import described

Predicate: TypeAlias = pc.Expression | Callable[[pa.Table], Any]
Transform: TypeAlias = Callable[[pa.Table], Any]

_ROW = "__row"


class Step(Protocol):
    """One thing that is done to rows."""

    def apply(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]: ...


@dataclass(frozen=True)
class Filter:
    layout: Layout
    predicate: Predicate

    def apply(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        for rows in tables:
            if self.layout.table.shape.numbered:
                rows = rows.filter(rows["value"].is_valid())
            kept = rows.take(self._kept(self.layout.table.project(self.layout.typed(rows))))
            yield self.layout.ordered(kept) if self.layout.table.shape.numbered else kept

    def _kept(self, table: pa.Table) -> pa.Array:
        numbers = np.arange(table.num_rows)
        if isinstance(self.predicate, pc.Expression):
            numbered = table.append_column(_ROW, pa.array(numbers))
            try:
                return whole(numbered.filter(self.predicate)[_ROW])
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise self._no_mask(str(error).splitlines()[0]) from error
        mask = self.predicate(table)
        try:
            array = whole(pa.chunked_array(mask) if isinstance(mask, list) else _array(mask))
        except (pa.ArrowInvalid, pa.ArrowTypeError, TypeError) as error:
            raise self._no_mask(str(error).splitlines()[0]) from error
        if len(array) != table.num_rows or not pa.types.is_boolean(array.type):
            raise self._no_mask(f"it gave {len(array)} values of the type {array.type}")
        return pa.array(numbers).filter(array)

    def _no_mask(self, why: str) -> EditedRowsError:
        text = f"the filter has to say true or false of each row; {why}"
        return EditedRowsError(str(self.layout), text, described(self.layout.schema))


@dataclass(frozen=True)
class Rewrite:
    """Rows become what a function makes of them."""

    layout: Layout
    function: Transform

    def apply(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        for rows in tables:
            made = self.function(self.layout.table.project(rows))
            yield self.layout.to_rows(self.layout.conform(_table(made, self.layout)))


@dataclass(frozen=True)
class Change:
    """A change of the schema; `after` is the layout that it leads to."""

    after: Layout
    change: FieldChange

    def apply(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        side = self.change.side
        for rows in tables:
            index = rows.schema.get_field_index(side)
            try:
                values = self.change.of_array(whole(rows[side]))
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                schema = described(self.after.schema)
                raise EditedRowsError(str(self.after), str(error), schema) from error
            rows = rows.set_column(index, side, values)
            yield self.after.with_own_key_groups(rows) if side == "key" else rows


@dataclass(frozen=True)
class Replace:
    """Other rows take the place of all."""

    layout: Layout
    data: Any
    _read: Event = field(default_factory=Event, repr=False, compare=False)

    def apply(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        if isinstance(self.data, pa.RecordBatchReader) and self._read.is_set():
            # It would have no rows any more, and so would the state.
            why = "the stream was read when they were written before; give another one"
            raise EditedRowsError(str(self.layout), why, described(self.layout.schema))
        self._read.set()
        batches = tables_of(self.data, self.layout)
        if self.layout.table.shape.numbered:
            # The places of a list's items may be spread over all batches.
            batches = iter([pa.concat_tables([self.layout.conform(table) for table in batches])])
        for table in batches:
            yield self.layout.to_rows(self.layout.conform(table))


@dataclass(frozen=True)
class Empty:
    """No rows at all."""

    layout: Layout

    def apply(self, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
        yield self.layout.file_schema.empty_table()


def keeps_keys(steps: Iterable[Step]) -> bool:
    """Whether each row stays where it is, with the others of its key."""
    return all(isinstance(step, Change) and step.change.side == "value" for step in steps)


def moves_keys(steps: Iterable[Step]) -> bool:
    """Whether key groups are worked out anew."""
    return any(
        isinstance(step, Rewrite | Replace)
        or (isinstance(step, Change) and step.change.side == "key")
        for step in steps
    )


def run(steps: Iterable[Step], tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    rows = iter(tables)
    for step in steps:
        rows = step.apply(rows)
    return rows


def tables_of(data: Any, layout: Layout) -> Iterator[pa.Table]:
    """The tables that some data consists of: at least one, which may have no rows."""
    if isinstance(data, pa.RecordBatchReader):
        yield data.schema.empty_table()
        for batch in data:
            yield pa.table(batch)
        return
    yield _table(data, layout)


def _table(data: Any, layout: Layout) -> pa.Table:
    if isinstance(data, pa.Table):
        return data
    try:
        if isinstance(data, pa.RecordBatch):
            return pa.Table.from_batches([data])
        if hasattr(data, "toArrow"):
            made: pa.Table = data.toArrow()
            return made
        if hasattr(data, "__arrow_c_stream__") and not hasattr(data, "iloc"):
            return pa.table(data)
        if hasattr(data, "iloc"):
            return pa.Table.from_pandas(data, preserve_index=False).replace_schema_metadata(None)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise EditedRowsError(str(layout), str(error), described(layout.schema)) from error
    why = f"{type(data).__name__} is no Arrow table, pandas or Spark DataFrame"
    raise EditedRowsError(str(layout), why, described(layout.schema))


def _array(mask: Any) -> pa.ChunkedArray | pa.Array:
    return mask if isinstance(mask, pa.ChunkedArray | pa.Array) else pa.array(mask)
