"""Reads from storage what Spark has committed, as far as no acknowledgement has told it.

The commit log says which version of each store a batch has ended with, and by which id. Everything
that does not change from batch to batch is read once, so that a batch whose acknowledgements have
all come costs two calls: one for its entry in the commit log, one for that in the offset log.
"""

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from sparkckpt.coordinator.pending import CommittedStore, committed_stores
from sparkckpt.errors import CorruptStateError
from sparkckpt.format.handle import StateHandle, load_handle
from sparkckpt.format.manifest import load_manifest, manifest_path, named_manifest
from sparkckpt.format.metadata import OperatorState
from sparkckpt.sparklog import (
    CommitEntry,
    MasterState,
    SparkCheckpoint,
    commits_path,
    offsets_path,
    parse_commit,
)
from sparkckpt.storage import Storage

STATE = "state"
READERS = 32


class CommittedState:
    """The committed batches of one run of a query."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._state = storage.below(STATE)
        self._spark = SparkCheckpoint(storage)
        self._known: dict[str, MasterState] = {}
        self._first_batch = 0

    def begin_run(self, first_batch: int) -> None:
        """Batches before this one are of former runs, whose operators may have been others."""
        self._first_batch = first_batch

    def batches(self) -> list[int]:
        """The batches that the commit log has, ascending."""
        return self._spark.committed_batches()

    def entry(self, batch_id: int) -> CommitEntry:
        path = commits_path(batch_id)
        content = self._storage.read_all(path)
        self._known[path] = MasterState(path, content)
        return parse_commit(content, self._storage.where(path), batch_id)

    def master_states(self, batch_id: int) -> tuple[MasterState, ...]:
        """Spark's own files that a restore to the batch needs."""
        own = batch_id >= self._first_batch
        known = [state for path, state in self._known.items() if own or not _of_operator(path)]
        states = self._spark.master_states(batch_id, known)
        passed = (commits_path(batch_id), offsets_path(batch_id - 1))
        self._known = {
            state.path: state
            for state in states
            if state.path not in passed and (own or not _of_operator(state.path))
        }
        return states

    def load(
        self, batch_id: int, stores: Iterable[CommittedStore]
    ) -> Iterator[tuple[CommittedStore, StateHandle]]:
        """The handles of these stores, many at a time."""
        stores = list(stores)
        names = {
            operator_id: [
                store.name for store in self._spark.operator(operator_id, batch_id).stores
            ]
            for operator_id in {store.operator_id for store in stores}
        }

        def read(store: CommittedStore) -> StateHandle:
            of_operator = names[store.operator_id]
            if store.position >= len(of_operator):
                raise CorruptStateError(
                    self._storage.where(commits_path(batch_id)),
                    f"it names store {store.position} of operator {store.operator_id}, which has "
                    f"only {', '.join(of_operator)}",
                )
            name = of_operator[store.position]
            return load_handle(
                self._state, store.operator_id, store.partition, batch_id + 1, store.id, name
            )

        if not stores:
            return
        with ThreadPoolExecutor(min(READERS, len(stores)), "sparkckpt-read") as readers:
            yield from zip(stores, readers.map(read, stores), strict=True)

    def load_all(self, batch_id: int) -> list[StateHandle]:
        """The handles of every store of a batch, or what its manifest says they are."""
        entry = self.entry(batch_id)
        manifest_id = self.manifest_in(entry)
        if manifest_id is not None:
            operators = self.load_manifest(batch_id, manifest_id)
            return [handle for operator in operators for handle in operator.handles]
        stores = committed_stores(entry.state_ids)
        return [handle for _, handle in self.load(batch_id, stores)]

    def manifest_id(self, batch_id: int) -> str | None:
        """The manifest that the commit log names for a batch, if it does."""
        return self.manifest_in(self.entry(batch_id))

    def manifest_in(self, entry: CommitEntry) -> str | None:
        """The manifest that an entry of the commit log names, if it does."""
        return named_manifest(entry, self._storage.where(commits_path(entry.batch_id)))

    def load_manifest(self, batch_id: int, manifest_id: str) -> tuple[OperatorState, ...]:
        """The state that a batch was committed with, in the partitions it was written in."""
        manifest = load_manifest(self._storage, manifest_id)
        if manifest.batch_id != batch_id:
            raise CorruptStateError(
                self._storage.where(manifest_path(manifest_id)),
                f"batch {batch_id} was committed with it, but it is of batch {manifest.batch_id}",
            )
        return manifest.operator_states


def _of_operator(path: str) -> bool:
    return path.startswith(f"{STATE}/")
