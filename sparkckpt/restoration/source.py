"""The directory that a query is restored from, and what is restored of it.

A person names a checkpointLocation or one of its checkpoints; here it is found out which state that
means, and what else of the directory a restored query needs. It only reads, apart from the pins and
the claim that keep the source's files from being deleted.
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sparkckpt.checkpoints.directory import Location
from sparkckpt.coordinator.committed import STATE
from sparkckpt.coordinator.pins import pin_path
from sparkckpt.coordinator.restored import CLAIMED_PATH, claimed_by
from sparkckpt.coordinator.savepoints import completed_savepoint
from sparkckpt.errors import (
    CheckpointNotFoundError,
    CorruptStateError,
    ForeignCheckpointError,
    NewerOwnerError,
    NotACheckpointError,
    SparkckptError,
    UnreachableStorageError,
)
from sparkckpt.format.metadata import CheckpointMetadata, metadata_path
from sparkckpt.paths import StateRoot, canonical, is_absolute
from sparkckpt.restoration.exclusive import Clock, Exclusive, is_in_use, refuse_others
from sparkckpt.restoration.markers import (
    claimed_bytes,
    pin_bytes,
    refuse_claimed,
    refuse_unfinished,
)
from sparkckpt.restoration.state import (
    DIRECTORY,
    CommittedBatch,
    LogEntry,
    Logs,
    checkpoint_ids,
    committed_batch,
    named_checkpoint,
    with_master_states,
)
from sparkckpt.sparklog import SparkCheckpoint, offsets_path
from sparkckpt.storage import Storage

_ONE_CHECKPOINT = re.compile(r"(.*?)/*_sparkckpt/chk-(\d+)(?:/_metadata)?/*")
_STATE_FILE = re.compile(rf"(.+)/{STATE}/(\d+/\d+/(?:[^/]+/)?[^/]+)")


def open_storage(path: Location, filesystem: Any = None) -> tuple[Storage, str]:
    """The directory at a path or URL, and its canonical URL, as Spark understands it.

    It is opened on its own file system unless one is given, which then takes URLs.
    """
    text = os.fspath(path)
    if filesystem is not None:
        return Storage(filesystem, text.rstrip("/")), canonical(text)
    try:
        storage = Storage.at(text)
    except (ImportError, ValueError) as error:
        raise UnreachableStorageError.open(text, str(error)) from error
    return storage, canonical(text if "://" in text else storage.where(""))


@dataclass(frozen=True)
class Source:
    """A checkpointLocation or a savepoint; `url` is its canonical URL."""

    storage: Storage
    url: str
    checkpoint_id: int | None = None
    """That of the checkpoint that was named, if one was."""

    @classmethod
    def at(
        cls, path: Location, checkpoint_id: int | None = None, filesystem: Any = None
    ) -> "Source":
        """A checkpointLocation, `_sparkckpt/chk-<id>` in one, or a savepoint."""
        text = os.fspath(path)
        one = _ONE_CHECKPOINT.fullmatch(text)
        if one is not None:
            if checkpoint_id not in (None, int(one[2])):
                raise CheckpointNotFoundError(text, str(checkpoint_id), [one[2]])
            text, checkpoint_id = one[1] or ("/" if text.startswith("/") else "."), int(one[2])
        storage, url = open_storage(text, filesystem)
        if not storage.exists(""):
            raise NotACheckpointError(storage.where(""), "it does not exist")
        if completed_savepoint(storage) is None:
            SparkCheckpoint.at(storage)
        return cls(storage, url, checkpoint_id)

    @property
    def root(self) -> StateRoot:
        return StateRoot(f"{self.url}/{STATE}")

    def refuse_if_unusable(self, target: str) -> None:
        """Raises if the directory is not ours, not finished, or claimed by any but the target."""
        names = self.names()
        if not names:
            raise ForeignCheckpointError(self.storage.where(""))
        refuse_unfinished(self.storage, names)
        refuse_claimed(self.storage, names, but_by=target)

    def names(self) -> list[str]:
        """What lies in the directory `_sparkckpt`."""
        return self.storage.list_names(DIRECTORY)


@dataclass(frozen=True)
class Snapshot:
    """The state to be restored, and the logs of the query beside it."""

    metadata: CheckpointMetadata
    checkpoint_id: int | None
    """None: it is the last committed batch, which has no checkpoint."""
    newest_id: int
    """The highest id of a checkpoint in the source; 0 if it has none."""
    last_committed: int | None
    planned: LogEntry | None
    """The next batch after it, if the source has planned but not committed that one."""
    newest_offsets: LogEntry | None
    """What the source would go on with, if this is its last committed batch."""
    damage: str | None = None
    """What is wrong with the newest checkpoint, if the last committed batch was taken instead."""

    def is_still_there(self, source: Source) -> bool:
        """Whether the source has not subsumed the checkpoint meanwhile."""
        if self.checkpoint_id is None:
            return True
        return source.storage.exists(metadata_path(self.checkpoint_id))


def take_snapshot(source: Source, clock: Clock, held: bool = False) -> Snapshot:
    """The checkpoint that was named; else the newest state that can be taken.

    That is the newest checkpoint. If no query runs, it is the last committed batch, should that be
    newer: its checkpoint was not completed when the query ended; or should the newest checkpoint
    be damaged. With `held` the caller has the source's lease.
    """
    storage, names = source.storage, source.names()
    logs = Logs.read(storage)
    damage: CorruptStateError | None = None
    metadata: CheckpointMetadata | None = None
    try:
        metadata = _read_checkpoint(source, names)
    except CorruptStateError as error:
        if source.checkpoint_id is not None:
            raise
        damage = error
    checkpoint_id = metadata.checkpoint_id if metadata else None
    last = logs.commit.batch_id if logs.commit else None
    if source.checkpoint_id is None and (metadata is None or metadata.batch_id < (last or 0)):
        try:
            batch = _last_committed(source, logs, names, metadata is None, clock, held)
        except SparkckptError as error:
            if damage is None:
                raise
            raise damage from error
        if batch is not None:
            metadata = with_master_states(storage, batch.metadata)
            checkpoint_id = batch.checkpoint_id
    if metadata is None:
        raise CheckpointNotFoundError(storage.where(""), "at all", [])
    current = metadata.batch_id == last
    return Snapshot(
        metadata=metadata,
        checkpoint_id=checkpoint_id,
        newest_id=max(checkpoint_ids(names), default=0),
        last_committed=last,
        planned=_planned(logs, metadata),
        newest_offsets=logs.offsets_log if current else None,
        damage=str(damage) if damage else None,
    )


def _planned(logs: Logs, metadata: CheckpointMetadata) -> LogEntry | None:
    """The next batch, in the logs of a query or in what a savepoint has of them."""
    path = offsets_path(metadata.batch_id + 1)
    if logs.commit is None:
        states = (s for s in metadata.master_states if s.path == path)
        return next((LogEntry(path, state.content, path) for state in states), None)
    current = logs.commit.batch_id == metadata.batch_id
    return logs.offsets_log if current and logs.planned == metadata.batch_id + 1 else None


def _last_committed(
    source: Source, logs: Logs, names: Sequence[str], needed: bool, clock: Clock, held: bool
) -> CommittedBatch | None:
    """The last committed batch; None if a query runs and it can be done without."""
    storage = source.storage
    if logs.commit is None:
        raise CheckpointNotFoundError(storage.where(""), "at all", [])
    # Without a checkpoint nothing keeps a running query from deleting what is read.
    if not held and needed:
        refuse_others(storage, clock())
    elif not held and is_in_use(storage, clock()):
        return None
    return committed_batch(storage, logs.commit, names, lambda done, total: None)


def _read_checkpoint(source: Source, names: Sequence[str]) -> CheckpointMetadata | None:
    """The one that was named, else the newest that is complete, if there is one."""
    if source.checkpoint_id is not None:
        return named_checkpoint(source.storage, source.checkpoint_id, names)
    for checkpoint_id in reversed(checkpoint_ids(names)):
        try:
            return named_checkpoint(source.storage, checkpoint_id, names)
        except CheckpointNotFoundError:
            # It is being completed or removed at this moment, or never was complete.
            continue
    return None


@dataclass(frozen=True)
class Needed:
    """The files that state consists of, by the checkpoint directory they lie in."""

    files: Mapping[str, Sequence[str]]
    """Names of files, as a pin in that directory puts them."""

    @classmethod
    def of(cls, source: Source, metadata: CheckpointMetadata) -> "Needed":
        root = source.root
        names = dict.fromkeys(root.name_of(path) for path in metadata.files())
        files: dict[str, list[str]] = {source.url: list(names)}
        for name in filter(is_absolute, names):
            elsewhere = _STATE_FILE.fullmatch(name)
            if elsewhere is not None:
                files.setdefault(elsewhere[1], []).append(elsewhere[2])
        return cls(files)


def lay_pins(
    source: Source, needed: Needed, name: str, target: str, in_source: bool
) -> tuple[str, ...]:
    """Keeps the files from being deleted by their owners; the directories that got the pin.

    State that was restored before may lie in further directories, whose owners know only the pin
    of the source. A directory that is not a query's own needs none.
    """
    pinned = []
    for directory, files in needed.files.items():
        storage = source.storage.below(directory) if directory != source.url else source.storage
        if in_source if directory == source.url else storage.exists(DIRECTORY):
            storage.write_atomic(pin_path(name), pin_bytes(files, target))
            pinned.append(directory)
    return tuple(pinned)


def remove_pins(source: Source, name: str, directories: Iterable[str]) -> None:
    for directory in directories:
        storage = source.storage.below(directory) if directory != source.url else source.storage
        storage.delete([pin_path(name)])


def claim(owned: Exclusive, source: Source, target: str) -> None:
    """Gives the source, which is owned for this, up to the target.

    Planning may outlast the lease. A query that has started on the source meanwhile would go on
    with state that is no longer its own: then the claim is not made, or taken back.
    """
    owned.confirm()
    source.storage.write_atomic(CLAIMED_PATH, claimed_bytes(target), overwrite=True)
    try:
        owned.confirm()
    except NewerOwnerError:
        unclaim(source, target)
        raise


def unclaim(source: Source, target: str) -> None:
    """Takes back a claim of the target, that it does not want any more."""
    if claimed_by(source.storage) is not None:
        refuse_claimed(source.storage, source.names(), but_by=target)
        source.storage.delete([CLAIMED_PATH])
