"""Which store of completed checkpoints a query's options ask for."""

from sparkckpt.coordinator.completed import CompletedCheckpointStore, FileCompletedCheckpointStore
from sparkckpt.coordinator.settings import CoordinatorSettings
from sparkckpt.coordinator.zookeeper import ZooKeeperCompletedCheckpointStore
from sparkckpt.storage import Storage


def completed_store(
    storage: Storage, query_id: str, settings: CoordinatorSettings
) -> CompletedCheckpointStore:
    """The store of a checkpoint directory. It is not connected to anything yet."""
    if settings.store == "zookeeper":
        return ZooKeeperCompletedCheckpointStore.at(
            storage,
            query_id,
            settings.zookeeper_quorum,
            settings.zookeeper_root,
            settings.retained,
        )
    return FileCompletedCheckpointStore.at(storage, settings.retained)
