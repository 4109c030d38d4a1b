"""The checkpoint directory that a person has named, which may be anything.

Tells apart, by named errors, a path that does not exist, one that is no checkpoint directory, one
whose state is not ours, one that is not yet restored, a savepoint that is not complete and one that
another query has claimed. Reads only.
"""

import os
from collections.abc import Collection
from dataclasses import dataclass

from sparkckpt.coordinator import FileCompletedCheckpointStore, MetadataStorage
from sparkckpt.coordinator.committed import STATE
from sparkckpt.coordinator.restored import RESTORING_PATH, Restored, claimed_by, read_restored
from sparkckpt.coordinator.savepoints import SavepointMarker, completed_savepoint
from sparkckpt.errors import (
    CheckpointNotFoundError,
    ClaimedCheckpointError,
    ForeignCheckpointError,
    NotACheckpointError,
    RestorePendingError,
    UnreachableStorageError,
)
from sparkckpt.format.metadata import CheckpointMetadata
from sparkckpt.paths import StateRoot
from sparkckpt.sparklog import SparkCheckpoint
from sparkckpt.storage import Storage

Location = str | os.PathLike[str]
"""The checkpointLocation of a query: a local path or any URL that fsspec can open."""

_OURS = "_sparkckpt"


@dataclass(frozen=True)
class CheckpointDirectory:
    """The checkpointLocation of a query that runs on sparkckpt, or a savepoint."""

    storage: Storage
    savepoint: SavepointMarker | None = None
    """None: it is a query's."""

    @classmethod
    def open(cls, path: Location, claimed: bool = False) -> "CheckpointDirectory":
        """The directory at this path; with `claimed`, also if another query owns its state now."""
        try:
            storage = Storage.at(path)
        except (ImportError, ValueError) as error:
            raise UnreachableStorageError.open(os.fspath(path), str(error)) from error
        if not storage.exists(""):
            raise NotACheckpointError(storage.where(""), "it does not exist")
        if storage.exists(RESTORING_PATH):
            raise RestorePendingError(storage.where(""))
        savepoint = completed_savepoint(storage)
        if savepoint is None:
            SparkCheckpoint.at(storage)
        if not storage.exists(_OURS):
            raise ForeignCheckpointError(storage.where(""))
        owner = None if claimed else claimed_by(storage)
        if owner is not None:
            raise ClaimedCheckpointError(storage.where(""), owner)
        return cls(storage, savepoint)

    @property
    def state(self) -> Storage:
        """The state root."""
        return self.storage.below(STATE)

    @property
    def root(self) -> StateRoot:
        """The state root, by which files are named."""
        return StateRoot.of(self.state)

    def restored(self) -> Restored | None:
        """What the query was restored from, if it was."""
        return read_restored(self.storage)

    def store(self) -> FileCompletedCheckpointStore:
        return FileCompletedCheckpointStore.at(self.storage)

    def remains(self) -> Collection[int]:
        """Every checkpoint of which there is a file, complete or not."""
        return MetadataStorage(self.storage).find().keys()

    def complete_ids(self) -> list[int]:
        """The checkpoints that have metadata, readable or not, oldest first."""
        found = MetadataStorage(self.storage).find()
        return [checkpoint_id for checkpoint_id, complete in found.items() if complete]

    def metadata(self, checkpoint_id: int) -> CheckpointMetadata:
        metadata, _ = MetadataStorage(self.storage).read(checkpoint_id)
        return metadata

    def why_empty(self) -> str:
        """Why there is no checkpoint yet."""
        restored = self.restored()
        if restored is None:
            return "The first is completed after the query's first batch, by its coordinator."
        return (
            f"It was restored from checkpoint {restored.checkpoint_id} of {restored.source}, and "
            "no query has run on it since: its first checkpoint is completed when one starts."
        )

    def choose(self, checkpoint_id: int | None) -> int:
        """The checkpoint with this id, which must exist; by default the newest."""
        ids = self.complete_ids()
        if not ids or (checkpoint_id is not None and checkpoint_id not in ids):
            wanted = "at all" if checkpoint_id is None else str(checkpoint_id)
            why_none = "" if ids else self.why_empty()
            raise CheckpointNotFoundError(
                self.storage.where(""), wanted, list(map(str, ids)), why_none
            )
        return ids[-1] if checkpoint_id is None else checkpoint_id
