"""The operator's part in the exchange with a processor, in memory.

Rows are sorted into keys, cut into record batches with the state beside each key, and sent to the
function that a Python worker would run; updates are applied before output is taken, and what the
protocol forbids raises AssertionError. A batch has Spark's order: first input, then what expired.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_type

from sparkckpt.processor.userkeys import exact
from sparkckpt.processor.wire import EXPIRED, FIRST, MORE, NO_TIMESTAMP, Batches, Control
from sparkckpt.testing.ddl import parse_schema
from sparkckpt.testing.fetches import SECRET, FetchServer
from sparkckpt.testing.stores import GroupStore, Key, Now, ProcessorStore, Store

Schema = T.StructType | str
Row = tuple[Any, ...]
Run = Callable[[Batches, Control], Batches]


class ProcessorTester:
    """One partition of a query with one stateful operator; made by its `of_...` methods.

    >>> output = "k string, t long"
    >>> tester = ProcessorTester.of_rows(total, "k string, v long", ["k"], output, "t long")
    >>> tester.process([("a", 1), ("b", 2), ("a", 3)])
    [('a', 4), ('b', 2)]
    >>> tester.state("a")
    {'t': 4}
    """

    def __init__(
        self,
        run: Run,
        input_schema: T.StructType,
        keys: Sequence[str],
        store: Store,
        modes: dict[str, Any],
        now: Now,
        batch_rows: int = 10_000,
        timezone: str = "UTC",
    ) -> None:
        self._run, self._store, self._modes, self._now = run, store, modes, now
        self._schema = input_schema
        self._offsets = [input_schema.names.index(key) for key in keys]
        self._types: pa.StructType = to_arrow_type(input_schema, timezone=timezone)
        self._timezone, self.batch_rows = timezone, batch_rows
        self._batch_id = -1
        self.operator_state: bytes | None = None
        self.runner_conf: dict[str, str] = {}
        self._key_values: dict[Key, Row] = {}
        self._completed: int | None = None

    @classmethod
    def of_processor(
        cls,
        processor: Any,
        input_schema: Schema,
        keys: Sequence[str],
        output_schema: Schema,
        time_mode: str = "None",
        pandas: bool = False,
        **options: Any,
    ) -> "ProcessorTester":
        """Of a StatefulProcessor: of rows, as for transformWithState, or of pandas frames."""
        from sparkckpt.processor.handles import RecordingHandle
        from sparkckpt.processor.stateful import ProcessorGroups
        from sparkckpt.processor.variables import KINDS

        handle = RecordingHandle(parse_schema)
        processor.init(handle)
        zone = options.get("timezone", "UTC")
        specs = tuple(handle.variables)
        types = [KINDS[spec.kind](spec, zone, pa.table).arrow for spec in specs]
        now = Now(0)
        run = ProcessorGroups(
            processor, parse_schema(output_schema), "pandas" if pandas else "rows", time_mode, specs
        )
        store = ProcessorStore(specs, types, time_mode, now)
        modes: dict[str, Any] = {"time_mode": time_mode}
        return cls(run, parse_schema(input_schema), keys, store, modes, now, **options)

    @classmethod
    def of_pandas(
        cls,
        function: Callable[..., Any],
        input_schema: Schema,
        keys: Sequence[str],
        output_schema: Schema,
        state_schema: Schema,
        timeout: str = "NoTimeout",
        **options: Any,
    ) -> "ProcessorTester":
        """Of a function of applyInPandasWithState."""
        from sparkckpt.processor.frames import PandasGroups

        output, state = parse_schema(output_schema), parse_schema(state_schema)
        run = PandasGroups(function, output, state)
        return cls._of_groups(run, input_schema, keys, state, timeout, options)

    @classmethod
    def of_rows(
        cls,
        function: Callable[..., Any],
        input_schema: Schema,
        keys: Sequence[str],
        output_schema: Schema,
        state_schema: Schema,
        timeout: str = "NoTimeout",
        **options: Any,
    ) -> "ProcessorTester":
        """Of a function of sparkckpt.apply_rows."""
        from sparkckpt.processor.rows import RowGroups

        output, state = parse_schema(output_schema), parse_schema(state_schema)
        run = RowGroups(function, output, state)
        return cls._of_groups(run, input_schema, keys, state, timeout, options)

    @classmethod
    def of_vectorized(
        cls,
        processor: Any,
        input_schema: Schema,
        keys: Sequence[str],
        output_schema: Schema,
        state_schema: Schema,
        timeout: str = "NoTimeout",
        **options: Any,
    ) -> "ProcessorTester":
        """Of a sparkckpt.VectorizedProcessor."""
        from sparkckpt.processor.vectorized import VectorizedGroups

        output, state = parse_schema(output_schema), parse_schema(state_schema)
        run = VectorizedGroups(processor, output, state)
        return cls._of_groups(run, input_schema, keys, state, timeout, options)

    @classmethod
    def _of_groups(
        cls,
        run: Run,
        input_schema: Schema,
        keys: Sequence[str],
        state: T.StructType,
        timeout: str,
        options: dict[str, Any],
    ) -> "ProcessorTester":
        arrow = to_arrow_type(state, timezone=options.get("timezone", "UTC"))
        store = GroupStore(arrow, timeout)
        modes = {"timeout_conf": timeout}
        return cls(run, parse_schema(input_schema), keys, store, modes, Now(0), **options)

    def set_processing_time(self, milliseconds: int) -> None:
        """Of the batches from now on."""
        self._now.processing_ms = milliseconds

    def set_watermark(self, milliseconds: int) -> None:
        self._now.watermark_ms = milliseconds

    def complete_checkpoint(self, checkpoint_id: int) -> None:
        """The next batch tells the processor."""
        self._completed = checkpoint_id

    def process(self, rows: Iterable[Sequence[Any]] = ()) -> list[Row]:
        """Runs a batch, and returns the rows that it puts out."""
        self._batch_id += 1
        groups = self._grouped(list(rows))
        output = self._call("input", groups)
        due = [(key, [self._key_row(key)], at) for key, at in self._store.expired(self._now)]
        output += self._call("timers", due)
        self._completed = None
        return output

    def state(self, *key: Any) -> Any:
        """Of a key: its state as a dict of its fields, None if there is none; or with a
        StatefulProcessor, by the names of its variables, what each has. It is a copy."""
        frozen = exact(key)
        if isinstance(self._store, GroupStore):
            return deepcopy(self._store.values.get(frozen))
        assert isinstance(self._store, ProcessorStore)
        return {
            spec.name: deepcopy(self._store.value(frozen, i))
            for i, spec in enumerate(self._store._specs)
        }

    def timeout(self, *key: Any) -> int | None:
        assert isinstance(self._store, GroupStore)
        timeout = self._store.timeouts.get(exact(key), NO_TIMESTAMP)
        return None if timeout == NO_TIMESTAMP else timeout

    def timers(self, *key: Any) -> list[int]:
        assert isinstance(self._store, ProcessorStore)
        state = self._store.keys.get(exact(key))
        return sorted(state.timers) if state else []

    def send_all_state(self, sends: bool = True) -> None:
        """Whether lists and maps come beside the rows, as they do once they have been asked for."""
        assert isinstance(self._store, ProcessorStore)
        self._store.sends_all = sends

    @property
    def fetches(self) -> int:
        """How often state has been fetched that was not sent."""
        return self._store.fetches if isinstance(self._store, ProcessorStore) else 0

    def operator_states(self) -> dict[str, list[Any]]:
        """The items of each operator state of this partition."""
        from sparkckpt.processor.operatorstate import OperatorStateContext

        context = OperatorStateContext(self.operator_state)
        return {name: state.get() for name, state in context._states.items()}

    def _grouped(self, rows: list[Sequence[Any]]) -> list[tuple[Key, list[Row], None]]:
        groups: dict[Key, list[Row]] = {}
        for row in rows:
            key = tuple(row[i] for i in self._offsets)
            frozen = exact(key)
            self._key_values.setdefault(frozen, key)
            groups.setdefault(frozen, []).append(tuple(row))
        return [(key, of_key, None) for key, of_key in groups.items()]

    def _key_row(self, key: Key) -> Row:
        row: list[Any] = [None] * len(self._schema.fields)
        for offset, value in zip(self._offsets, self._key_values[key], strict=True):
            row[offset] = value
        return tuple(row)

    def _call(self, phase: str, groups: list[Any]) -> list[Row]:
        if not groups:
            return []
        call = _Call(self, groups, EXPIRED if phase == "timers" else 0)
        with FetchServer(call.fetch) as server:
            control = Control(
                phase=phase,
                key_offsets=tuple(self._offsets),
                value_offsets=tuple(range(len(self._schema.fields))),
                batch_timestamp_ms=self._now.processing_ms,
                watermark_ms=self._now.watermark_ms,
                watermark_present=self._now.watermark_ms != NO_TIMESTAMP,
                timezone=self._timezone,
                runner_conf=self.runner_conf,
                batch_id=self._batch_id,
                fetch=(server.port, SECRET),
                operator_state=self.operator_state,
                completed_checkpoint_id=self._completed,
                **self._modes,
            )
            return call.take(self._run(call.batches(), control))


class _Call:
    """One call of the worker: what is under way in it."""

    def __init__(self, tester: ProcessorTester, groups: list[Any], flag: int) -> None:
        self._tester, self._groups, self._flag = tester, groups, flag
        self._sent = self._done = 0

    def fetch(self, number: int, variable: int) -> pa.Table:
        if not self._done <= number < self._sent:
            raise LookupError(f"key {number} is not being processed")
        store = self._tester._store
        assert isinstance(store, ProcessorStore)
        return store.fetch(self._groups[number][0], variable)

    def batches(self) -> Iterator[pa.RecordBatch]:
        limit = self._tester.batch_rows
        rows: list[Row] = []
        flags: list[int] = []
        states: list[Any] = []
        for i, (key, of_key, expired) in enumerate(self._groups):
            state: Any = self._tester._store.sent(key, expired)
            flag = FIRST | self._flag
            self._sent = i + 1
            for j, row in enumerate(of_key):
                if len(rows) >= 2 * limit:
                    flags[-1] |= MORE * (j > 0)
                    yield self._batch(rows, flags, states)
                    rows, flags, states = [], [], []
                rows.append(row)
                flags.append(flag)
                states.append(state)
                flag, state = 0, None
            if len(rows) >= limit:
                yield self._batch(rows, flags, states)
                rows, flags, states = [], [], []
        if rows:
            yield self._batch(rows, flags, states)

    def take(self, replies: Batches) -> list[Row]:
        output: list[Row] = []
        schema = None
        for reply in replies:
            assert schema in (None, reply.schema), "the schema of the replies changes"
            schema = reply.schema
            self._apply(reply.column("update").to_pylist())
            done = reply.column("done").to_pylist()
            assert done[1:] == [None] * (len(done) - 1), "done stands on the first row only"
            assert self._done <= done[0] <= self._sent, "keys are finished that were not sent"
            self._done = done[0]
            output += [tuple(row.values()) for row in reply.column("output").to_pylist() if row]
            if "operatorState" in reply.schema.names:
                blob = reply.column("operatorState")[0].as_py()
                self._tester.operator_state = blob or self._tester.operator_state
        assert self._done == len(self._groups), "it ended before all keys were finished"
        return output

    def _apply(self, updates: list[Any]) -> None:
        updates = [update for update in updates if update]
        ordinals = [update["ordinal"] for update in updates]
        assert ordinals == sorted(set(ordinals)), "updates do not ascend"
        for update in updates:
            number = update["ordinal"]
            assert self._done <= number < self._sent, f"key {number} is not under way"
            self._tester._store.update(self._groups[number][0], update)

    def _batch(self, rows: list[Row], flags: list[int], states: list[Any]) -> pa.RecordBatch:
        types = self._tester._types
        columns = [
            pa.array(values, types.field(i).type)
            for i, values in enumerate(zip(*rows, strict=True))
        ]
        state = pa.array(states, self._tester._store.sent_type)
        return pa.RecordBatch.from_arrays(
            [*columns, pa.array(flags, pa.int8()), state],
            [*(field.name for field in types), "__flag", "__state"],
        )


def redistribute(testers: Sequence[ProcessorTester], new: Sequence[ProcessorTester]) -> None:
    """Gives the operator state of some partitions to others, as a rescale does."""
    from sparkckpt.format.operatorstate import read_blob, write_blob
    from sparkckpt.format.redistribution import redistribute as shares_of

    written = [read_blob(t.operator_state, "a tester") if t.operator_state else () for t in testers]
    for tester, share in zip(new, shares_of(written, len(new)), strict=True):
        tester.operator_state = write_blob(share)
