"""The exchange between our operators in the executor's JVM and the Python worker, version 1.

The operator calls a function from record batches to record batches, once with the rows of the batch
sorted by key and once more with the keys whose time has come. The state of a key stands beside its
first row; keys never come back, they are counted in the order in which they were sent. A key may
span record batches, and only as much as one of them is held at a time.

Sent are the data columns, then `__flag` and `__state`. What comes back is `done`, which says how
many keys are finished; `output`; `update`, whose fields the operator decides; and the operator
state of the partition, where the processor keeps one. The updates of a record batch are applied
before its output is given out.
"""

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from sparkckpt.errors.processing import WireVersionError

VERSION = 1
CONTROL_PROPERTY = "sparkckpt.inband"
FIRST, MORE, EXPIRED = 1, 2, 4
NOTHING, PUT, CLEAR, APPEND, CLEAR_AND_APPEND = 0, 1, 2, 3, 4
NO_TIMESTAMP = -1

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class Control:
    """What the operator says about a call."""

    phase: str
    key_offsets: tuple[int, ...]
    value_offsets: tuple[int, ...]
    batch_timestamp_ms: int = NO_TIMESTAMP
    watermark_ms: int = NO_TIMESTAMP
    watermark_present: bool = False
    timeout_conf: str = "NoTimeout"
    time_mode: str = "None"
    timezone: str = "UTC"
    runner_conf: dict[str, str] = field(default_factory=dict)
    max_records: int = 10000
    batch_id: int | None = None
    fetch: tuple[int, str] | None = None
    operator_state: bytes | None = None
    completed_checkpoint_id: int | None = None

    @property
    def expired(self) -> bool:
        return self.phase == "timers"

    @property
    def large_types(self) -> bool:
        """Whether text and binary columns are sent as Arrow's large types."""
        return self.runner_conf.get("spark.sql.execution.arrow.useLargeVarTypes") == "true"

    @classmethod
    def from_json(cls, text: str) -> "Control":
        values = json.loads(text)
        if values["version"] != VERSION:
            raise WireVersionError(values["version"], VERSION)
        fetch, state = values.get("fetch"), values.get("operatorState")
        return cls(
            phase=values["phase"],
            key_offsets=tuple(values["keyOffsets"]),
            value_offsets=tuple(values["valueOffsets"]),
            batch_timestamp_ms=values["batchTimestampMs"],
            watermark_ms=values["watermarkMs"],
            watermark_present=values["watermarkPresent"],
            timeout_conf=values.get("timeoutConf", "NoTimeout"),
            time_mode=values.get("timeMode", "None"),
            timezone=values["timezone"],
            runner_conf=values.get("runnerConf", {}),
            max_records=values["maxRecordsPerBatch"],
            batch_id=values.get("batchId"),
            fetch=(fetch["port"], fetch["secret"]) if fetch else None,
            operator_state=base64.b64decode(state) if state is not None else None,
            completed_checkpoint_id=values.get("completedCheckpointId"),
        )

    @classmethod
    def of_task(cls) -> "Control":
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        text = context.getLocalProperty(CONTROL_PROPERTY)
        assert text is not None
        return cls.from_json(text)


@dataclass(frozen=True)
class Exchange:
    """The rows of one record batch from `start` on: those of `len(firsts)` keys.

    Rows before the first of `firsts` belong to a key that has begun in an earlier record batch. The
    last key is `open` if the next record batch goes on with it.
    """

    batch: pa.RecordBatch
    start: int
    firsts: tuple[int, ...]
    number: int
    """Of the first key that begins here."""
    open: bool

    @property
    def rows(self) -> int:
        return int(self.batch.num_rows)

    @property
    def ends(self) -> tuple[int, ...]:
        return (*self.firsts[1:], self.rows)

    def columns(self, offsets: Sequence[int]) -> list[pa.Array]:
        """The data columns at `offsets`, from `start` on."""
        columns = [self.batch.column(i) for i in offsets]
        return [c.slice(self.start) for c in columns] if self.start else columns

    def keys(self, offsets: Sequence[int]) -> list[pa.Array]:
        """The columns at `offsets`, one row for each key."""
        where = pa.array(self.firsts, pa.int64())
        return [self.batch.column(i).take(where) for i in offsets]

    def states(self) -> pa.StructArray:
        """One struct for each key."""
        return self.batch.column(self.batch.num_columns - 1).take(pa.array(self.firsts, pa.int64()))


class Reader:
    """Iterates over what is sent, a record batch at a time.

    `__next__` begins with the next key: what is left of the open key is skipped. Who wants it
    iterates over `more()` before. `pieces()` gives every record batch as it is instead.
    """

    def __init__(self, batches: Batches) -> None:
        self._batches = iter(batches)
        self._keys = 0
        self._current: Exchange | None = None
        self._continues = False
        self._pending: Exchange | None = None

    def __iter__(self) -> Iterator[Exchange]:
        return self

    def __next__(self) -> Exchange:
        for _ in self.more():
            pass
        exchange = self._pending or self._read()
        self._pending = None
        self._current, self._continues = exchange, exchange.open
        return exchange

    def more(self) -> Iterator[pa.RecordBatch]:
        """The further rows of the open key, as slices; none once the next key has begun."""
        return self._more_of(self._current)

    def _more_of(self, current: Exchange | None) -> Iterator[pa.RecordBatch]:
        while self._continues and self._current is current:
            exchange = self._read()
            end = exchange.firsts[0] if exchange.firsts else exchange.rows
            self._continues = exchange.open and not exchange.firsts
            if exchange.firsts:
                self._pending = replace(exchange, start=end)
            if end:
                yield exchange.batch.slice(0, end)

    def pieces(self) -> Iterator[Exchange]:
        while True:
            try:
                yield self._read()
            except StopIteration:
                return

    def _read(self) -> Exchange:
        batch = next(self._batches)
        flags = batch.column(batch.num_columns - 2).to_numpy(zero_copy_only=False)
        firsts = tuple(np.flatnonzero(flags & FIRST).tolist())
        is_open = len(flags) > 0 and bool(flags[-1] & MORE)
        exchange = Exchange(batch, 0, firsts, self._keys, is_open)
        self._keys += len(firsts)
        return exchange


class Replies:
    """Makes the record batches that go back; all of a call have the same schema."""

    def __init__(
        self, output: pa.StructType, update: pa.StructType, operator_state: bool = False
    ) -> None:
        self._output, self._update = output, update
        fields = [("done", pa.int64()), ("output", output), ("update", update)]
        if operator_state:
            fields.append(("operatorState", pa.binary()))
        self._schema = pa.schema(fields)

    def reply(
        self,
        done: int,
        output: pa.StructArray | None = None,
        update: pa.StructArray | None = None,
        operator_state: bytes | None = None,
    ) -> pa.RecordBatch:
        """Keys below `done` are finished; every other key's update must still be to come."""
        sizes = [len(column) for column in (output, update) if column is not None]
        length = max(1, *sizes) if sizes else 1
        columns = [
            _padded(pa.array([done], pa.int64()), pa.int64(), length),
            _padded(output, self._output, length),
            _padded(update, self._update, length),
        ]
        if len(self._schema) > len(columns):
            blob = pa.array([operator_state], pa.binary())
            columns.append(_padded(blob, pa.binary(), length))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


def _padded(column: pa.Array | None, kind: pa.DataType, length: int) -> pa.Array:
    if column is None:
        return pa.nulls(length, kind)
    if len(column) == length:
        return column
    return pa.concat_arrays([column, pa.nulls(length - len(column), kind)])
