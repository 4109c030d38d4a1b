"""What the column families of an operator mean to a person: named states, with columns to read.

Spark wraps grouping keys, adds counters and indexes, and packs values; each operator in its own
way. Here is known, for each of them, which families hold state and which only serve Spark, where in
a state key the grouping key lies, and which columns a row comes to. Pure: fields are found by
position, as names may occur twice, and nothing of a row is looked at.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

VALUE = "value"
LIST = "list"
MAP = "map"
TIMER = "timer"
ROWS = "rows"
"""Whole rows of a side of a stream-stream join."""
KEYS = "keys"
"""Only keys, of a deduplication."""
INTERNAL = "internal"
"""What Spark keeps besides, to find or count state."""

DEFAULT = "default"
INDEX = "index"

_JOIN = "symmetricHashJoin"
_SESSION_WINDOW = "sessionWindowStateStoreSaveExec"
_GROUP_STATE = ("applyInPandasWithState", "flatMapGroupsWithState")
_TRANSFORM_WITH_STATE = "transformWithState"
_TIMERS = {"$eventTimers": "eventTimers", "$procTimers": "procTimers"}
_BY_KEY, _BY_TIME = "_keyToTimestamp", "_timestampToKey"
_TTL_INDEX = "$ttl_"
_JOIN_ROWS = ("-keyWithIndexToValue", "-keyWithTsToValues")
_JOIN_SIDES = ("left", "right")
_PLACEHOLDERS = ("__dummy__", "__empty__", "dummy")

MICROS = "us"
MILLIS = "ms"
NO_TIMEOUT = -1

Path = tuple[str | int, ...]
"""The side, `key` or `value`, and the positions of fields from there."""


@dataclass(frozen=True)
class Column:
    """A column of a state's table, and where in a row it is found."""

    name: str
    path: Path
    time: str | None = None
    """The unit of a number that is a point in time."""
    unset: int | None = None
    """The number that stands for no time at all."""


@dataclass(frozen=True)
class Variable:
    """A state variable of a transformWithState, as the operator's metadata declares it."""

    name: str
    kind: str
    ttl: bool


@dataclass(frozen=True)
class StateName:
    """A state of an operator, and the store and column family it lies in."""

    name: str
    kind: str
    store: str
    family: str
    ttl: bool = False


@dataclass(frozen=True)
class Shape:
    """How rows of a family become rows of a table; the grouping key's columns come first."""

    grouping: tuple[Column, ...]
    columns: tuple[Column, ...]
    """All columns, also those of the grouping key."""
    presence: Path | None = None
    """A struct whose being there is a column of its own, `exists`."""
    numbered: bool = False
    """A key has a list of rows: their places in it are a column, `index`."""


def names_of(
    operator: str, families: Collection[tuple[str, str]], variables: Sequence[Variable]
) -> list[StateName]:
    """The states in these families, each given as (store, family), those for people first."""
    declared = {variable.name: variable for variable in variables}
    states = [_name_of(operator, store, family, declared) for store, family in families]
    taken = {state.name for state in states}
    for index, state in enumerate(states):
        # A variable may have any name, also that of the timers.
        plain = _TIMERS.get(state.family.removesuffix(_BY_KEY), "")
        if state.kind == TIMER and plain not in taken:
            states[index] = replace(state, name=plain)
    return sorted(states, key=lambda state: (state.kind == INTERNAL, state.name))


def expected_names(
    operator: str, found: Sequence[StateName], variables: Sequence[Variable]
) -> list[StateName]:
    """The states that the operator has, but nothing of which is in any file yet, or any more."""
    there = {state.name for state in found}
    if operator.startswith(_TRANSFORM_WITH_STATE):
        missing = [StateName(v.name, v.kind, DEFAULT, v.name, v.ttl) for v in variables]
    elif operator == _JOIN:
        missing = [
            StateName(side, ROWS, DEFAULT, f"{side}{_JOIN_ROWS[0]}")
            for side in _JOIN_SIDES
            if not any(name.startswith(side) for name in there)
        ]
    else:
        missing = [] if found else names_of(operator, [(DEFAULT, DEFAULT)], [])
    return [state for state in missing if state.name not in there]


