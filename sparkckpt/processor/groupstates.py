"""Updates of operators with one state per key: a value, and a timeout.

What is written follows Spark's FlatMapGroupsWithState: a state that is removed and has no timeout
goes; one that was updated or removed, or was given a timeout, is written, with null for a value
that does not exist; else nothing is, and an earlier timeout stays.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from sparkckpt.processor.wire import CLEAR, NO_TIMESTAMP, PUT


def update_type(state: pa.StructType) -> pa.StructType:
    return pa.struct(
        [
            ("ordinal", pa.int64()),
            ("op", pa.int8()),
            ("timeoutTimestamp", pa.int64()),
            ("value", state),
        ]
    )


class GroupUpdates:
    """Collects the updates of finished keys, in their order."""

    def __init__(self, write: Callable[[Sequence[Any]], pa.StructArray]) -> None:
        self._write = write
        self._ordinals: list[int] = []
        self._operations: list[int] = []
        self._timeouts: list[int] = []
        self._values: list[Any] = []

    def put(self, ordinal: int, value: Any, timeout: int) -> None:
        self._ordinals.append(ordinal)
        self._operations.append(PUT)
        self._timeouts.append(timeout)
        self._values.append(value)

    def remove(self, ordinal: int) -> None:
        self._ordinals.append(ordinal)
        self._operations.append(CLEAR)
        self._timeouts.append(NO_TIMESTAMP)
        self._values.append(None)

    def take(self) -> pa.StructArray | None:
        """All that have come together, None if there are none."""
        if not self._ordinals:
            return None
        values = self._write(self._values)
        columns = [
            pa.array(self._ordinals, pa.int64()),
            pa.array(self._operations, pa.int8()),
            pa.array(self._timeouts, pa.int64()),
            values,
        ]
        self._ordinals, self._operations, self._timeouts, self._values = [], [], [], []
        return pa.StructArray.from_arrays(columns, fields=list(update_type(values.type)))
