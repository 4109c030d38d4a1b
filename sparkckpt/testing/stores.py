"""The state that a tester keeps, and what its operator does with it: per key, in memory.

Two kinds, as there are two operators: one state and a timeout per key, and state variables with
timers. They say what is sent beside a key, and apply what comes back. Values are those of Arrow.
"""

from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from sparkckpt.processor.userkeys import exact
from sparkckpt.processor.variables import VariableSpec
from sparkckpt.processor.wire import (
    CLEAR,
    CLEAR_AND_APPEND,
    NO_TIMESTAMP,
    NOTHING,
    PUT,
)

Key = Any


class Store(Protocol):
    @property
    def sent_type(self) -> pa.StructType: ...

    def sent(self, key: Key, expired: list[int] | None) -> dict[str, Any]: ...

    def update(self, key: Key, update: dict[str, Any]) -> None: ...

    def expired(self, now: "Now") -> list[tuple[Key, list[int]]]: ...


@dataclass
class Now:
    processing_ms: int
    watermark_ms: int = NO_TIMESTAMP


class GroupStore:
    """One state and one timeout per key."""

    def __init__(self, state: pa.StructType, timeout: str) -> None:
        self.sent_type = pa.struct([("value", state), ("timeoutTimestamp", pa.int64())])
        self._timeout = timeout
        self.values: dict[Key, Any] = {}
        self.timeouts: dict[Key, int] = {}

    def sent(self, key: Key, expired: list[int] | None) -> dict[str, Any]:
        return {
            "value": self.values.get(key),
            "timeoutTimestamp": self.timeouts.get(key, NO_TIMESTAMP),
        }

    def update(self, key: Key, update: dict[str, Any]) -> None:
        if update["op"] == CLEAR:
            self.values.pop(key, None)
            self.timeouts.pop(key, None)
        elif update["op"] != NOTHING:
            self.values[key] = update["value"]
            if self._timeout != "NoTimeout":
                self.timeouts[key] = update["timeoutTimestamp"]

    def expired(self, now: Now) -> list[tuple[Key, list[int]]]:
        before = {
            "ProcessingTimeTimeout": now.processing_ms,
            "EventTimeTimeout": now.watermark_ms,
        }.get(self._timeout, NO_TIMESTAMP)
        return [
            (key, []) for key, at in self.timeouts.items() if at != NO_TIMESTAMP and at < before
        ]


@dataclass
class _KeyState:
    """Of each variable its value, or list, or map; with the time at which each part expires."""

    variables: list[Any]
    timers: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class _Part:
    value: Any
    expires: int | None


class ProcessorStore:
    """State variables and timers per key."""

    def __init__(
        self, specs: tuple[VariableSpec, ...], types: list[pa.DataType], time_mode: str, now: Now
    ) -> None:
        self._specs, self._now = specs, now
        self._mode = time_mode.lower()
        self.types = types
        self.sends_all = False
        """Whether lists and maps are sent beside a key; else they are fetched."""
        self.fetches = 0
        fields = [(f"v{i}", kind) for i, kind in enumerate(types)]
        self.sent_type = pa.struct([*fields, ("expired", pa.list_(pa.int64()))])
        self.keys: dict[Key, _KeyState] = {}

    def sent(self, key: Key, expired: list[int] | None) -> dict[str, Any]:
        values = {
            f"v{i}": self.value(key, i) if self.sends_all or spec.kind == "value" else None
            for i, spec in enumerate(self._specs)
        }
        return {**values, "expired": expired}

    def value(self, key: Key, variable: int) -> Any:
        """As it is sent: a value, a list, or a list of entries."""
        state, kind = self.keys.get(key), self._specs[variable].kind
        if kind == "value":
            part = state.variables[variable] if state else None
            return part.value if part is not None and self._lives(part) else None
        if state is None:
            return []
        parts = state.variables[variable]
        if kind == "map":
            return [
                {"key": key, "value": part.value}
                for key, part in parts.values()
                if self._lives(part)
            ]
        return [part.value for part in parts if self._lives(part)]

    def fetch(self, key: Key, variable: int) -> pa.Table:
        self.fetches += 1
        if variable < 0:
            state = self.keys.get(key)
            return pa.table(
                {"timestampMs": pa.array(sorted(state.timers if state else ()), pa.int64())}
            )
        structs = pa.array(self.value(key, variable), self.types[variable].value_type)
        return pa.Table.from_batches([pa.RecordBatch.from_struct_array(structs)])

    def update(self, key: Key, update: dict[str, Any]) -> None:
        state = self.keys.setdefault(key, _KeyState([self._empty(s) for s in self._specs]))
        for i, spec in enumerate(self._specs):
            operation, value = update[f"op{i}"] or NOTHING, update[f"v{i}"]
            if operation != NOTHING:
                state.variables[i] = self._changed(state.variables[i], spec, operation, value)
        for change in update["timers"] or ():
            if change["register"]:
                state.timers.add(change["timestampMs"])
            else:
                state.timers.discard(change["timestampMs"])

    def expired(self, now: Now) -> list[tuple[Key, list[int]]]:
        if self._mode == "none":
            return []
        until = now.watermark_ms if self._mode == "eventtime" else now.processing_ms
        due = [
            (key, sorted(timer for timer in state.timers if timer <= until))
            for key, state in self.keys.items()
        ]
        return sorted(((k, timers) for k, timers in due if timers), key=lambda pair: pair[1][0])

    def _changed(self, before: Any, spec: VariableSpec, operation: int, value: Any) -> Any:
        expires = None if not spec.ttl_ms else self._now.processing_ms + spec.ttl_ms
        if spec.kind == "value":
            return _Part(value, expires) if operation == PUT else None
        if spec.kind == "list":
            kept = [] if operation in (PUT, CLEAR) else before
            return [*kept, *(_Part(item, expires) for item in value or ())]
        entries = {} if operation in (CLEAR, CLEAR_AND_APPEND) else dict(before)
        for entry in value or ():
            frozen = exact(entry["key"])
            if entry["value"] is None:
                entries.pop(frozen, None)
            else:
                entries[frozen] = (entry["key"], _Part(entry["value"], expires))
        return entries

    def _lives(self, part: _Part) -> bool:
        return part.expires is None or part.expires > self._now.processing_ms

    def _empty(self, spec: VariableSpec) -> Any:
        return {"value": None, "list": [], "map": {}}[spec.kind]
