"""The way in: from a path to a checkpoint, its operators and their states."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import TracebackType

import pyarrow as pa

from sparkckpt.checkpoints.directory import Location
from sparkckpt.errors import CheckpointSubsumedError, UnknownStateError
from sparkckpt.format.metadata import OperatorState
from sparkckpt.format.operatorstatefile import load_operator_states
from sparkckpt.tables.scan import FamilyState
from sparkckpt.tables.shapes import (
    DEFAULT,
    INTERNAL,
    MAP,
    Shape,
    StateName,
    expected_names,
    names_of,
    shape_of,
)
from sparkckpt.tables.snapshot import StateSnapshot
from sparkckpt.tables.table import KeyGroups, StateTable, parse_key_groups

_ATTEMPTS = 3

STATES = pa.schema(
    {
        "operator_id": pa.int64(),
        "operator_name": pa.string(),
        "state": pa.string(),
        "kind": pa.string(),
        "ttl": pa.bool_(),
        "store": pa.string(),
        "family": pa.string(),
        "rows": pa.int64(),
        "bytes": pa.int64(),
    }
)
"""`rows` and `bytes` are those in files: a key counts in each version that has changed it."""


OPERATOR_STATE = pa.schema(
    {
        "state": pa.string(),
        "mode": pa.string(),
        "partition": pa.int64(),
        "index": pa.int64(),
        "inherited": pa.bool_(),
        "item": pa.binary(),
    }
)
"""An item is `inherited` if its partition has it from a restore, which has given it to all."""


def state(path: Location, checkpoint_id: int | None = None) -> "StateReader":
    """The state in a checkpointLocation, or in one of its checkpoints (`.../_sparkckpt/chk-41`).

    By default it is the newest completed checkpoint of a running query, or the last batch of a
    stopped one. With a `with` statement its files are kept until the end, even if the query removes
    the checkpoint; else each reading keeps them for itself.
    """
    return StateReader(StateSnapshot.open(path, checkpoint_id))


@contextmanager
def kept_state(path: Location, checkpoint_id: int | None = None) -> Iterator["StateReader"]:
    """The same, kept from the beginning. If the newest checkpoint goes before it can be kept, it is
    the one that has come after it."""
    for attempt in range(1, _ATTEMPTS + 1):
        reader = state(path, checkpoint_id)
        with ExitStack() as kept:
            try:
                kept.enter_context(reader)
            except CheckpointSubsumedError:
                if attempt == _ATTEMPTS or reader.snapshot.source.checkpoint_id is not None:
                    raise
                continue
            yield reader
            return


@dataclass(frozen=True)
class StateReader:
    """The state of one checkpoint."""

    snapshot: StateSnapshot
    _kept: ExitStack = field(default_factory=ExitStack, repr=False, compare=False)

    @property
    def checkpoint_id(self) -> int | None:
        """None: the last committed batch, of which there is no checkpoint."""
        return self.snapshot.checkpoint_id

    @property
    def batch_id(self) -> int:
        return self.snapshot.metadata.batch_id

    def operators(self) -> list["OperatorStateReader"]:
        return [
            OperatorStateReader(self.snapshot, operator)
            for operator in self.snapshot.metadata.operator_states
        ]

    def operator(self, operator_id: int | None = None) -> "OperatorStateReader":
        """The operator with this id; it can be left out where there is only one."""
        return OperatorStateReader(self.snapshot, self.snapshot.operator(operator_id))

    def states(self) -> pa.Table:
        """The states of all operators; see STATES."""
        return pa.concat_tables(
            [STATES.empty_table(), *(operator.states() for operator in self.operators())]
        )

    def _repr_html_(self) -> str:
        from sparkckpt.pages.notebook import html_of_states

        return html_of_states(str(self.snapshot), self.states())

    def __enter__(self) -> "StateReader":
        self._kept.enter_context(self.snapshot.kept())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return self._kept.__exit__(kind, error, traceback)


@dataclass(frozen=True)
class OperatorStateReader:
    """The states of one stateful operator."""

    snapshot: StateSnapshot
    operator: OperatorState

    @property
    def names(self) -> list[StateName]:
        families = {
            (handle.store_name, family.family): None
            for handle in self.operator.handles
            for family in handle.families
            if family.files
        }
        operator = self.operator.operator_name
        variables = self.snapshot.variables(self.operator.operator_id)
        found = names_of(operator, list(families), variables)
        return [*expected_names(operator, found, variables), *found]

    def states(self) -> pa.Table:
        """The names of the states, what each is, and how much there is of it; see STATES."""
        return pa.Table.from_pylist([self._described(name) for name in self.names], STATES)

    def table(self, state: str | None = None, key_groups: KeyGroups = None) -> StateTable:
        """A state as a table; it can be left out which where there is only one.

        What Spark keeps besides, such as indexes, has the name of its column family or store. A
        state of which there is nothing has no columns either: only its files would tell them.
        """
        name = self._choose(state)
        family = self._family(name)
        ranges = parse_key_groups(key_groups, self.operator.max_parallelism)
        shape = self._shape(name, family) if family.handles else Shape((), ())
        return StateTable(self.snapshot, self.operator, name, family, shape, ranges)

    def _shape(self, name: StateName, family: FamilyState) -> Shape:
        operator = self.operator
        variables = self.snapshot.variables(operator.operator_id)
        return shape_of(
            operator.operator_name,
            name,
            family.types["key"],
            family.types["value"],
            multi_valued=family.multi_valued,
            confs=self.snapshot.confs,
            event_time=any(self._is_time_index_of(name, other) for other in self.names),
            map_indexes=[variable.name for variable in variables if variable.kind == MAP],
        )

    def operator_state(self) -> pa.Table:
        """The items of its operator state, which belong to partitions and to no key; see
        OPERATOR_STATE. What an item's bytes mean only the processor knows."""
        with self.snapshot.kept():
            stores = load_operator_states(self.snapshot.state, self.operator.handles)
        rows = [
            {
                "state": state.name,
                "mode": state.mode,
                "partition": store.partition,
                "index": index,
                "inherited": state.inherited,
                "item": item,
            }
            for store in stores
            for state in store.states
            for index, item in enumerate(state.items)
        ]
        return pa.Table.from_pylist(rows, OPERATOR_STATE)

    def _repr_html_(self) -> str:
        from sparkckpt.pages.notebook import html_of_states

        return html_of_states(self._where, self.states())

    def _choose(self, state: str | None) -> StateName:
        names = self.names
        public = [name for name in names if name.kind != INTERNAL]
        if state is None and len(public) == 1:
            return public[0]
        found = [name for name in names if state is not None and state in (name.name, _raw(name))]
        if not found:
            raise UnknownStateError(self._where, state, [name.name for name in public or names])
        return found[0]

    def _family(self, name: StateName) -> FamilyState:
        return FamilyState.of(self.snapshot.state, self.operator, name.store, name.family)

    def _described(self, name: StateName) -> dict[str, object]:
        family = self._family(name)
        return {
            "operator_id": self.operator.operator_id,
            "operator_name": self.operator.operator_name,
            "state": name.name,
            "kind": name.kind,
            "ttl": name.ttl,
            "store": name.store,
            "family": name.family,
            "rows": family.rows,
            "bytes": family.bytes,
        }

    @staticmethod
    def _is_time_index_of(state: StateName, other: StateName) -> bool:
        """Where rows of a join have an event time, Spark keeps an index by it."""
        return other.name == f"{state.name}-tsWithKey"

    @property
    def _where(self) -> str:
        return f"operator {self.operator.operator_id} in {self.snapshot}"


def _raw(name: StateName) -> str:
    return name.family if name.store == DEFAULT else name.store
