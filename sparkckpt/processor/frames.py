"""Unchanged functions of applyInPandasWithState: a key, its pandas frames and its GroupState.

Keys, frames, calls, checks and messages are those of Spark's own Python worker. What is other is
when things are converted: the rows of a record batch together, and its output together.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sparkckpt.processor.wire import NO_TIMESTAMP, Batches, Control, Exchange, Reader, Replies

if TYPE_CHECKING:
    from pandas import DataFrame
    from pyspark.sql.streaming.state import GroupState
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class PandasGroups:
    """What a worker runs; calling it processes what one task sends."""

    function: Callable[..., Any]
    output: "StructType"
    state: "StructType"

    def __call__(self, batches: Batches, control: Control) -> Batches:
        return _Call(self, Reader(batches), control).run()


class _Call:
    def __init__(self, groups: PandasGroups, reader: Reader, control: Control) -> None:
        from sparkckpt.processor.groupstates import GroupUpdates, update_type
        from sparkckpt.processor.pandasframes import FrameOutput, PandasConfs
        from sparkckpt.processor.statevalues import StateSchema

        self._function = groups.function
        self._reader, self._control = reader, control
        self._confs = PandasConfs(control.runner_conf, control.timezone)
        self._states = StateSchema(groups.state, control.timezone)
        self._output = FrameOutput(groups.output, self._confs, control.max_records)
        self._updates = GroupUpdates(self._states.write)
        self._replies = Replies(self._output.arrow, update_type(self._states.arrow))

    def run(self) -> Batches:
        for exchange in self._reader:
            yield from self._process(exchange)
            yield self._flush(exchange.number + len(exchange.firsts))

    def _process(self, exchange: Exchange) -> Batches:
        from sparkckpt.processor.pandasframes import Frames, keys_of

        offsets = self._control.key_offsets
        keys = keys_of(exchange.keys(offsets), self._confs, len(exchange.firsts))
        states = self._group_states(exchange)
        frames = Frames(self._values(exchange.batch), self._confs)
        last = len(keys) - 1
        for i, (start, end) in enumerate(zip(exchange.firsts, exchange.ends, strict=True)):
            if self._control.expired:
                values: Iterable[DataFrame] = [frames.none()]
            elif i == last and exchange.open:
                values = chain((frames.cut(start, end),), self._frames_of(self._reader.more()))
            else:
                values = iter((frames.cut(start, end),))
            number, state = exchange.number + i, states[i]
            for frame in _checked_iterable(self._function(keys[i], values, state)):
                if self._output.add(frame):
                    yield self._flush(number)
            self._save(number, state)

    def _frames_of(self, batches: Batches) -> Iterator["DataFrame"]:
        from sparkckpt.processor.pandasframes import Frames

        for batch in batches:
            yield Frames(self._values(batch), self._confs).cut(0, batch.num_rows)

    def _values(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch.select(list(self._control.value_offsets))

    def _group_states(self, exchange: Exchange) -> list["GroupState"]:
        from pyspark.sql.streaming.state import GroupState

        control, schema = self._control, self._states.schema
        has_timed_out = control.expired
        return [
            GroupState(
                value,  # type: ignore[arg-type]
                control.batch_timestamp_ms,
                control.watermark_ms,
                control.timeout_conf,
                has_timed_out,
                control.watermark_present,
                value is not None,
                False,
                False,
                NO_TIMESTAMP,
                b"",
                schema,
            )
            for value in self._states.read(exchange.states().field(0))
        ]

    def _save(self, number: int, state: "GroupState") -> None:
        timeout = int(state._timeout_timestamp)
        if state._removed and timeout == NO_TIMESTAMP:
            self._updates.remove(number)
        elif state._updated or state._removed or timeout != state.oldTimeoutTimestamp:
            value = self._states.adopt(state._value) if state.exists else None
            self._updates.put(number, value, timeout)

    def _flush(self, done: int) -> pa.RecordBatch:
        return self._replies.reply(done, self._output.take(), self._updates.take())


def _checked_iterable(result: Any) -> Iterator[Any]:
    import pandas as pd
    from pyspark.errors import PySparkTypeError

    expected = "iterable"
    if isinstance(result, pd.DataFrame):
        expected = "iterable of pandas.DataFrame"
    else:
        try:
            return iter(result)
        except TypeError:
            pass
    raise PySparkTypeError(
        errorClass="UDF_RETURN_TYPE",
        messageParameters={"expected": expected, "actual": type(result).__name__},
    )
