"""Completed checkpoints and where they are kept.

Completing a checkpoint has two steps, as in Flink: its metadata is written to the file system, and
then something is made to point to it. With files alone the metadata itself is the pointer; with a
ZooKeeper the pointer lies there. If a step fails, it matters whether it surely failed, which is
cleaned up, or may have taken effect, which is kept and named: nothing may be deleted that someone
could have begun to rely on.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from sparkckpt.coordinator.lease import Lease
from sparkckpt.coordinator.retention import subsume
from sparkckpt.errors import (
    CheckpointNotStoredError,
    CorruptStateError,
    FileExistsAlreadyError,
    FileMissingError,
    NewerOwnerError,
    PossiblyInconsistentCheckpointError,
    SparkckptError,
    StoreUnavailableError,
)
from sparkckpt.format.metadata import (
    CheckpointMetadata,
    CheckpointStatistics,
    metadata_path,
    read_metadata,
    write_metadata,
)
from sparkckpt.storage import Storage

DIRECTORY = "_sparkckpt"
_CHECKPOINT = "chk-"


@dataclass(frozen=True)
class CompletedCheckpoint:
    """A checkpoint that can be restored; what it consists of is in its metadata, at `path`."""

    checkpoint_id: int
    batch_id: int
    query_id: str
    timestamp_ms: int
    path: str
    metadata_bytes: int
    statistics: CheckpointStatistics

    @classmethod
    def of(cls, metadata: CheckpointMetadata, size: int) -> "CompletedCheckpoint":
        return cls(
            metadata.checkpoint_id,
            metadata.batch_id,
            metadata.query_id,
            metadata.timestamp_ms,
            metadata_path(metadata.checkpoint_id),
            size,
            metadata.statistics,
        )


@dataclass(frozen=True)
class InconsistentCheckpoint:
    """The remains of a checkpoint that is not complete, or not known to be."""

    checkpoint_id: int
    why: str
    surely_failed: bool
    """It can never be restored and may be removed."""
    may_hold_state: bool = False
    """It may be complete, but what it refers to is not known: no state may be deleted."""


class MetadataStorage:
    """The metadata of checkpoints in the file system, `chk-<id>/_metadata`."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def where(self, checkpoint_id: int) -> str:
        """The metadata of a checkpoint, as messages name it."""
        return self._storage.where(metadata_path(checkpoint_id))

    def write(self, metadata: CheckpointMetadata) -> CompletedCheckpoint:
        """Creates the metadata, or fails with an error that says what is left behind."""
        path = metadata_path(metadata.checkpoint_id)
        try:
            data = write_metadata(metadata)
        except ValueError as error:
            raise CheckpointNotStoredError(metadata.checkpoint_id, f"{error}.") from error
        try:
            self._storage.write_atomic(path, data)
        except FileExistsAlreadyError as error:
            if self._content(path) != data:
                raise CheckpointNotStoredError(metadata.checkpoint_id, str(error)) from error
        except Exception as error:
            self._settle_failed_write(metadata.checkpoint_id, data, error)
        return CompletedCheckpoint.of(metadata, len(data))

    def _settle_failed_write(self, checkpoint_id: int, data: bytes, error: Exception) -> None:
        """Returns if the write has succeeded after all.

        What else lies there is left: it may be what another owner has written under the same id.
        Once a newer checkpoint is complete, the owner takes it for a stray.
        """
        path = metadata_path(checkpoint_id)
        try:
            found = self._content(path)
        except Exception as second:
            raise PossiblyInconsistentCheckpointError(
                checkpoint_id, self._storage.where(path), f"{error} {second}"
            ) from error
        if found != data:
            raise CheckpointNotStoredError(checkpoint_id, str(error)) from error

    def _content(self, path: str) -> bytes | None:
        try:
            return self._storage.read_all(path)
        except FileMissingError:
            return None

    def read(self, checkpoint_id: int) -> tuple[CheckpointMetadata, int]:
        """The metadata of a checkpoint and its length in bytes."""
        path = metadata_path(checkpoint_id)
        where = self._storage.where(path)
        data = self._storage.read_all(path)
        metadata = read_metadata(data, where)
        if metadata.checkpoint_id != checkpoint_id:
            raise CorruptStateError(where, f"it is of checkpoint {metadata.checkpoint_id}")
        return metadata, len(data)

    def delete(self, checkpoint_id: int) -> None:
        """Removes a checkpoint's directory, its metadata first."""
        path = metadata_path(checkpoint_id)
        directory = path.rpartition("/")[0]
        self._storage.delete([path])
        self._storage.delete(self._storage.find(directory))
        self._storage.delete_directory(directory)

    def find(self) -> dict[int, bool]:
        """The ids that have files, ascending; whether the metadata is among them."""
        found: dict[int, bool] = {}
        for path in self._storage.find(DIRECTORY):
            checkpoint_id = _id_of(path)
            if checkpoint_id is not None:
                complete = path == metadata_path(checkpoint_id)
                found[checkpoint_id] = found.get(checkpoint_id, False) or complete
        return dict(sorted(found.items()))


