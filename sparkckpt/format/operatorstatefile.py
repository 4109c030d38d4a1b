"""The operator state of a whole checkpoint as values, and in files of its own.

For those who write checkpoints anew, such as savepoints, which have no handles to inline it in.
Who gets what of it is decided elsewhere.
"""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from sparkckpt.format.handle import DEFAULT_NAME, StateHandle
from sparkckpt.format.operatorstate import (
    OperatorStateHandle,
    OperatorStateItems,
    handle_of,
    load_operator_state,
    write_blob,
)
from sparkckpt.storage import Storage

THREADS = 16


@dataclass(frozen=True)
class StoreOperatorState:
    """The operator states of one store of one partition."""

    operator_id: int
    store_name: str
    partition: int
    states: tuple[OperatorStateItems, ...]


def load_operator_states(
    storage: Storage, handles: Iterable[StateHandle]
) -> tuple[StoreOperatorState, ...]:
    """Those of all stores that have some, in the order of the handles; `storage` is at the state
    root that their paths are relative to."""

    def load(handle: StateHandle) -> StoreOperatorState:
        assert handle.operator_state is not None
        return StoreOperatorState(
            handle.operator_id,
            handle.store_name,
            handle.partition,
            load_operator_state(storage, handle.operator_state),
        )

    wanted = [handle for handle in handles if handle.operator_state is not None]
    with ThreadPoolExecutor(THREADS, "sparkckpt-read") as readers:
        return tuple(readers.map(load, wanted))


def write_operator_state(
    storage: Storage, path: str, states: Iterable[OperatorStateItems]
) -> OperatorStateHandle:
    """Creates a file with these states, of which there is one at least, below the state root; what
    metadata says of it."""
    states = tuple(states)
    blob = write_blob(states)
    storage.write_atomic(path, blob)
    return handle_of(path, blob, states)


def operator_state_path(
    operator_id: int,
    partition: int,
    version: int,
    file_id: str,
    store_name: str = DEFAULT_NAME,
) -> str:
    """Where a file with operator state lies, relative to the state root."""
    store = "" if store_name == DEFAULT_NAME else f"{store_name}/"
    return f"{operator_id}/{partition}/{store}{version}_{file_id}.operator-state"
