"""The checkpoint coordinator: from acknowledgements to completed checkpoints.

Pure decisions: `pending`, `tracker`, `registry`, `retention`, `failures`, `statistics`. Storage:
`committed` reads what Spark has committed, `completed` keeps checkpoints, `finalizer` makes one of
a batch, `cleaner` and `janitor` delete, `lease` and `ownership` say who may, `source` looks after
what a restored query was restored from. `coordinator` ties them to events and threads.
"""

from sparkckpt.coordinator.acks import Ack, AcknowledgeResult
from sparkckpt.coordinator.cleaner import CheckpointsCleaner, Sweep
from sparkckpt.coordinator.completed import (
    CompletedCheckpoint,
    CompletedCheckpointStore,
    FileCompletedCheckpointStore,
    InconsistentCheckpoint,
    MetadataStorage,
)
from sparkckpt.coordinator.coordinator import CheckpointCoordinator
from sparkckpt.coordinator.failures import CheckpointFailureReason
from sparkckpt.coordinator.lease import Owner, running_owner
from sparkckpt.coordinator.offline import offline_cleaner
from sparkckpt.coordinator.registry import Holder, SharedStateRegistry
from sparkckpt.coordinator.reporter import CheckpointListener, QueryRun
from sparkckpt.coordinator.settings import CoordinatorSettings

__all__ = [
    "Ack",
    "AcknowledgeResult",
    "CheckpointCoordinator",
    "CheckpointFailureReason",
    "CheckpointListener",
    "CheckpointsCleaner",
    "CompletedCheckpoint",
    "CompletedCheckpointStore",
    "CoordinatorSettings",
    "FileCompletedCheckpointStore",
    "Holder",
    "InconsistentCheckpoint",
    "MetadataStorage",
    "Owner",
    "QueryRun",
    "SharedStateRegistry",
    "Sweep",
    "offline_cleaner",
    "running_owner",
]
