"""The way in: a savepoint that is edited, state by state, into a new one.

What is to be done is noted, and checked as far as it can be without reading rows; `write` does it.
The savepoint that is edited is never changed.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from sparkckpt.checkpoints.directory import Location
from sparkckpt.coordinator.committed import STATE
from sparkckpt.editing.changes import ColumnChanges
from sparkckpt.editing.columns import FieldChange
from sparkckpt.editing.layout import Layout
from sparkckpt.editing.merge import EditedFamily, Edits, merge_edited
from sparkckpt.editing.origin import counter_of, layout_of
from sparkckpt.editing.schemas import revised_schemas
from sparkckpt.editing.steps import (
    Change,
    Empty,
    Filter,
    Predicate,
    Replace,
    Rewrite,
    Step,
    Transform,
    keeps_keys,
)
from sparkckpt.errors import NotASnapshotError, UneditableStateError
from sparkckpt.format import MasterState
from sparkckpt.restoration.exclusive import wall_clock
from sparkckpt.restoration.source import Source, open_storage
from sparkckpt.savepoints.merging import MergePart, Progress
from sparkckpt.savepoints.take import SavepointReport, Taking, last_part, say_nothing
from sparkckpt.savepoints.writer import WrittenStore
from sparkckpt.tables.reader import OperatorStateReader, StateReader, state
from sparkckpt.tables.shapes import INTERNAL, ROWS, TIMER, StateName

_SUBORDINATE = ("$ttl_", "$min_", "$count_", "$rowCounter_")
"""Families that Spark keeps beside a state variable."""
_BY_KEY, _BY_TIME = "_keyToTimestamp", "_timestampToKey"
_DROP_INSTEAD = "Its schema can be changed, and all of it can be dropped."


def edit(savepoint: Location, checkpoint_id: int | None = None) -> "SavepointEditor":
    """A savepoint, or a checkpoint, whose state is to be edited into a new savepoint."""
    reader = state(savepoint, checkpoint_id)
    if reader.checkpoint_id is None:
        raise NotASnapshotError(reader.snapshot.where)
    return SavepointEditor(savepoint, reader)


class SavepointEditor:
    """Notes what is to be edited; see `operator` and `write`."""

    def __init__(self, path: Location, reader: StateReader) -> None:
        self._path = path
        self._reader = reader
        self._operators: dict[int, OperatorEditor] = {}

    def operator(self, operator_id: int | None = None) -> "OperatorEditor":
        """The operator with this id; it can be left out where there is only one."""
        reader = self._reader.operator(operator_id)
        return self._operators.setdefault(reader.operator.operator_id, OperatorEditor(reader))

    @property
    def operator_ids(self) -> list[int]:
        return [one.operator.operator_id for one in self._reader.operators()]

    def states(self) -> pa.Table:
        """The states that there are before anything is edited."""
        return self._reader.states()

    def write(
        self,
        target: Location,
        *,
        name: str | None = None,
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> SavepointReport:
        """Writes the edited state as a new savepoint, in the new directory `target`."""
        source = Source.at(self._path, self._reader.checkpoint_id)
        storage, url = open_storage(target)
        edits = self._edits()

        def merge(parts: list[MergePart]) -> list[WrittenStore]:
            with tempfile.TemporaryDirectory(prefix="sparkckpt-edit-") as scratch:
                roots = source.storage.below(STATE), storage.below(STATE)
                return merge_edited(
                    edits, parts, *roots, Path(scratch), progress or say_nothing, threads
                )

        def revised(states: Sequence[MasterState]) -> Sequence[MasterState]:
            changed = [one for one in edits.families if one.result.family != one.layout.family]
            return revised_schemas(states, [one.result.family for one in changed])

        taking = Taking(source, storage, url, name or last_part(url), wall_clock, revised)
        return taking.run(merge)

    def _edits(self) -> Edits:
        families = [f for operator in self._operators.values() for f in operator.edited()]
        dropped = [d for operator in self._operators.values() for d in operator.dropped()]
        whole = [number for number, operator in self._operators.items() if operator.is_dropped]
        return Edits(tuple(families), frozenset(dropped), frozenset(whole))


class OperatorEditor:
    """The states of one operator."""

    def __init__(self, reader: OperatorStateReader) -> None:
        self._reader = reader
        self._states: dict[StateName, StateEditor] = {}
        self.is_dropped = False

    def state(self, name: str | None = None) -> "StateEditor":
        """The state of this name; it can be left out where there is only one."""
        found = self._reader.table(name).name
        return self._states.setdefault(found, StateEditor(self._reader, found))

    def drop(self) -> None:
        """Drops all that the operator holds, its operator state too: it begins empty, but for
        states whose rows are replaced. What Spark has noted of it stays."""
        self.is_dropped = True

    def edited(self) -> list[EditedFamily]:
        found = (editor.edited(self.is_dropped) for editor in self._states.values())
        return [one for one in found if one is not None]

    def dropped(self) -> list[tuple[tuple[int, str], str]]:
        editors = [editor for editor in self._states.values() if editor.is_dropped]
        return [family for editor in editors for family in editor.families]


class StateEditor(ColumnChanges):
    """One state. Each method adds a step to those before it and gives the editor again."""

    def __init__(self, reader: OperatorStateReader, name: StateName) -> None:
        self._reader = reader
        self._name = name
        self._begin = layout_of(reader, name)
        self._layout = self._begin
        self._steps: list[Step] = []
        self.is_dropped = False

    @property
    def schema(self) -> pa.Schema:
        """The columns, after the steps so far. Those of the grouping key come first."""
        return self._layout.schema

    @property
    def layout(self) -> Layout:
        return self._layout

    def replace(self, data: Any) -> "StateEditor":
        """Other rows in place of all: an Arrow table or stream, a pandas or a Spark DataFrame, with
        the columns of `schema`."""
        self._refuse_if_indexed("Replacing rows")
        self._layout.refuse_if_unwritable("Replacing rows")
        self.is_dropped = False
        return self._with(Replace(self._layout, data))

    def filter(self, predicate: Predicate) -> "StateEditor":
        """Only the rows for which an expression (`pyarrow.compute.field("n") > 3`) is true, or a
        function from a table to booleans."""
        self._refuse_if_indexed("Filtering")
        return self._with(Filter(self._layout, predicate))

    def transform(self, function: Transform) -> "StateEditor":
        """The rows that a function makes, from an Arrow table with the columns of `schema` to one,
        or to pandas. It gets all rows of some keys at a time; it may change keys too, or drop rows
        or add some."""
        self._refuse_if_indexed("Transforming rows")
        self._layout.refuse_if_unwritable("Transforming rows")
        return self._with(Rewrite(self._layout, function))

    def drop(self) -> "StateEditor":
        """Drops the state's rows, with all that Spark keeps beside it."""
        if self._name.kind in (ROWS, INTERNAL):
            why = "Spark keeps it together with others, which would no longer agree with it"
            instead = "Drop all state of the operator: `.operator(...).drop()`."
            raise UneditableStateError(str(self._layout), "Dropping rows", why, instead)
        self._steps = [step for step in self._steps if isinstance(step, Change)]
        self.is_dropped = True
        return self

    @property
    def families(self) -> list[tuple[tuple[int, str], str]]:
        """The column families that a drop empties."""
        family = self._name.family
        names = [family, *(prefix + family for prefix in _SUBORDINATE)]
        if self._name.kind == TIMER:
            names.append(family.removesuffix(_BY_KEY) + _BY_TIME)
        store = (self._reader.operator.operator_id, self._name.store)
        return [(store, name) for name in names]

    def edited(self, operator_is_dropped: bool) -> EditedFamily | None:
        """What is to be written of it; None if nothing is, or it is as it was."""
        steps = tuple(self._steps)
        is_empty = operator_is_dropped or self.is_dropped
        if is_empty and not any(isinstance(step, Replace) for step in steps):
            changes = [step for step in steps if isinstance(step, Change)]
            steps = (Empty(self._begin), *changes) if changes else ()
        if not steps:
            return None
        # Where no row goes or comes, the counts stay as they are.
        counter = None if keeps_keys(steps) else counter_of(self._reader, self._name)
        return EditedFamily(self._begin, steps, self._layout, counter)

    def _change(self, change: FieldChange, after: Layout) -> "StateEditor":
        return self._with(Change(after, change), after)

    def _with(self, step: Step, layout: Layout | None = None) -> "StateEditor":
        self._steps.append(step)
        self._layout = layout or self._layout
        return self

    def _refuse_if_indexed(self, what: str) -> None:
        """Families beside it would have to change too: indexes by time, or numbers of rows."""
        why = None
        if self._name.kind in (ROWS, INTERNAL, TIMER):
            why = "Spark keeps it together with others, which would no longer agree with it"
        elif self._name.ttl:
            why = "it expires, and Spark finds its rows by an index of the times"
        if why:
            raise UneditableStateError(str(self._layout), what, why, _DROP_INSTEAD)