def _name_of(operator: str, store: str, family: str, declared: Mapping[str, Variable]) -> StateName:
    if operator == _JOIN:
        # Before state format 3 each is a store of its own.
        full = family if store == DEFAULT else store
        for suffix in _JOIN_ROWS:
            if full.endswith(suffix):
                return StateName(full.removesuffix(suffix), ROWS, store, family)
        return StateName(full, INTERNAL, store, family)
    if operator.startswith(_TRANSFORM_WITH_STATE):
        if family in declared and not family.startswith("$"):
            variable = declared[family]
            return StateName(family, variable.kind, store, family, variable.ttl)
        if family.endswith(_BY_KEY) and family.startswith(tuple(_TIMERS)):
            return StateName(family, TIMER, store, family)
        return StateName(family, INTERNAL if family.startswith("$") else VALUE, store, family)
    kind = KEYS if operator.startswith("dedupe") else VALUE
    return StateName(family if store == DEFAULT else store, kind, store, family)


def variables_in(operator_metadata: bytes) -> list[Variable]:
    """The state variables that Spark's metadata of a transformWithState declares."""
    for line in operator_metadata.decode(errors="replace").splitlines():
        try:
            properties = json.loads(json.loads(line)["operatorPropertiesJson"])
            return [
                Variable(
                    variable["stateName"],
                    variable["stateVariableType"].removesuffix("State").lower(),
                    variable["ttlEnabled"] is True,
                )
                for variable in properties["stateVariables"]
            ]
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return []


def shape_of(
    operator: str,
    state: StateName,
    key: pa.StructType,
    value: pa.StructType,
    *,
    multi_valued: bool,
    confs: Mapping[str, str],
    event_time: bool = False,
    map_indexes: Collection[str] = (),
) -> Shape:
    """The table of a state whose sides have these types.

    `confs` are those that are pinned for the query; `event_time` says whether the event time in
    a join's key is one, and not a number that stands in for it. `map_indexes` are the variables
    that are maps.
    """
    sides = {"key": key, "value": value}
    shaping = _Shaping(operator, state, sides, confs, event_time, map_indexes)
    grouping = tuple(_unique([Column(c.name, c.path) for c in shaping.grouping()]))
    rest = [c for c in shaping.rest() if _type_at(sides, c.path) != pa.null()]
    reserved = [INDEX] if multi_valued else []
    columns = tuple(_unique([*grouping, *rest], reserved))
    return Shape(grouping, columns, shaping.presence(), multi_valued)