class CompletedCheckpointStore(ABC):
    """The completed checkpoints of a query, oldest first; at most `retained` of them.

    What differs between the stores is only where the pointers to metadata lie. One thread may add
    while another discards.
    """

    def __init__(self, files: MetadataStorage, retained: int) -> None:
        if retained < 1:
            raise ValueError("at least one checkpoint must be retained")
        self._files = files
        self._retained = retained
        self._lock = threading.Lock()
        self._completed: list[CompletedCheckpoint] = []
        self._inconsistent: list[InconsistentCheckpoint] = []

    @abstractmethod
    def _publish(self, checkpoint: CompletedCheckpoint) -> None:
        """Makes the pointer to metadata that has been written.

        Raises PossiblyInconsistentCheckpointError if it may have been made nevertheless.
        """

    @abstractmethod
    def _withdraw(self, checkpoint_id: int) -> None:
        """Removes the pointer, if there is one; the metadata is removed next."""

    @abstractmethod
    def _published(self, found: Mapping[int, bool]) -> Collection[int]:
        """The ids that are pointed to; `found` are those in the file system, as of `find`."""

    def claim(self, lease: Lease) -> None:
        """Shuts former owners out, where the store itself can; to be called before `recover`.

        Raises NewerOwnerError if the lease is not held any more.
        """
        return

    def close(self) -> None:
        """Gives back what the store holds, without waiting."""
        return

    def all(self) -> list[CompletedCheckpoint]:
        return list(self._completed)

    def latest(self) -> CompletedCheckpoint | None:
        return self._completed[-1] if self._completed else None

    def subsumed(self) -> list[CompletedCheckpoint]:
        """Those that are more than is retained and have not been discarded yet."""
        with self._lock:
            return list(subsume(self._completed, self._retained))

    def strays(self) -> list[int]:
        """Checkpoints that this store has neither added nor recovered, older than its latest.

        A former owner has completed them in the moment in which it lost its ownership.
        """
        found = self._files.find()
        with self._lock:
            known = {completed.checkpoint_id for completed in self._completed}
            known |= {broken.checkpoint_id for broken in self._inconsistent}
        latest = max(known, default=0)
        return [found_id for found_id in found if found_id not in known and found_id < latest]

    def inconsistent(self) -> list[InconsistentCheckpoint]:
        """What is neither complete nor gone, as of the last recovery and since."""
        return list(self._inconsistent)

    def add(self, metadata: CheckpointMetadata) -> CompletedCheckpoint:
        """Stores a checkpoint. Those it subsumes stay until they are discarded.

        Raises CheckpointNotStoredError or StoreUnavailableError if it is surely not stored,
        PossiblyInconsistentCheckpointError if it may have been stored, and NewerOwnerError if what
        is left of it is another's to judge.
        """
        checkpoint_id = metadata.checkpoint_id
        try:
            completed = self._files.write(metadata)
            self._publish_or_clean_up(completed)
        except PossiblyInconsistentCheckpointError as error:
            with self._lock:
                self._inconsistent.append(InconsistentCheckpoint(checkpoint_id, str(error), False))
            raise
        with self._lock:
            self._completed.append(completed)
        return completed

    def _publish_or_clean_up(self, checkpoint: CompletedCheckpoint) -> None:
        try:
            self._publish(checkpoint)
        except (PossiblyInconsistentCheckpointError, NewerOwnerError):
            raise
        except Exception as error:
            self._clean_up(checkpoint.checkpoint_id, error)
            if isinstance(error, StoreUnavailableError):
                raise
            raise CheckpointNotStoredError(checkpoint.checkpoint_id, str(error)) from error

    def _clean_up(self, checkpoint_id: int, error: Exception) -> None:
        """Deletes metadata that surely nothing points to."""
        try:
            self._files.delete(checkpoint_id)
        except SparkckptError as second:
            where = self._files.where(checkpoint_id)
            raise PossiblyInconsistentCheckpointError(
                checkpoint_id, where, f"{error} {second}"
            ) from error

    def discard(self, checkpoint_id: int) -> None:
        """Removes a checkpoint and its metadata, but none of its state."""
        self._withdraw(checkpoint_id)
        self._files.delete(checkpoint_id)
        with self._lock:
            self._completed = [c for c in self._completed if c.checkpoint_id != checkpoint_id]
            self._inconsistent = [i for i in self._inconsistent if i.checkpoint_id != checkpoint_id]

    def recover(
        self, visit: Callable[[CheckpointMetadata], object] = lambda metadata: None
    ) -> Collection[int]:
        """Finds out what there is, and changes nothing; returns all ids, complete or not.

        `visit` gets the metadata of each complete one, oldest first. It is not kept here: with
        many stores and files it is large.
        """
        found = self._files.find()
        published = sorted(self._published(found))
        completed: list[CompletedCheckpoint] = []
        inconsistent: list[InconsistentCheckpoint] = []
        for checkpoint_id in published:
            try:
                metadata, size = self._files.read(checkpoint_id)
            except SparkckptError as error:
                inconsistent.append(_unreadable(checkpoint_id, error))
                continue
            completed.append(CompletedCheckpoint.of(metadata, size))
            visit(metadata)
        inconsistent += _unpublished(found, published)
        newest = completed[-1].checkpoint_id if completed else 0
        with self._lock:
            self._completed = completed
            self._inconsistent = [_judge(broken, newest) for broken in inconsistent]
        return {*found, *published}


