"""The state variables that an unchanged StatefulProcessor holds, over state that came in-band.

They are Spark's public classes to whom asks, and behave as those do; the state of the current key
is set before each call, and what has changed is collected after it. State that was not sent is
fetched when it is read, and not for appending, putting or clearing.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming.stateful_processor import ListState, MapState, ValueState
from pyspark.sql.types import StructType, _create_row

from sparkckpt.processor.statevalues import StateSchema
from sparkckpt.processor.userkeys import stand_in
from sparkckpt.processor.wire import APPEND, CLEAR, CLEAR_AND_APPEND, NOTHING, PUT

Value = tuple[Any, ...]
Fetch = Callable[[], pa.Table]


@dataclass(frozen=True)
class VariableSpec:
    """A state variable as init() asks for it."""

    name: str
    kind: str
    schema: StructType
    user_key: StructType | None = None
    ttl_ms: int | None = None

    def to_json(self) -> dict[str, Any]:
        spec: dict[str, Any] = {
            "name": self.name,
            "kind": self.kind,
            "schema": self.schema.jsonValue(),
            "ttlMs": self.ttl_ms,
        }
        if self.user_key is not None:
            spec["userKeySchema"] = self.user_key.jsonValue()
        return spec


class ValueVariable(ValueState):
    """Of the current key: a tuple, None where it does not exist."""

    def __init__(self, spec: VariableSpec, zone: str, fetch: Fetch) -> None:
        self._schema = StateSchema(spec.schema, zone)
        self._adopt = self._schema.adopt
        self.arrow: pa.DataType = self._schema.arrow
        self.current: Value | None = None
        self.operation = NOTHING

    def exists(self) -> bool:
        return self.current is not None

    def get(self) -> Value | None:
        return None if self.current is None else self._schema.given(self.current)

    def update(self, newValue: Value) -> None:
        self.current = self._adopt(newValue)
        self.operation = PUT

    def clear(self) -> None:
        self.current = None
        self.operation = CLEAR

    def read(self, column: pa.Array) -> list[Any]:
        """What to begin with, for each key."""
        return self._schema.read(column)

    def begin(self, current: Any) -> None:
        self.current = current

    def take_change(self) -> Any:
        """The value of the operation, which ends with this."""
        self.operation = NOTHING
        return self.current

    def write(self, changes: list[Any]) -> pa.Array:
        return self._schema.write(changes)


class ListVariable(ListState):
    """Of the current key: the list that was there, None if it was not sent, and what was added."""

    def __init__(self, spec: VariableSpec, zone: str, fetch: Fetch) -> None:
        self._name = spec.name
        self._schema = StateSchema(spec.schema, zone)
        self._adopt = self._schema.adopt
        self._fetch = fetch
        self.arrow = pa.list_(self._schema.arrow)
        self.current: list[Value] | None = None
        self._added: list[Value] = []
        self.operation = NOTHING

    def exists(self) -> bool:
        return bool(self._added or self._before())

    def get(self) -> Iterator[Value]:
        yield from map(self._schema.given, [*self._before(), *self._added])

    def put(self, newState: list[Value]) -> None:
        self._added = self._adopted(newState)
        self.operation = PUT

    def appendValue(self, newState: Value) -> None:
        self._append([self._adopt(newState)])

    def appendList(self, newState: list[Value]) -> None:
        self._append(self._adopted(newState))

    def clear(self) -> None:
        self._added = []
        self.operation = CLEAR

    def read(self, column: pa.Array) -> list[Any]:
        values = self._schema.read(column.flatten())
        valid = column.is_valid().to_pylist()
        lengths = column.value_lengths().to_pylist()
        lists: list[Any] = []
        start = 0
        for ok, length in zip(valid, lengths, strict=True):
            lists.append(values[start : start + length] if ok else None)
            start += length or 0
        return lists

    def begin(self, current: Any) -> None:
        self.current = current

    def take_change(self) -> Any:
        change = None if self.operation == CLEAR else self._added
        self.operation = NOTHING
        self._added = []
        return change

    def write(self, changes: list[Any]) -> pa.Array:
        return listed(changes, self._schema.write)

    def _append(self, values: list[Value]) -> None:
        self._added.extend(values)
        self.operation = APPEND if self.operation in (NOTHING, APPEND) else PUT

    def _adopted(self, values: list[Value]) -> list[Value]:
        adopted = [self._adopt(value) for value in values]
        if not adopted:
            raise PySparkRuntimeError(
                "Error updating value state: [ILLEGAL_STATE_STORE_VALUE.EMPTY_LIST_VALUE] Illegal "
                "value provided to the State Store Cannot write empty list values to State Store "
                f"for StateName {self._name}. SQLSTATE: 42601"
            )
        return adopted

    def _before(self) -> list[Value]:
        if self.operation in (PUT, CLEAR):
            return []
        if self.current is None:
            table = self._fetch()
            self.current = _all(self._schema, table.to_struct_array())
        return self.current


class MapVariable(MapState):
    """Of the current key: the map that was there, None if it was not sent, and what has changed."""

    def __init__(self, spec: VariableSpec, zone: str, fetch: Fetch) -> None:
        assert spec.user_key is not None
        self._keys = StateSchema(spec.user_key, zone)
        self._schema = StateSchema(spec.schema, zone)
        self._stand_in = stand_in(spec.user_key)
        self._fetch = fetch
        self.arrow = pa.list_(pa.struct([("key", self._keys.arrow), ("value", self._schema.arrow)]))
        self.current: list[tuple[Value, Value]] | None = None
        self._loaded: dict[Any, tuple[Value, Value]] | None = None
        self._changed: dict[Any, tuple[Value, Value | None]] = {}
        self.operation = NOTHING

    def exists(self) -> bool:
        return next(self.iterator(), None) is not None

    def getValue(self, key: Value) -> Value | None:
        value = self._get(key)
        if value is None:
            return None
        row: Value = _create_row(self._schema.names, self._schema.given(value))
        return row

    def containsKey(self, key: Value) -> bool:
        return self._get(key) is not None

    def updateValue(self, key: Value, value: Value) -> None:
        adopted = self._keys.adopt(key)
        self._change(adopted, self._schema.adopt(value))

    def removeKey(self, key: Value) -> None:
        self._change(self._keys.adopt(key), None)

    def iterator(self) -> Iterator[tuple[Value, Value]]:
        merged: dict[Any, tuple[Value, Value | None]] = {**self._before(), **self._changed}
        for key, value in merged.values():
            if value is not None:
                yield self._keys.given(key), self._schema.given(value)

    def keys(self) -> Iterator[Value]:
        return (key for key, _ in self.iterator())

    def values(self) -> Iterator[Value]:
        return (value for _, value in self.iterator())

    def clear(self) -> None:
        self._changed = {}
        self.operation = CLEAR

    def read(self, column: pa.Array) -> list[Any]:
        entries = column.flatten()
        keys, values = (entries.field(0), entries.field(1)) if len(entries) else ([], [])
        pairs = (
            list(zip(self._keys.read(keys), self._schema.read(values), strict=True))
            if len(entries)
            else []
        )
        maps: list[Any] = []
        start = 0
        lengths = column.value_lengths().to_pylist()
        for ok, length in zip(column.is_valid().to_pylist(), lengths, strict=True):
            maps.append(pairs[start : start + length] if ok else None)
            start += length or 0
        return maps

    def begin(self, current: Any) -> None:
        self.current = current
        self._loaded = None

    def take_change(self) -> Any:
        change = None if self.operation == CLEAR else list(self._changed.values())
        self.operation = NOTHING
        self._changed = {}
        return change

    def write(self, changes: list[Any]) -> pa.Array:
        return listed(changes, self._entries)

    def _entries(self, pairs: list[tuple[Value, Value | None]]) -> pa.Array:
        keys = self._keys.write([key for key, _ in pairs])
        values = self._schema.write([value for _, value in pairs])
        return pa.StructArray.from_arrays([keys, values], ["key", "value"])

    def _get(self, key: Value) -> Value | None:
        wanted = self._stand_in(self._keys.adopt(key))
        found = self._changed.get(wanted) or self._before().get(wanted)
        return None if found is None else found[1]

    def _change(self, key: Value, value: Value | None) -> None:
        self._changed[self._stand_in(key)] = (key, value)
        self.operation = APPEND if self.operation in (NOTHING, APPEND) else CLEAR_AND_APPEND

    def _before(self) -> dict[Any, tuple[Value, Value]]:
        if self.operation in (CLEAR, CLEAR_AND_APPEND):
            return {}
        if self._loaded is None:
            pairs = self._fetched() if self.current is None else self.current
            self._loaded = {self._stand_in(key): (key, value) for key, value in pairs}
        return self._loaded

    def _fetched(self) -> list[tuple[Value, Value]]:
        table = self._fetch()
        keys, values = _all(self._keys, table.column(0)), _all(self._schema, table.column(1))
        return list(zip(keys, values, strict=True))


Variable = ValueVariable | ListVariable | MapVariable
KINDS: dict[str, Callable[..., Variable]] = {
    "value": ValueVariable,
    "list": ListVariable,
    "map": MapVariable,
}


def listed(lists: list[Any], write: Callable[[list[Any]], pa.Array]) -> pa.Array:
    """A list column, null where an element is None."""
    flat: list[Any] = []
    offsets: list[int | None] = []
    for values in lists:
        offsets.append(None if values is None else len(flat))
        flat.extend(values or ())
    offsets.append(len(flat))
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), write(flat))


def _all(schema: StateSchema, structs: pa.ChunkedArray) -> list[Any]:
    return [row for chunk in structs.chunks for row in schema.read(chunk)]
