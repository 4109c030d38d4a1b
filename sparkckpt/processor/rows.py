"""Plain functions over the rows of a key: tuples in, tuples out, one state value per key.

The shortest way between a stream and Python. Values are what Arrow's `as_py` gives: timestamps have
the session's time zone, and one without a time zone that a function returns is taken to be in it.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sparkckpt.processor.wire import NO_TIMESTAMP, Batches, Control, Exchange, Reader, Replies

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

Row = tuple[Any, ...]
RowFunction = Callable[[Row, Iterator[Row], "RowState"], Iterable[Row]]


class RowState:
    """The state of one key, as long as the function runs for it."""

    __slots__ = ("_call", "_changed", "_removed", "_timeout", "_value")

    def __init__(self, value: Row | None, call: "RowCall") -> None:
        self._value = value
        self._call = call
        self._changed = self._removed = False
        self._timeout = NO_TIMESTAMP

    @property
    def exists(self) -> bool:
        return self._value is not None

    def get(self) -> Row | None:
        """The value, None if there is none."""
        return self._value

    def update(self, value: Row) -> None:
        if value is None:
            raise TypeError("The state of a key cannot be None: call remove().")
        self._value = value
        self._changed = True
        self._removed = False

    def remove(self) -> None:
        self._value = None
        self._removed = True

    @property
    def timed_out(self) -> bool:
        """Whether the function runs because the key has timed out, and so without rows."""
        return self._call.control.expired

    def set_timeout_duration(self, duration_ms: int) -> None:
        """Time out this long after the time of the batch, if no rows come before."""
        self._call.require_timeout("ProcessingTimeTimeout", "set_timeout_duration")
        if duration_ms <= 0:
            raise ValueError(f"A timeout must be positive, not {duration_ms} ms.")
        self._timeout = self._call.control.batch_timestamp_ms + int(duration_ms)

    def set_timeout_timestamp(self, timestamp_ms: int) -> None:
        """Time out once the watermark has passed this time, if no rows come before."""
        self._call.require_timeout("EventTimeTimeout", "set_timeout_timestamp")
        watermark = self._call.control.watermark_ms
        if timestamp_ms <= 0 or (watermark != NO_TIMESTAMP and timestamp_ms < watermark):
            raise ValueError(
                f"A timeout must be positive and not before the watermark, {watermark} ms: "
                f"{timestamp_ms} is."
            )
        self._timeout = int(timestamp_ms)

    @property
    def watermark_ms(self) -> int:
        """-1 where the query has no watermark, and before it has one."""
        return self._call.control.watermark_ms

    @property
    def processing_time_ms(self) -> int:
        """The time of the batch, the same when it is run again."""
        return self._call.control.batch_timestamp_ms


@dataclass(frozen=True)
class RowGroups:
    """What a worker runs."""

    function: RowFunction
    output: "StructType"
    state: "StructType"

    def __call__(self, batches: Batches, control: Control) -> Batches:
        return RowCall(self, Reader(batches), control).run()


class RowCall:
    """One call of the worker."""

    def __init__(self, groups: RowGroups, reader: Reader, control: Control) -> None:
        from pyspark.sql.pandas.types import to_arrow_type

        from sparkckpt.processor.copies import copier
        from sparkckpt.processor.groupstates import GroupUpdates, update_type
        from sparkckpt.processor.values import from_tuples, zone_of

        self.control = control
        self._function = groups.function
        self._reader = reader
        zone = zone_of(control.timezone)
        state = to_arrow_type(groups.state, timezone=control.timezone)
        output = to_arrow_type(groups.output, timezone=control.timezone)
        self._to_output: Callable[[list[Row]], pa.StructArray] = partial(
            from_tuples, kind=output, naive=zone
        )
        self._copy_output, self._copy_state = copier(groups.output), copier(groups.state)
        self._updates = GroupUpdates(lambda values: from_tuples(values, state, zone))
        self._replies = Replies(output, update_type(state))
        self._limit = control.max_records if control.max_records > 0 else 2**31 - 1

    def run(self) -> Batches:
        for exchange in self._reader:
            yield from self._process(exchange)

    def _process(self, exchange: Exchange) -> Batches:
        from sparkckpt.processor.values import rows_of, to_tuples

        control, function = self.control, self._function
        keys = to_tuples(exchange.keys(control.key_offsets), len(exchange.firsts))
        values = rows_of(exchange.states().field(0))
        rows = [] if control.expired else self._rows(exchange.batch)
        last = len(keys) - 1 if exchange.open else -1
        output: list[Row] = []
        number = exchange.number
        spans = zip(keys, exchange.firsts, exchange.ends, strict=True)
        for i, (key, start, end) in enumerate(spans):
            state = RowState(values[i], self)
            of_key = iter(rows[start:end])
            if i == last:
                of_key = chain(of_key, self._rows_of(self._reader.more()))
            for row in function(key, of_key, state):
                output.append(row if self._copy_output is None else self._copy_output(row))
                if len(output) > self._limit:
                    yield self._reply(number, output)
                    output = []
            if state._changed or state._removed or state._timeout != NO_TIMESTAMP:
                self._save(number, state)
            number += 1
        yield self._reply(number, output)

    def _reply(self, done: int, output: list[Row]) -> pa.RecordBatch:
        return self._replies.reply(
            done, self._to_output(output) if output else None, self._updates.take()
        )

    def _rows(self, batch: pa.RecordBatch) -> list[Row]:
        from sparkckpt.processor.values import to_tuples

        return to_tuples([batch.column(i) for i in self.control.value_offsets], batch.num_rows)

    def _rows_of(self, batches: Batches) -> Iterator[Row]:
        for batch in batches:
            yield from self._rows(batch)

    def _save(self, number: int, state: RowState) -> None:
        if state._removed and state._timeout == NO_TIMESTAMP:
            self._updates.remove(number)
        else:
            value = state._value
            if value is not None and self._copy_state is not None:
                value = self._copy_state(value)
            self._updates.put(number, value, state._timeout)

    def require_timeout(self, conf: str, what: str) -> None:
        if self.control.timeout_conf != conf:
            raise RuntimeError(
                f"{what} needs timeout={conf!r} in apply_rows, which was called with "
                f"{self.control.timeout_conf!r}."
            )