class FileCompletedCheckpointStore(CompletedCheckpointStore):
    """A checkpoint is complete if its metadata is in the file system."""

    @classmethod
    def at(cls, storage: Storage, retained: int = 10) -> "FileCompletedCheckpointStore":
        """The store of a checkpoint directory; it knows nothing before `recover`."""
        return cls(MetadataStorage(storage), retained)

    def _publish(self, checkpoint: CompletedCheckpoint) -> None:
        """Writing the metadata has done it."""

    def _withdraw(self, checkpoint_id: int) -> None:
        """Deleting the metadata does it."""

    def _published(self, found: Mapping[int, bool]) -> Collection[int]:
        return [checkpoint_id for checkpoint_id, complete in found.items() if complete]


def _id_of(path: str) -> int | None:
    """The checkpoint that a path below the directory belongs to."""
    directory = path.split("/")[1]
    number = directory.removeprefix(_CHECKPOINT)
    if directory == number or not (number.isascii() and number.isdecimal()):
        return None
    return int(number)


def _unpublished(
    found: Mapping[int, bool], published: Collection[int]
) -> Iterable[InconsistentCheckpoint]:
    for checkpoint_id, has_metadata in found.items():
        if checkpoint_id not in published:
            what = "nothing points to its metadata" if has_metadata else "it has no metadata"
            yield InconsistentCheckpoint(checkpoint_id, what, surely_failed=True)


def _unreadable(checkpoint_id: int, error: SparkckptError) -> InconsistentCheckpoint:
    damaged = isinstance(error, (CorruptStateError, FileMissingError))
    return InconsistentCheckpoint(
        checkpoint_id, str(error), surely_failed=damaged, may_hold_state=not damaged
    )


def _judge(broken: InconsistentCheckpoint, newest: int) -> InconsistentCheckpoint:
    """Only below a newer complete one is it sure that nobody is still at work on it."""
    surely_failed = broken.surely_failed and broken.checkpoint_id < newest
    return InconsistentCheckpoint(
        broken.checkpoint_id, broken.why, surely_failed, broken.may_hold_state
    )
