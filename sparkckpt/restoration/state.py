"""The state that a query is to go on from: a checkpoint, or the last batch that Spark committed.

Finds it and reads it, from metadata in one call where there is some, else from the handles that the
commit log names. It only reads, and never takes state for committed that Spark has not committed.
"""

import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from sparkckpt.coordinator.committed import CommittedState
from sparkckpt.coordinator.pending import PendingCheckpoint
from sparkckpt.errors import CheckpointNotFoundError, CorruptStateError, FileMissingError
from sparkckpt.format.manifest import load_manifest, named_manifest
from sparkckpt.format.metadata import (
    CheckpointMetadata,
    CheckpointStatistics,
    metadata_path,
    read_metadata,
)
from sparkckpt.sparklog import (
    CommitEntry,
    SparkCheckpoint,
    commits_path,
    offsets_path,
    parse_commit,
    parse_offsets,
)
from sparkckpt.sparklog.edits import SHUFFLE_PARTITIONS
from sparkckpt.storage import Storage

DIRECTORY = "_sparkckpt"
_LISTINGS = 5
_CHECKPOINT = re.compile(r"chk-(\d+)")

Progress = Callable[[int, int], None]
"""Told, again and again, how many files are done, and how many there are."""


@dataclass(frozen=True)
class LogEntry:
    """An entry of one of Spark's logs, as it lies there."""

    path: str
    content: bytes
    where: str


@dataclass(frozen=True)
class Logs:
    """The newest entries of Spark's logs, that a restart of the query begins with."""

    commit: CommitEntry | None
    commit_log: LogEntry | None
    offsets_log: LogEntry | None
    """Of the batch that was committed last, or of the next one if it is planned."""
    planned: int | None

    @classmethod
    def read(cls, storage: Storage) -> "Logs":
        """The logs of the query whose checkpoint directory `storage` is at."""
        newest, last = newest_batches(storage)
        paths = (
            None if last is None else commits_path(last),
            None if newest is None else offsets_path(newest),
        )
        with ThreadPoolExecutor(2, "sparkckpt-read") as readers:
            commit, offsets = readers.map(
                lambda path: None if path is None else log_entry(storage, path), paths
            )
        entry = parse_commit(commit.content, commit.where, last or 0) if commit else None
        return cls(entry, commit, offsets, newest)

    def with_commit(self, content: bytes) -> "Logs":
        """The same with other content of the last committed batch's entry."""
        assert self.commit is not None and self.commit_log is not None, "no batch is committed"
        log = replace(self.commit_log, content=content)
        entry = parse_commit(content, log.where, self.commit.batch_id)
        return replace(self, commit=entry, commit_log=log)

    @property
    def parallelism(self) -> int | None:
        """The number of partitions that the query is set to; None if its logs do not say."""
        if self.offsets_log is None or self.planned is None:
            return None
        log = self.offsets_log
        return parallelism_in(log.content, log.where, self.planned)


def newest_batches(storage: Storage) -> tuple[int | None, int | None]:
    """The last planned batch and the last committed one, as they once were at the same time.

    A batch is planned before it is committed, and the next one only after that. While a query runs,
    the logs are listed at different moments: where they do not fit, they are listed again.
    """
    spark = SparkCheckpoint(storage)
    newest, last = None, None
    for _ in range(_LISTINGS):
        with ThreadPoolExecutor(2, "sparkckpt-read") as readers:
            planned, committed = readers.map(
                lambda batches: batches(), (spark.planned_batches, spark.committed_batches)
            )
        last = max(committed, default=None)
        newest = max(planned, default=None)
        if not _follow(newest, last):
            newest = max(spark.planned_batches(), default=None)
        if _follow(newest, last):
            return newest, last
    raise CorruptStateError(
        storage.where(""),
        f"its last planned batch is {newest}, but its last committed one is {last}",
    )


def _follow(newest: int | None, last: int | None) -> bool:
    return newest in ((None, 0) if last is None else (last, last + 1))


def log_entry(storage: Storage, path: str) -> LogEntry:
    return LogEntry(path, storage.read_all(path), storage.where(path))


