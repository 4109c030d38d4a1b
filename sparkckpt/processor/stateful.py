"""Unchanged StatefulProcessors, of rows and of pandas frames, with their state in-band.

The life of a processor is Spark's: init, the rows of each key, the expired timers, close; only that
input and timers are two calls of the worker, each with a processor of its own. `flavours` has what
differs between rows and frames.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa

from sparkckpt.processor.wire import Batches, Control, Exchange, Reader, Replies

if TYPE_CHECKING:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor
    from pyspark.sql.types import StructType

    from sparkckpt.processor.variables import VariableSpec

Flavour = Literal["rows", "pandas"]


@dataclass(frozen=True)
class ProcessorGroups:
    """What a worker runs."""

    processor: "StatefulProcessor"
    output: "StructType"
    flavour: Flavour
    time_mode: str
    variables: tuple["VariableSpec", ...]

    def __call__(self, batches: Batches, control: Control) -> Batches:
        return _Call(self, Reader(batches), control).run()


class _Call:
    def __init__(self, groups: ProcessorGroups, reader: Reader, control: Control) -> None:
        from pyspark.sql.streaming.stateful_processor import TimerValues

        from sparkckpt.processor.fetching import Fetcher
        from sparkckpt.processor.flavours import PandasFlavour, RowFlavour
        from sparkckpt.processor.handles import InBandHandle
        from sparkckpt.processor.lifecycle import Lifecycle
        from sparkckpt.processor.processorupdates import ProcessorUpdates

        self._processor = groups.processor
        self._reader, self._control = reader, control
        flavour = RowFlavour if groups.flavour == "rows" else PandasFlavour
        self._flavour = flavour(groups.output, control)
        self._fetcher = Fetcher(*control.fetch) if control.fetch else None
        self._handle = InBandHandle(
            groups.variables, control.timezone, groups.time_mode, self._fetch
        )
        self._updates = ProcessorUpdates(self._handle)
        self._life = Lifecycle(groups.processor, control)
        self._replies = Replies(self._flavour.arrow, self._updates.arrow, self._life.keeps_state)
        is_timed = groups.time_mode.lower() != "none"
        self._times = TimerValues(
            control.batch_timestamp_ms if is_timed else -1,
            control.watermark_ms if is_timed else -1,
        )
        self._number = 0

    def run(self) -> Batches:
        done = 0
        try:
            self._life.begin()
            self._processor.init(self._handle)
            self._handle.is_initialized = True
            self._life.notify()
            process = self._process_timers if self._control.expired else self._process_rows
            for exchange in self._reader:
                yield from process(exchange)
                done = exchange.number + len(exchange.firsts)
                yield self._flush(done)
            blob = self._life.end()
            self._processor.close()
            if blob is not None:
                yield self._replies.reply(done, operator_state=blob)
        finally:
            if self._fetcher is not None:
                self._fetcher.close()

    def _process_rows(self, exchange: Exchange) -> Batches:
        processor, flavour, times, add = (
            self._processor,
            self._flavour,
            self._times,
            self._updates.add,
        )
        keys = flavour.keys(exchange)
        rows_between = flavour.rows(exchange.batch)
        begin = self._beginning(exchange)
        last = len(keys) - 1 if exchange.open else -1
        add_output = flavour.add
        for i, (key, start, end) in enumerate(
            zip(keys, exchange.firsts, exchange.ends, strict=True)
        ):
            self._number = number = exchange.number + i
            begin(i)
            rows = rows_between(start, end)
            if i == last:
                rows = flavour.with_more(rows, self._reader)
            for result in processor.handleInputRows(key, rows, times):
                if add_output(result):
                    yield self._flush(number)
            add(number)

    def _process_timers(self, exchange: Exchange) -> Batches:
        from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo

        keys = self._flavour.keys(exchange)
        begin = self._beginning(exchange)
        states = exchange.states()
        expired = states.field(states.type.num_fields - 1).to_pylist()
        for i, key in enumerate(keys):
            self._number = number = exchange.number + i
            begin(i)
            for timestamp in expired[i]:
                for result in self._processor.handleExpiredTimer(
                    key=key, timerValues=self._times, expiredTimerInfo=ExpiredTimerInfo(timestamp)
                ):
                    if self._flavour.add(result):
                        yield self._flush(number)
                self._handle.deleteTimer(timestamp)
            self._updates.add(number)

    def _beginning(self, exchange: Exchange) -> Any:
        """Sets the state of the i-th key of the exchange."""
        states, handle = exchange.states(), self._handle
        columns = states.flatten()
        begins = [
            (variable.begin, variable.read(column))
            for variable, column in zip(handle.variables, columns, strict=False)
        ]

        def begin(i: int) -> None:
            for begin_variable, values in begins:
                begin_variable(values[i])
            handle.forget_timers()

        return begin

    def _fetch(self, variable: int) -> pa.Table:
        assert self._fetcher is not None
        return self._fetcher.fetch(self._number, variable)

    def _flush(self, done: int) -> pa.RecordBatch:
        return self._replies.reply(done, self._flavour.take(), self._updates.take())
