"""Writes the parts of an edited savepoint: what was edited anew, and all else as it is.

Functions of the user run in the thread that asks for the savepoint, one after the other; parts are
written by several. Nothing of a savepoint exists before its metadata is written, so an error at any
moment leaves none.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from sparkckpt.editing.layout import Layout
from sparkckpt.editing.shuffle import Shuffle
from sparkckpt.editing.steps import Step, keeps_keys, moves_keys, run
from sparkckpt.format import StateFamily, StateStream
from sparkckpt.format.operatorstate import load_operator_state
from sparkckpt.format.resolve import PUT, align
from sparkckpt.savepoints.merging import MergePart, Progress, write_in_threads
from sparkckpt.savepoints.writer import FamilyRows, WrittenStore, write_store
from sparkckpt.storage import Storage

StoreKey = tuple[int, str]
"""An operator and a store of it."""


@dataclass(frozen=True)
class EditedFamily:
    """A column family whose rows are edited; `counter` is one that counts them by key."""

    layout: Layout
    steps: tuple[Step, ...]
    result: Layout
    counter: StateFamily | None = None

    @property
    def store(self) -> StoreKey:
        return self.layout.family.operator_id, self.layout.family.store_name

    @property
    def name(self) -> str:
        return self.layout.family.family

    def tables(self, part: MergePart, source: Storage) -> Iterator[pa.Table]:
        """The part's rows as they were, in steps."""
        if not part.handle.files_of(self.name):
            return
        for rows in StateStream.open(source, part.handle, self.name, part.key_groups):
            yield align(rows, self.layout.file_schema)


@dataclass(frozen=True)
class Edits:
    """All that is edited, and what of it needs no rows: families and operators that are dropped."""

    families: tuple[EditedFamily, ...]
    dropped: frozenset[tuple[StoreKey, str]]
    dropped_operators: frozenset[int]

    def is_kept(self, store: StoreKey, family: str) -> bool:
        if store[0] in self.dropped_operators or (store, family) in self.dropped:
            return False
        counters = ((one.store, one.counter.family) for one in self.families if one.counter)
        edited = ((one.store, one.name) for one in self.families)
        return (store, family) not in {*edited, *counters}


def merge_edited(
    edits: Edits,
    parts: Sequence[MergePart],
    source: Storage,
    target: Storage,
    scratch: Path,
    progress: Progress,
    threads: int | None = None,
) -> list[WrittenStore]:
    """Writes all parts, between two state roots; `scratch` is an empty directory."""
    shuffles = {
        number: _shuffled(edited, parts, source, scratch / str(number))
        for number, edited in enumerate(edits.families)
        if not keeps_keys(edited.steps)
    }
    return write_in_threads(
        parts, lambda part: _write(part, edits, shuffles, source, target), progress, threads
    )


def _shuffled(
    edited: EditedFamily, parts: Sequence[MergePart], source: Storage, directory: Path
) -> Shuffle:
    own = [p for p in parts if (p.handle.operator_id, p.handle.store_name) == edited.store]
    shuffle = Shuffle(directory, [part.key_groups for part in own], edited.result.file_schema)
    rows = (table for part in own for table in edited.tables(part, source))
    if moves_keys(edited.steps):
        rows = (edited.layout.checked(table) for table in rows)
    shuffle.fill(run(edited.steps, rows))
    # Steps need not have asked for the rows that they replace.
    for _ in rows:
        pass
    return shuffle


def _write(
    part: MergePart,
    edits: Edits,
    shuffles: Mapping[int, Shuffle],
    source: Storage,
    target: Storage,
) -> WrittenStore:
    handle = part.handle
    store = (handle.operator_id, handle.store_name)

    def families() -> Iterator[FamilyRows]:
        for files in handle.families:
            if edits.is_kept(store, files.family):
                stream = StateStream.open(source, handle, files.family, part.key_groups)
                yield FamilyRows(stream.family, stream.schema, stream)
        for number, edited in enumerate(edits.families):
            if edited.store == store:
                yield from _edited(edited, shuffles.get(number), part, source)

    kept = handle.operator_state
    is_first = part.key_groups.first == handle.first_key_group
    if kept is None or not is_first or handle.operator_id in edits.dropped_operators:
        return write_store(target, part.part, families())
    return write_store(target, part.part, families(), load_operator_state(source, kept))


def _edited(
    edited: EditedFamily, shuffle: Shuffle | None, part: MergePart, source: Storage
) -> Iterator[FamilyRows]:
    result = edited.result
    if shuffle is None:
        tables = run(edited.steps, edited.tables(part, source))
        yield FamilyRows(result.family, result.file_schema, tables)
        return
    rows = result.ordered(shuffle.rows(part.key_groups))
    yield FamilyRows(result.family, result.file_schema, [rows])
    if edited.counter is not None:
        yield FamilyRows(edited.counter, _schema_of_counts(result), [_counts(result, rows)])


def _schema_of_counts(layout: Layout) -> pa.Schema:
    value = pa.struct([pa.field("count", pa.int64())])
    return pa.schema(
        [("kg", pa.uint16()), ("op", pa.int8()), ("key", layout.key), ("value", value)]
    )


def _counts(layout: Layout, rows: pa.Table) -> pa.Table:
    """How many items the list of each key has."""
    schema = _schema_of_counts(layout)
    starts = np.flatnonzero(rows["op"].to_numpy() == PUT)
    counts = np.diff(starts, append=rows.num_rows)
    firsts = rows.take(starts)
    values = pa.StructArray.from_arrays(
        [pa.array(counts, pa.int64())], fields=list(schema.field("value").type)
    )
    return pa.table([*firsts.columns[:3], values], schema=schema)
