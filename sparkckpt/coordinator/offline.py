"""Knowing what a checkpoint directory holds while no query runs on it."""

from collections.abc import Collection

from sparkckpt.coordinator.cleaner import CheckpointsCleaner, learn_floor
from sparkckpt.coordinator.committed import CommittedState
from sparkckpt.coordinator.completed import CompletedCheckpointStore
from sparkckpt.coordinator.source import RestoredSource
from sparkckpt.storage import Storage


def offline_cleaner(
    storage: Storage, store: CompletedCheckpointStore, void_pins: Collection[str] = ()
) -> CheckpointsCleaner:
    """A cleaner that knows all that a coordinator would know after its start, and that some pins
    are void."""
    committed = CommittedState(storage)
    batches = committed.batches()
    cleaner = CheckpointsCleaner(storage, batches[-1] - batches[0] if batches else 0)
    source = RestoredSource(storage, cleaner)
    source.take_over()
    source.claim()
    store.recover(lambda m: cleaner.hold_checkpoint(m.checkpoint_id, m.handles))
    for broken in store.inconsistent():
        if broken.may_hold_state:
            cleaner.block(broken.checkpoint_id, broken.why)
    cleaner.refresh_pins(void_pins)
    learn_floor(cleaner, committed, None)
    return cleaner
