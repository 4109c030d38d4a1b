"""What has changed between two checkpoints: keys that were added, removed or have another value.

Both are read side by side, some key groups at a time; where they refer to the same files nothing is
read at all. A key is compared with all of its state key: an entry of a map with its user key, an
item of a list with its place.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sparkckpt.checkpoints.directory import Location
from sparkckpt.errors import DifferentStateError
from sparkckpt.keygroups import KeyGroupRange
from sparkckpt.tables.distributed import split
from sparkckpt.tables.identity import as_text, comparable, grouped, whole
from sparkckpt.tables.reader import StateReader, state
from sparkckpt.tables.shapes import INDEX
from sparkckpt.tables.table import StateTable

ADDED, REMOVED, CHANGED = "added", "removed", "changed"
CHANGE, BEFORE, AFTER = "change", "before", "after"

_ROWS_AT_ONCE = 1 << 20
_KINDS = np.array([ADDED, REMOVED, CHANGED])


def diff(
    before: Location | StateReader,
    after: Location | StateReader,
    operator_id: int | None = None,
    state_name: str | None = None,
) -> "StateDiff":
    """What has changed in a state from one checkpoint to another, given by path or as opened."""
    tables = []
    for side in (before, after):
        reader = side if isinstance(side, StateReader) else state(side)
        tables.append(reader.operator(operator_id).table(state_name))
    return StateDiff(_like(tables[0], tables[1]), _like(tables[1], tables[0]))


def _like(table: StateTable, other: StateTable) -> StateTable:
    """A state of which there is nothing, with the columns of the other."""
    if table.family.handles:
        return table
    return replace(table, family=replace(table.family, like=other.family), shape=other.shape)


@dataclass(frozen=True)
class StateDiff:
    """The changes from one state to another, found when they are asked for."""

    before: StateTable
    after: StateTable

    def __post_init__(self) -> None:
        if self.before.operator.operator_name != self.after.operator.operator_name:
            names = [table.operator.operator_name for table in (self.before, self.after)]
            raise DifferentStateError(f"one is of {names[0]}, the other of {names[1]}")
        keys = [
            [(field.name, field.type) for field in _fields(table, _key_names(table))]
            for table in (self.before, self.after)
        ]
        if keys[0] != keys[1]:
            texts = [", ".join(f"{name} {kind}" for name, kind in key) for key in keys]
            raise DifferentStateError(f"their keys are ({texts[0]}) and ({texts[1]})")

    @cached_property
    def schema(self) -> pa.Schema:
        """What has happened, to which key, and its columns before and after."""
        return pa.schema(
            [
                pa.field(CHANGE, pa.string()),
                *_fields(self.after, _key_names(self.after)),
                pa.field(BEFORE, pa.struct(_fields(self.before, _value_names(self.before)))),
                pa.field(AFTER, pa.struct(_fields(self.after, _value_names(self.after)))),
            ]
        )

    def to_reader(self) -> pa.RecordBatchReader:
        """The changes as a stream."""
        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def to_arrow(self) -> pa.Table:
        return self.to_reader().read_all()

    def head(self, rows: int) -> pa.Table:
        """So many changes, whichever are found first."""
        batches, taken = self._batches(), []
        while rows > 0 and (batch := next(batches, None)) is not None:
            taken.append(batch.slice(0, rows))
            rows -= batch.num_rows
        batches.close()
        return pa.Table.from_batches(taken, self.schema)

    def summary(self) -> dict[str, int]:
        """How many keys were added, removed and changed."""
        counts = dict.fromkeys((ADDED, REMOVED, CHANGED), 0)
        for batch in self._batches():
            for entry in batch[CHANGE].value_counts().to_pylist():
                counts[entry["values"]] += entry["counts"]
        return counts

    def _repr_html_(self) -> str:
        from sparkckpt.pages.notebook import html_of_diff

        return html_of_diff(self)

    def _batches(self) -> Generator[pa.RecordBatch, None, None]:
        with self.before.snapshot.kept(), self.after.snapshot.kept():
            for part in self._parts():
                if _files_of(self.before, part) != _files_of(self.after, part):
                    yield from self._changes(part).to_batches()

    def _parts(self) -> Sequence[Sequence[KeyGroupRange]]:
        """Key groups that are compared at once; all, if a key has another group on each side."""
        if self.before.operator.max_parallelism != self.after.operator.max_parallelism:
            return [self.before.ranges]
        rows = self.before.family.rows + self.after.family.rows
        parallelism = self.after.operator.parallelism
        return split(self.after.ranges, max(parallelism, 1 + rows // _ROWS_AT_ONCE))

    def _changes(self, part: Sequence[KeyGroupRange]) -> pa.Table:
        if self.before.operator.max_parallelism == self.after.operator.max_parallelism:
            tables = [table.key_groups(part) for table in (self.before, self.after)]
        else:
            tables = [self.before, self.after]
        before, after = (table.to_arrow().combine_chunks() for table in tables)
        names = _key_names(self.after)
        old, new = _matched(before.select(names), after.select(names))
        both = (old >= 0) & (new >= 0)
        differs = ~both
        differs[both] = ~_same_values(before.take(old[both]), after.take(new[both]), names)
        old, new = old[differs], new[differs]
        kinds = _KINDS[np.where(old < 0, 0, np.where(new < 0, 1, 2))]
        keys = pa.concat_tables([before.select(names), after.select(names)])
        of_key = np.where(new >= 0, new + before.num_rows, old)
        columns = [
            pa.array(kinds, pa.string()),
            *keys.take(of_key).columns,
            _values_at(before, old, self.schema.field(BEFORE).type),
            _values_at(after, new, self.schema.field(AFTER).type),
        ]
        return pa.table(columns, schema=self.schema)


def _key_names(table: StateTable) -> list[str]:
    keys = [column.name for column in table.shape.columns if column.path[0] == "key"]
    names = [*keys, INDEX] if table.shape.numbered else keys
    return sorted(names, key=table.schema.names.index)


def _value_names(table: StateTable) -> list[str]:
    keys = _key_names(table)
    return [name for name in table.schema.names if name not in keys]


def _fields(table: StateTable, names: Sequence[str]) -> list[pa.Field]:
    return [table.schema.field(name) for name in names]


def _files_of(table: StateTable, part: Sequence[KeyGroupRange]) -> list[tuple[object, ...]]:
    """The files, and what of each, that the state of these key groups consists of."""
    root = table.snapshot.source.root
    found: list[tuple[object, ...]] = []
    for handle in table.family.handles:
        for ref in handle.files_of(table.family.family):
            spans = [ref.key_groups.clip_to(one) for one in part] if ref.rows else []
            if any(spans):
                found.append((root.url_of(root.name_of(ref.path)), ref.offset, tuple(spans)))
    return found


Rows = npt.NDArray[np.int64]
"""Numbers of rows; -1 where there is none."""


def _matched(before: pa.Table, after: pa.Table) -> tuple[Rows, Rows]:
    """For each key of either side, its row before and after."""
    rows = pa.concat_tables([before, after]).combine_chunks()
    table, names = grouped([whole(column) for column in rows.columns], rows.num_rows)
    found = table.group_by(names, use_threads=False).aggregate([("row", "min"), ("row", "max")])
    first, last = found["row_min"].to_numpy(), found["row_max"].to_numpy()
    border = before.num_rows
    return np.where(first < border, first, -1), np.where(last >= border, last - border, -1)


def _same_values(before: pa.Table, after: pa.Table, keys: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Whether each row has the same values, which may be columns that only one side has."""
    same = np.ones(before.num_rows, np.bool_)
    for name in dict.fromkeys([*before.column_names, *after.column_names]):
        if name in keys:
            continue
        sides = [_column(table, name) for table in (before, after)]
        if sides[0].type != sides[1].type:
            sides = [as_text(side) for side in sides]
        for old, new in zip(*map(comparable, sides), strict=True):
            equal = pc.fill_null(pc.equal(old, new), False)
            missing = pc.and_(pc.is_null(old), pc.is_null(new))
            same &= pc.or_(equal, missing).to_numpy(zero_copy_only=False)
    return same


def _column(table: pa.Table, name: str) -> pa.Array:
    if name not in table.column_names:
        return pa.nulls(table.num_rows)
    return whole(table[name])


def _values_at(table: pa.Table, rows: Rows, kind: pa.StructType) -> pa.Array:
    """The value columns of these rows as one struct, null where there is no row."""
    taken = table.take(pa.array(rows, mask=rows < 0))
    arrays = [_column(taken, field.name) for field in kind]
    if not arrays:
        return pa.array([None if row < 0 else {} for row in rows], kind)
    return pa.StructArray.from_arrays(arrays, fields=list(kind), mask=pa.array(rows < 0))
