"""What init() of a StatefulProcessor is given: on the driver to note what it asks for, in a task to
get it.
"""

from collections.abc import Callable, Iterator
from operator import index
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming.stateful_processor import (
    ListState,
    MapState,
    StatefulProcessorHandle,
    ValueState,
)
from pyspark.sql.types import StructType

from sparkckpt.errors.processing import UndeclaredStateError
from sparkckpt.processor.fetching import TIMERS
from sparkckpt.processor.variables import KINDS, Variable, VariableSpec

Schema = StructType | str


class RecordingHandle(StatefulProcessorHandle):
    """Notes the state variables of a processor; they hold nothing."""

    def __init__(self, parse: Callable[[Schema], StructType]) -> None:
        self._parse = parse
        self.variables: list[VariableSpec] = []
        self.deleted: list[str] = []

    def getValueState(
        self, stateName: str, schema: Schema, ttlDurationMs: int | None = None
    ) -> ValueState:
        state: ValueState = self._record(
            VariableSpec(stateName, "value", self._parse(schema), None, ttlDurationMs)
        )
        return state

    def getListState(
        self, stateName: str, schema: Schema, ttlDurationMs: int | None = None
    ) -> ListState:
        state: ListState = self._record(
            VariableSpec(stateName, "list", self._parse(schema), None, ttlDurationMs)
        )
        return state

    def getMapState(
        self,
        stateName: str,
        userKeySchema: Schema,
        valueSchema: Schema,
        ttlDurationMs: int | None = None,
    ) -> MapState:
        value, key = self._parse(valueSchema), self._parse(userKeySchema)
        state: MapState = self._record(VariableSpec(stateName, "map", value, key, ttlDurationMs))
        return state

    def deleteIfExists(self, stateName: str) -> None:
        self.deleted.append(stateName)

    def _record(self, spec: VariableSpec) -> Any:
        self.variables.append(spec)
        return KINDS[spec.kind](spec, "UTC", _nothing)


class InBandHandle(StatefulProcessorHandle):
    """The variables and timers of the key that is being processed."""

    def __init__(
        self,
        specs: tuple[VariableSpec, ...],
        zone: str,
        time_mode: str,
        fetch: Callable[[int], pa.Table],
    ) -> None:
        self._names = [spec.name for spec in specs]
        self.variables: list[Variable] = [
            KINDS[spec.kind](spec, zone, _fetching(fetch, i)) for i, spec in enumerate(specs)
        ]
        self._has_timers = time_mode.lower() != "none"
        self._fetch = fetch
        self._time_mode = time_mode
        self._timers: set[int] | None = None
        self.timer_changes: list[tuple[int, bool]] = []
        self.is_initialized = False

    def getValueState(
        self, stateName: str, schema: Schema, ttlDurationMs: int | None = None
    ) -> ValueState:
        state: ValueState = self._variable("get_value_state", stateName)
        return state

    def getListState(
        self, stateName: str, schema: Schema, ttlDurationMs: int | None = None
    ) -> ListState:
        state: ListState = self._variable("get_list_state", stateName)
        return state

    def getMapState(
        self,
        stateName: str,
        userKeySchema: Schema,
        valueSchema: Schema,
        ttlDurationMs: int | None = None,
    ) -> MapState:
        state: MapState = self._variable("get_map_state", stateName)
        return state

    def registerTimer(self, expiryTimestampMs: int) -> None:
        self._require_timers("register_timer", "Error register timer")
        self._change_timer(expiryTimestampMs, True)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        self._require_timers("delete_timer", "Error deleting timer")
        self._change_timer(expiryTimestampMs, False)

    def listTimers(self) -> Iterator[int]:
        if not self._has_timers:
            return
        if self._timers is None:
            self._timers = set(self._fetch(TIMERS).column(0).to_pylist())
            for timestamp, is_registered in self.timer_changes:
                self._note(timestamp, is_registered)
        yield from sorted(self._timers)

    def deleteIfExists(self, stateName: str) -> None:
        """The operator has done so when it began."""
        if self.is_initialized:
            raise self._wrong_time("delete_if_exists", "Error deleting state")

    def forget_timers(self) -> None:
        self._timers = None
        self.timer_changes = []

    def _change_timer(self, timestamp: int, is_registered: bool) -> None:
        timestamp = _milliseconds(timestamp)
        self.timer_changes.append((timestamp, is_registered))
        if self._timers is not None:
            self._note(timestamp, is_registered)

    def _note(self, timestamp: int, is_registered: bool) -> None:
        assert self._timers is not None
        if is_registered:
            self._timers.add(timestamp)
        else:
            self._timers.discard(timestamp)

    def _variable(self, operation: str, name: str) -> Any:
        if self.is_initialized:
            kind = operation.split("_")[1]
            raise self._wrong_time(operation, f"Error initializing {kind} state")
        if name not in self._names:
            raise UndeclaredStateError(name, self._names)
        return self.variables[self._names.index(name)]

    def _wrong_time(self, operation: str, prefix: str) -> PySparkRuntimeError:
        return PySparkRuntimeError(
            f"{prefix}: [STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE] "
            f"Failed to perform stateful processor operation={operation} with invalid handle "
            "state=INITIALIZED. SQLSTATE: 42802"
        )

    def _require_timers(self, operation: str, prefix: str) -> None:
        if not self.is_initialized:
            raise PySparkRuntimeError(
                f"{prefix}: [STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_HANDLE_STATE]"
                f" Failed to perform stateful processor operation={operation} with invalid handle "
                "state=CREATED. SQLSTATE: 42802"
            )
        if not self._has_timers:
            raise PySparkRuntimeError(
                f"{prefix}: [STATEFUL_PROCESSOR_CANNOT_PERFORM_OPERATION_WITH_INVALID_TIME_MODE] "
                f"Failed to perform stateful processor operation={operation} with invalid "
                f"timeMode={self._time_mode} SQLSTATE: 42802"
            )


def _milliseconds(timestamp: Any) -> int:
    """A time as Spark takes it, whether or not it has passed; nothing is rounded."""
    if isinstance(timestamp, bool):
        raise TypeError(f"The time of a timer must be an int of milliseconds, not {timestamp}.")
    milliseconds = index(timestamp)
    if not -(2**63) <= milliseconds < 2**63:
        raise ValueError(f"The time of a timer is out of range: {milliseconds} ms.")
    return milliseconds


def _nothing() -> pa.Table:
    raise PySparkRuntimeError("init() can ask for state variables, and not read them.")


def _fetching(fetch: Callable[[int], pa.Table], variable: int) -> Callable[[], pa.Table]:
    return lambda: fetch(variable)
