"""Updates of operators with state variables and timers: an operation for each that has changed."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from sparkckpt.processor.handles import InBandHandle
from sparkckpt.processor.variables import Variable, listed
from sparkckpt.processor.wire import NOTHING

_TIMER_CHANGE = pa.struct([("timestampMs", pa.int64()), ("register", pa.bool_())])


def update_type(variables: Sequence[Variable]) -> pa.StructType:
    fields = [pa.field("ordinal", pa.int64())]
    for i, variable in enumerate(variables):
        fields += [pa.field(f"op{i}", pa.int8()), pa.field(f"v{i}", variable.arrow)]
    return pa.struct([*fields, pa.field("timers", pa.list_(_TIMER_CHANGE))])


class ProcessorUpdates:
    """Collects what the keys have changed, in their order."""

    def __init__(self, handle: InBandHandle) -> None:
        self._handle = handle
        self._type = update_type(handle.variables)
        self._clear()

    @property
    def arrow(self) -> pa.StructType:
        return self._type

    def add(self, number: int) -> None:
        """What the current key has changed, if anything; its changes end with this."""
        handle = self._handle
        for variable in handle.variables:
            if variable.operation:
                break
        else:
            if not handle.timer_changes:
                return
        self._ordinals.append(number)
        for i, variable in enumerate(handle.variables):
            operation = variable.operation
            self._operations[i].append(operation)
            self._changes[i].append(None if operation == NOTHING else variable.take_change())
        self._timers.append(handle.timer_changes or None)

    def take(self) -> pa.StructArray | None:
        if not self._ordinals:
            return None
        columns = [pa.array(self._ordinals, pa.int64())]
        for variable, operations, changes in zip(
            self._handle.variables, self._operations, self._changes, strict=True
        ):
            columns += [pa.array(operations, pa.int8()), variable.write(changes)]
        columns.append(listed(self._timers, _timer_changes))
        self._clear()
        return pa.StructArray.from_arrays(columns, fields=list(self._type))

    def _clear(self) -> None:
        width = len(self._handle.variables)
        self._ordinals: list[int] = []
        self._operations: list[list[int]] = [[] for _ in range(width)]
        self._changes: list[list[Any]] = [[] for _ in range(width)]
        self._timers: list[list[tuple[int, bool]] | None] = []


def _timer_changes(changes: list[tuple[int, bool]]) -> pa.Array:
    return pa.StructArray.from_arrays(
        [
            pa.array([timestamp for timestamp, _ in changes], pa.int64()),
            pa.array([is_registered for _, is_registered in changes], pa.bool_()),
        ],
        fields=list(_TIMER_CHANGE),
    )