def parallelism_in(offsets: bytes, where: str, batch_id: int) -> int | None:
    """The number of partitions that an entry of the offset log sets."""
    text = parse_offsets(offsets, where, batch_id).confs.get(SHUFFLE_PARTITIONS)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and int(text)):
        raise CorruptStateError(where, f"it sets {SHUFFLE_PARTITIONS} to {text!r}")
    return int(text)


def checkpoint_ids(names: Sequence[str]) -> list[int]:
    """The checkpoints among the names in the directory `_sparkckpt`, ascending."""
    return sorted(int(found[1]) for name in names if (found := _CHECKPOINT.fullmatch(name)))


@dataclass(frozen=True)
class CommittedBatch:
    """The state of a committed batch."""

    metadata: CheckpointMetadata
    checkpoint_id: int | None
    """The checkpoint that it was taken from; None: it was read from handles or a manifest."""
    manifest_id: str | None
    """The manifest that the commit names already."""
    data: bytes | None = None
    """The metadata as it lies in the file it was taken from."""


def committed_batch(
    storage: Storage, commit: CommitEntry, names: Sequence[str], progress: Progress
) -> CommittedBatch:
    """The state that a batch was committed with; `names` are those in `_sparkckpt`."""
    where = storage.where(commits_path(commit.batch_id))
    manifest_id = named_manifest(commit, where)
    if manifest_id is not None:
        metadata = load_manifest(storage, manifest_id)
        if metadata.batch_id != commit.batch_id:
            raise CorruptStateError(where, f"{manifest_id} is of batch {metadata.batch_id}")
        return CommittedBatch(metadata, None, manifest_id)
    for checkpoint_id in checkpoint_ids(names)[-1:]:
        path = metadata_path(checkpoint_id)
        try:
            data = storage.read_all(path)
            metadata = read_metadata(data, storage.where(path))
        except (FileMissingError, CorruptStateError):
            # The handles say the same.
            break
        if metadata.batch_id == commit.batch_id and ids_in(metadata) == dict(commit.state_ids):
            return CommittedBatch(metadata, checkpoint_id, None, data)
    return CommittedBatch(_from_handles(storage, commit, progress), None, None)


def ids_in(metadata: CheckpointMetadata) -> dict[int, tuple[tuple[str, ...], ...]]:
    return {
        operator.operator_id: tuple(
            tuple(handle.id for handle in subtask.handles) for subtask in operator.subtasks
        )
        for operator in metadata.operator_states
    }


def _from_handles(storage: Storage, commit: CommitEntry, progress: Progress) -> CheckpointMetadata:
    pending = PendingCheckpoint(commit.batch_id)
    pending.commit(commit.state_ids)
    stores = pending.outstanding()
    committed = CommittedState(storage)
    for number, (store, handle) in enumerate(committed.load(commit.batch_id, stores), 1):
        pending.supply(store, handle)
        progress(number, len(stores))
    return CheckpointMetadata(
        checkpoint_id=0,
        batch_id=commit.batch_id,
        query_id=SparkCheckpoint(storage).query_id(),
        timestamp_ms=0,
        operator_states=pending.operator_states(),
        master_states=(),
        statistics=CheckpointStatistics(),
    )


def with_master_states(storage: Storage, metadata: CheckpointMetadata) -> CheckpointMetadata:
    """The state of a committed batch with Spark's own files, as they lie in the directory."""
    spark = SparkCheckpoint(storage)
    states = spark.master_states(metadata.batch_id)
    return replace(metadata, query_id=spark.query_id(), master_states=states)


def named_checkpoint(
    storage: Storage, checkpoint_id: int, names: Sequence[str]
) -> CheckpointMetadata:
    """The checkpoint with this id, which must exist."""
    ids = checkpoint_ids(names)
    path = metadata_path(checkpoint_id)
    try:
        if checkpoint_id in ids:
            return read_metadata(storage.read_all(path), storage.where(path))
    except FileMissingError:
        pass
    raise CheckpointNotFoundError(storage.where(""), str(checkpoint_id), list(map(str, ids)))
