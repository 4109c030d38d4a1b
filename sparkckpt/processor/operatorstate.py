"""State that belongs to a partition and to no key, as a processor sees it: lists of objects.

An item is any object that can be pickled. How blobs are laid out is told by `sparkckpt.format`.
"""

import pickle
from collections.abc import Iterable
from typing import Any

from sparkckpt.errors.processing import OperatorStateModeError
from sparkckpt.format.operatorstate import (
    BROADCAST,
    SPLIT,
    UNION,
    OperatorStateItems,
    read_blob,
    write_blob,
)

_PROTOCOL = 5


class OperatorListState:
    """One operator state of this partition: a list of items."""

    def __init__(self, restored: OperatorStateItems) -> None:
        self.name, self.mode = restored.name, restored.mode
        self.is_set = False
        self._restored = restored
        self._items = list(restored.items)

    def get(self) -> list[Any]:
        return [pickle.loads(item) for item in self._items]

    def update(self, items: Iterable[Any]) -> None:
        self._items = [_pickled(item) for item in items]
        self.is_set = True

    def add(self, item: Any) -> None:
        self._items.append(_pickled(item))
        self.is_set = True

    def clear(self) -> None:
        self.update(())

    def stored(self) -> OperatorStateItems:
        """As it was given to this partition, if nothing has been set."""
        if not self.is_set:
            return self._restored
        return OperatorStateItems(self.name, self.mode, tuple(self._items))


class OperatorStateContext:
    """Hands out the operator states of a partition by name.

    A name keeps its mode: how its items are redistributed when the number of partitions changes.
    """

    def __init__(self, blob: bytes | None) -> None:
        restored = () if blob is None else read_blob(blob, "the operator state of this partition")
        self.is_restored = blob is not None
        """Whether there is a state from before; false in a query's first batch."""
        self._states = {s.name: OperatorListState(s) for s in restored}

    def get_list_state(self, name: str) -> OperatorListState:
        """Its items are split among the partitions when their number changes."""
        return self._state(name, SPLIT)

    def get_union_list_state(self, name: str) -> OperatorListState:
        """Every partition gets the items of all when their number changes."""
        return self._state(name, UNION)

    def get_broadcast_state(self, name: str) -> OperatorListState:
        """Every partition is to have the same items, and gets those of one."""
        return self._state(name, BROADCAST)

    def blob(self) -> bytes | None:
        """All states, None if none was set."""
        states = self._states.values()
        if not any(state.is_set for state in states):
            return None
        return write_blob(state.stored() for state in states)

    def _state(self, name: str, mode: str) -> OperatorListState:
        state = self._states.get(name)
        if state is None:
            state = OperatorListState(OperatorStateItems(name, mode, ()))
            self._states[name] = state
        if state.mode != mode:
            raise OperatorStateModeError(name, state.mode, mode)
        return state


def _pickled(item: Any) -> bytes:
    return pickle.dumps(item, _PROTOCOL)
