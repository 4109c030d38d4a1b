"""Processors over Arrow tables: many keys at once, without a Python object per row or key.

A processor is called for each exchange, with the rows of some keys and the state of these keys, and
returns their output and new state. A key with more rows than fit an exchange is the last of one and
the first of the next: there it sees the state that it was given here, and only when it is finished
does its state go back.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from sparkckpt.errors.processing import VectorizedResultError
from sparkckpt.processor.groupstates import update_type
from sparkckpt.processor.wire import (
    CLEAR,
    NO_TIMESTAMP,
    NOTHING,
    PUT,
    Batches,
    Control,
    Exchange,
    Reader,
    Replies,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class Touched:
    """Some keys of a batch with their rows; rows are sorted by key, and each key is here once."""

    rows: pa.Table
    """All columns; no row if the keys have timed out."""
    key_index: pa.Array
    """For each row, which row of `keys` and `state` it belongs to: ascending, without a gap."""
    starts: Any
    """For each key, its first row (a numpy array, as reduceat takes it)."""
    keys: pa.Table
    state: pa.Table
    """The state of each key, null where it has none."""
    exists: pa.Array
    """For each key, whether it has state."""
    timed_out: bool
    """Whether these are keys that have timed out."""
    goes_on: bool
    """Whether more rows of the last key follow in the next call."""
    processing_time_ms: int
    watermark_ms: int


@dataclass(frozen=True)
class Changes:
    """What a processor returns: rows to put out, and what becomes of the keys' state.

    `state` has a row for each key, or for each of `state_keys`, which are numbers of rows of
    `keys`. The keys in `removed` lose theirs. `timeouts` has, for each key, when it times out in
    milliseconds, null for never; a key whose state is neither given nor removed keeps its timeout
    where this is null.
    """

    output: pa.Table | pa.RecordBatch | None = None
    state: pa.Table | pa.RecordBatch | None = None
    state_keys: Any = None
    removed: Any = None
    timeouts: Any = None


class VectorizedProcessor(ABC):
    """To be implemented by users, and given to `sparkckpt.apply_vectorized`."""

    @abstractmethod
    def process(self, touched: Touched) -> Changes:
        """Called with some of the keys that have rows, and later with those that have timed out."""


@dataclass(frozen=True)
class VectorizedGroups:
    """What a worker runs."""

    processor: VectorizedProcessor
    output: "StructType"
    state: "StructType"

    def __call__(self, batches: Batches, control: Control) -> Batches:
        return _Call(self, Reader(batches), control).run()


@dataclass(frozen=True)
class _Held:
    """The key that goes on: its state as it is now, and what is to be told of it."""

    state: pa.StructArray
    operation: int
    timeout: int


class _Call:
    def __init__(self, groups: VectorizedGroups, reader: Reader, control: Control) -> None:
        from pyspark.sql.pandas.types import to_arrow_type

        from sparkckpt.processor.lifecycle import Lifecycle

        self._processor = groups.processor
        self._reader, self._control = reader, control
        # The types of what is sent: old values and new ones go back together.
        arrow = partial(
            to_arrow_type, timezone=control.timezone, prefers_large_types=control.large_types
        )
        self._output: pa.StructType = arrow(groups.output)
        self._state: pa.StructType = arrow(groups.state)
        self._life = Lifecycle(groups.processor, control)
        self._replies = Replies(self._output, update_type(self._state), self._life.keeps_state)
        self._held: _Held | None = None

    def run(self) -> Batches:
        done = 0
        self._life.begin()
        self._life.notify()
        for exchange in self._reader.pieces():
            yield self._process(exchange)
            done = exchange.number + len(exchange.firsts)
        blob = self._life.end()
        if blob is not None:
            yield self._replies.reply(done, operator_state=blob)

    def _process(self, exchange: Exchange) -> pa.RecordBatch:
        firsts = exchange.firsts
        first_number = exchange.number
        states = exchange.states().field(0)
        if self._held is not None:
            firsts = (0, *firsts)
            first_number -= 1
            states = pa.concat_arrays([self._held.state, states])
        touched = self._touched(exchange, np.array(firsts, np.int64), states)
        changes = self._processor.process(touched)
        if not isinstance(changes, Changes):
            raise VectorizedResultError("process", f"returned {type(changes).__name__}")
        outcome = _Outcome.of(changes, states, self._struct(changes.state, self._state, "state"))
        if self._held is not None:
            outcome.begin_with(self._held.operation, self._held.timeout)
        self._held = None
        finished = len(firsts)
        if exchange.open:
            finished -= 1
            self._held = _Held(*outcome.of_last())
        output = self._struct(changes.output, self._output, "output")
        return self._replies.reply(
            first_number + finished, output, outcome.updates(first_number, finished, self._state)
        )

    def _touched(self, exchange: Exchange, starts: Any, states: pa.StructArray) -> Touched:
        control, batch = self._control, exchange.batch
        rows = batch.select(list(control.value_offsets))
        lengths = np.diff(np.append(starts, batch.num_rows))
        if control.expired:
            rows, lengths = rows.slice(0, 0), np.zeros(len(starts), np.int64)
        where = pa.array(starts)
        keys = pa.RecordBatch.from_arrays(
            [batch.column(i).take(where) for i in control.key_offsets],
            [batch.schema.names[i] for i in control.key_offsets],
        )
        return Touched(
            rows=pa.Table.from_batches([rows]),
            key_index=pa.array(np.repeat(np.arange(len(starts), dtype=np.int32), lengths)),
            starts=starts,
            keys=pa.Table.from_batches([keys]),
            state=pa.Table.from_arrays(states.flatten(), names=[f.name for f in self._state]),
            exists=states.is_valid(),
            timed_out=control.expired,
            goes_on=exchange.open,
            processing_time_ms=control.batch_timestamp_ms,
            watermark_ms=control.watermark_ms,
        )

    def _struct(self, table: Any, kind: pa.StructType, what: str) -> pa.StructArray | None:
        if table is None:
            return None
        if not isinstance(table, (pa.Table, pa.RecordBatch)):
            raise VectorizedResultError(what, f"is a {type(table).__name__}")
        fields = [kind.field(i) for i in range(kind.num_fields)]
        if set(table.schema.names) != {field.name for field in fields}:
            wanted = ", ".join(field.name for field in fields)
            raise VectorizedResultError(
                what, f"has columns {', '.join(table.schema.names)} where {wanted} are expected"
            )
        columns = []
        for field in fields:
            column = table.column(field.name)
            if column.type != field.type:
                column = column.cast(field.type)
            columns.append(_whole(column))
        return pa.StructArray.from_arrays(columns, fields=fields)


class _Outcome:
    """For each key of an exchange: the operation, the timeout and where its new value is."""

    def __init__(self, operations: Any, timeouts: Any, places: Any, values: pa.StructArray) -> None:
        self._operations, self._timeouts, self._places = operations, timeouts, places
        self._values = values
        """The new values, and behind them the old ones, one for each key."""

    @classmethod
    def of(cls, changes: Changes, old: pa.StructArray, new: pa.StructArray | None) -> "_Outcome":
        length = len(old)
        operations = np.full(length, NOTHING, np.int8)
        timeouts = _timeouts(changes.timeouts, length)
        given = 0 if new is None else len(new)
        places = given + np.arange(length)
        if new is not None:
            keys = _numbers(changes.state_keys, length, "state_keys", default=np.arange(length))
            if len(keys) != given:
                raise VectorizedResultError("state", f"has {given} rows for {len(keys)} keys")
            operations[keys] = PUT
            places[keys] = np.arange(given)
        removed = _numbers(changes.removed, length, "removed", default=np.arange(0))
        if (operations[removed] == PUT).any():
            raise VectorizedResultError("removed", "has keys whose state is given, too")
        has_timeout = timeouts != NO_TIMESTAMP
        operations[removed] = CLEAR
        places[removed] = -1
        operations[has_timeout] = PUT
        return cls(operations, timeouts, places, old if new is None else _joined(new, old))

    def begin_with(self, operation: int, timeout: int) -> None:
        """What is still to be told of the first key, unless something else is now."""
        if self._operations[0] == NOTHING:
            self._operations[0] = operation
            self._timeouts[0] = timeout
            if operation == CLEAR:
                self._places[0] = -1

    def of_last(self) -> tuple[pa.StructArray, int, int]:
        return self._at(self._places[-1:]), int(self._operations[-1]), int(self._timeouts[-1])

    def updates(self, first: int, finished: int, kind: pa.StructType) -> pa.StructArray | None:
        operations = self._operations[:finished]
        where = np.flatnonzero(operations)
        if not len(where):
            return None
        columns = [
            pa.array(first + where, pa.int64()),
            pa.array(operations[where]),
            pa.array(self._timeouts[where]),
            self._at(self._places[where]),
        ]
        return pa.StructArray.from_arrays(columns, fields=list(update_type(kind)))

    def _at(self, places: Any) -> pa.StructArray:
        if len(places) and places[0] >= 0 and (np.diff(places) == 1).all():
            return self._values.slice(int(places[0]), len(places))
        return self._values.take(pa.array(places, mask=places < 0))


def _joined(new: pa.StructArray, old: pa.StructArray) -> pa.StructArray:
    return pa.concat_arrays([new, old])


def _timeouts(given: Any, length: int) -> Any:
    if given is None:
        return np.full(length, NO_TIMESTAMP, np.int64)
    array = _whole(given) if isinstance(given, (pa.Array, pa.ChunkedArray)) else pa.array(given)
    if len(array) != length:
        raise VectorizedResultError("timeouts", f"has {len(array)} values for {length} keys")
    return array.cast(pa.int64()).fill_null(NO_TIMESTAMP).to_numpy(zero_copy_only=False).copy()


def _numbers(given: Any, length: int, what: str, default: Any) -> Any:
    if given is None:
        return default
    array = _whole(given) if isinstance(given, (pa.Array, pa.ChunkedArray)) else given
    numbers = np.asarray(array, np.int64)
    if len(numbers) and not (numbers.min() >= 0 and numbers.max() < length):
        raise VectorizedResultError(what, f"has a number outside of the {length} keys")
    if len(np.unique(numbers)) != len(numbers):
        raise VectorizedResultError(what, "has a key twice")
    return numbers


def _whole(column: Any) -> pa.Array:
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    return column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