@dataclass(frozen=True)
class _Shaping:
    """The rules for one family."""

    operator: str
    state: StateName
    sides: Mapping[str, pa.StructType]
    confs: Mapping[str, str]
    event_time: bool
    map_indexes: Collection[str]

    def grouping(self) -> Iterator[Column]:
        """Where the grouping key lies, as PROTOCOL.md section 1 has it."""
        key, family = self.sides["key"], self.state.family
        if self.operator == _JOIN:
            full = family if self.state.store == DEFAULT else self.state.store
            bare = full.endswith("-keyToNumValues")
            return self._leading(key.num_fields - (not bare))
        if self.operator == _SESSION_WINDOW:
            return self._leading(key.num_fields - 1)
        if not self.operator.startswith(_TRANSFORM_WITH_STATE):
            return self._leading(key.num_fields)
        if self.state.kind == MAP:
            return self._fields(("key", 0))
        if family.startswith(tuple(_TIMERS)):
            return self._fields(("key", 0 if family.endswith(_BY_KEY) else 1))
        if family.startswith(_TTL_INDEX):
            of_map = family.removeprefix(_TTL_INDEX) in self.map_indexes
            return self._fields(("key", 1, 0) if of_map else ("key", 1))
        return self._leading(key.num_fields)

    def rest(self) -> Iterator[Column]:
        """The columns besides those of the grouping key."""
        match self.state.kind:
            case "internal":
                return self._all_but_grouping()
            case "rows":
                return self._of_join()
            case "map":
                return iter([*self._fields(("key", 1), "user_key"), *self._value()])
            case "timer":
                return iter([Column("expiry", ("key", 1), MILLIS)])
            case "value" if self.operator == _SESSION_WINDOW:
                return self._of_session()
            case "value" if self.operator.startswith(_GROUP_STATE):
                return self._of_group_state()
        return self._value()

    def presence(self) -> Path | None:
        """A group's state may be absent while its timeout is set."""
        value = self.sides["value"]
        has_timeout = value.num_fields == 2 and value.field(1).name == "timeoutTimestamp"
        of_group = self.operator.startswith(_GROUP_STATE) and value.field(0).name == "groupState"
        return ("value", 0) if of_group and has_timeout else None

    def _leading(self, count: int) -> Iterator[Column]:
        key = self.sides["key"]
        columns = (Column(key.field(i).name, ("key", i)) for i in range(count))
        return (column for column in columns if _type_at(self.sides, column.path) != pa.null())

    def _fields(self, path: Path, role: str = "") -> Iterator[Column]:
        """Those of a struct; `role` tells apart what would have the name of another column."""
        struct = _type_at(self.sides, path)
        taken = {column.name for column in self.grouping()} if role else set()
        for index in range(struct.num_fields):
            name = struct.field(index).name
            yield Column(f"{role}_{name}" if name in taken else name, (*path, index))

    def _value(self) -> Iterator[Column]:
        value = self.sides["value"]
        skipped = 0
        if self.operator == "stateStoreSave" and self._format("aggregation") == "1":
            # Format 1 repeats the key in the value.
            skipped = self.sides["key"].num_fields
        if self.state.ttl and [field.name for field in value] == ["value", "ttlExpirationMs"]:
            yield from self._fields(("value", 0), "value")
            yield Column("ttl_expiration", ("value", 1), MILLIS)
            return
        for column in [*self._fields(("value",), "value")][skipped:]:
            if column.name in _PLACEHOLDERS:
                continue
            if self.operator == "dedupeWithinWatermark" and column.name == "expiresAtMicros":
                column = Column("expires_at", column.path, MICROS)
            elif self.operator == "globalLimit" and column.name == "value":
                column = Column("rows", column.path)
            yield column

    def _of_session(self) -> Iterator[Column]:
        """The value is the whole row: the session, the grouping key once more, the aggregates."""
        grouping = {column.name for column in self.grouping()}
        yield Column("session_start", ("key", self.sides["key"].num_fields - 1))
        for index, field in enumerate(self.sides["value"]):
            if field.name == "session_window" and pa.types.is_struct(field.type):
                yield Column("session_end", ("value", index, 1))
            elif field.name not in grouping:
                yield Column(field.name, ("value", index))

    def _of_group_state(self) -> Iterator[Column]:
        value = self.sides["value"]
        for index, field in enumerate(value):
            if field.name == "timeoutTimestamp":
                yield Column("timeout", ("value", index), MILLIS, NO_TIMEOUT)
            elif field.name == "groupState" and pa.types.is_struct(field.type):
                yield from self._fields(("value", index), "state")
            else:
                yield Column(field.name, ("value", index))

    def _of_join(self) -> Iterator[Column]:
        key = self.sides["key"]
        last = key.num_fields - 1
        if key.field(last).name == "__event_time":
            if self.event_time:
                yield Column("event_time", ("key", last), MICROS)
            else:
                # A random number, which spreads the rows of a key.
                yield Column(key.field(last).name, ("key", last))
        else:
            yield Column(INDEX, ("key", last))
        yield from self._fields(("value",), "value")

    def _all_but_grouping(self) -> Iterator[Column]:
        """Whatever it is, to the last field."""
        grouping = {column.path for column in self.grouping()}
        yield from self._leaves(("key",), grouping)
        for column in self._fields(("value",), "value"):
            if column.name not in _PLACEHOLDERS:
                yield column

    def _leaves(self, path: Path, but: Collection[Path]) -> Iterator[Column]:
        struct = _type_at(self.sides, path)
        for index in range(struct.num_fields):
            field, here = struct.field(index), (*path, index)
            if here in but:
                continue
            if any(other[: len(here)] == here for other in but):
                yield from self._leaves(here, but)
            else:
                yield Column(field.name, here)

    def _format(self, kind: str) -> str | None:
        return self.confs.get(f"spark.sql.streaming.{kind}.stateFormatVersion")


def _type_at(sides: Mapping[str, pa.StructType], path: Path) -> pa.DataType:
    kind: pa.DataType = sides[str(path[0])]
    for index in path[1:]:
        kind = kind.field(index).type
    return kind


def _unique(columns: Sequence[Column], reserved: Sequence[str] = ()) -> list[Column]:
    """Where a name occurs again it gets a number."""
    seen, renamed = set(reserved), []
    for column in columns:
        name, number = column.name, 0
        while name in seen:
            name, number = f"{column.name}_{number}", number + 1
        seen.add(name)
        renamed.append(replace(column, name=name))
    return renamed
