"""Rounds of cleaning up: what has been subsumed, and what no one refers to.

The order matters. Only the owner of the lease may delete; a checkpoint's metadata goes before its
state, so that a checkpoint that can be found is whole; and pins are read after that (see `pins`).
"""

import logging
from collections.abc import Collection

from sparkckpt.coordinator.cleaner import CheckpointsCleaner, Sweep, learn_floor
from sparkckpt.coordinator.committed import CommittedState
from sparkckpt.coordinator.completed import CompletedCheckpointStore
from sparkckpt.coordinator.manifests import orphaned_manifests
from sparkckpt.coordinator.ownership import Ownership
from sparkckpt.coordinator.source import RestoredSource
from sparkckpt.errors import SparkckptError
from sparkckpt.storage import Storage

logger = logging.getLogger(__name__)


class Janitor:
    """Cleans up after one run of a query; everything it does may be done again or never."""

    def __init__(
        self,
        storage: Storage,
        store: CompletedCheckpointStore,
        cleaner: CheckpointsCleaner,
        source: RestoredSource,
        min_batches_to_retain: int,
        ownership: Ownership,
    ) -> None:
        self._storage = storage
        self._store = store
        self._cleaner = cleaner
        self._source = source
        self._committed = CommittedState(storage)
        self._min_batches = min_batches_to_retain
        self._ownership = ownership
        self._orphaned_manifests: set[str] = set()
        """As the last sweep has found them."""

    def clean(self, latest_version: int) -> None:
        """Removes subsumed checkpoints, and the files that were needed by them alone."""
        if not self._ownership.is_held():
            return
        subsumed = [checkpoint.checkpoint_id for checkpoint in self._store.subsumed()]
        for checkpoint_id in (*self._store.strays(), *subsumed):
            self._discard(checkpoint_id)
        self._source.try_claim()
        self._cleaner.refresh_pins()
        self._cleaner.advance(latest_version - self._min_batches)
        deleted = self._cleaner.clean()
        if deleted:
            logger.debug("Deleted %d files below version %d", deleted, self._cleaner.floor)
        self._delete_manifests()
        self._source.settle()

    def sweep(self) -> Sweep | None:
        """Looks for files that no one has ever referred to, or that a former owner has left."""
        if not self._ownership.is_held():
            return None
        learn_floor(self._cleaner, self._committed, self._min_batches)
        self._source.try_claim()
        self._cleaner.refresh_pins()
        found = self._cleaner.sweep()
        if found.blocked_by:
            logger.warning(
                "No state is deleted, since it may belong to checkpoints that cannot be read: %s",
                " ".join(found.blocked_by),
            )
        elif found.orphans:
            logger.info(
                "Deleted %d of %d orphaned files (%d bytes) below version %d",
                len(found.deleted),
                len(found.orphans),
                found.orphan_bytes,
                found.floor,
            )
        self._delete_manifests()
        self._orphaned_manifests.update(orphaned_manifests(self._storage, self._committed))
        self._source.settle()
        return found

    def _delete_manifests(self) -> None:
        """Those that an earlier round of this owner has found already. Who has taken over since
        this round began may have written one that the commit log is about to name, but not before
        that earlier round: it would have been noticed at the beginning of this one."""
        if not self._orphaned_manifests:
            return
        still = orphaned_manifests(self._storage, self._committed)
        if self._ownership.is_held():
            self._storage.delete(self._orphaned_manifests & still.keys())
            self._orphaned_manifests.clear()

    def _discard(self, checkpoint_id: int) -> None:
        try:
            self._store.discard(checkpoint_id)
        except SparkckptError as error:
            logger.warning("Checkpoint %d is removed later. %s", checkpoint_id, error)
            return
        self._cleaner.release_checkpoint(checkpoint_id)


def take_over(store: CompletedCheckpointStore, cleaner: CheckpointsCleaner) -> Collection[int]:
    """Finds what former owners have left, and removes what surely failed; returns all ids."""
    ids = store.recover(lambda m: cleaner.hold_checkpoint(m.checkpoint_id, m.handles))
    for broken in store.inconsistent():
        if broken.surely_failed:
            logger.warning("Removing failed checkpoint %d: %s", broken.checkpoint_id, broken.why)
            store.discard(broken.checkpoint_id)
            continue
        logger.warning(
            "Checkpoint %d is possibly inconsistent and left as it is: %s",
            broken.checkpoint_id,
            broken.why,
        )
        if broken.may_hold_state:
            cleaner.block(broken.checkpoint_id, broken.why)
    return ids
