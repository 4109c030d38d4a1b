"""Makes a completed checkpoint of a committed batch: the I/O of finalization.

Does one batch at a time and decides nothing about when or whether. It must never complete a batch
with state that Spark has not committed, nor one of which a handle is missing.
"""

import threading
from collections.abc import Callable

from sparkckpt.coordinator.cleaner import CheckpointsCleaner
from sparkckpt.coordinator.committed import CommittedState
from sparkckpt.coordinator.completed import CompletedCheckpoint, CompletedCheckpointStore
from sparkckpt.coordinator.ids import CheckpointIDCounter
from sparkckpt.coordinator.pending import PendingCheckpoint
from sparkckpt.coordinator.retention import files_written_by
from sparkckpt.coordinator.statistics import statistics_of
from sparkckpt.errors import PossiblyInconsistentCheckpointError
from sparkckpt.format.metadata import CheckpointMetadata


class CheckpointFinalizer:
    """Completes the checkpoints of one run; `lock` guards what acknowledgements change."""

    def __init__(
        self,
        query_id: str,
        committed: CommittedState,
        store: CompletedCheckpointStore,
        ids: CheckpointIDCounter,
        cleaner: CheckpointsCleaner,
        lock: threading.Lock,
        clock: Callable[[], int],
    ) -> None:
        self._query_id = query_id
        self._committed = committed
        self._store = store
        self._ids = ids
        self._cleaner = cleaner
        self._lock = lock
        self._clock = clock

    def look_up(self, pending: PendingCheckpoint) -> bool:
        """Takes the batch's entry in the commit log in; whether it has any state."""
        if not pending.is_looked_up:
            entry = self._committed.entry(pending.batch_id)
            manifest_id = self._committed.manifest_in(entry)
            with self._lock:
                pending.commit(entry.state_ids, manifest_id)
        return bool(pending.committed_ids)

    def read_outstanding(self, pending: PendingCheckpoint) -> None:
        """Reads the handles, or the manifest, that were committed but not acknowledged."""
        if pending.manifest_id is not None:
            pending.supply_manifest(
                self._committed.load_manifest(pending.batch_id, pending.manifest_id)
            )
            return
        missing = pending.outstanding()
        for store, handle in self._committed.load(pending.batch_id, missing):
            pending.supply(store, handle)

    def hold_live(self, pending: PendingCheckpoint) -> None:
        """Registers a batch as one that Spark can go back to."""
        with self._lock:
            losers = pending.losers()
        self._cleaner.hold_live(pending.batch_id + 1, pending.handles())
        self._cleaner.doom(path for handle in losers for path in files_written_by(handle))

    def complete(self, pending: PendingCheckpoint) -> CompletedCheckpoint:
        """Stores the checkpoint. What it refers to is held even if it is only possibly stored."""
        master_states = self._committed.master_states(pending.batch_id)
        now = self._clock()
        metadata = CheckpointMetadata(
            checkpoint_id=self._ids.next(),
            batch_id=pending.batch_id,
            query_id=self._query_id,
            timestamp_ms=now,
            operator_states=pending.operator_states(),
            master_states=master_states,
            statistics=statistics_of(pending, now),
        )
        self.hold_live(pending)
        try:
            completed = self._store.add(metadata)
        except PossiblyInconsistentCheckpointError:
            self._cleaner.hold_checkpoint(metadata.checkpoint_id, pending.handles())
            raise
        self._cleaner.hold_checkpoint(metadata.checkpoint_id, pending.handles())
        return completed
