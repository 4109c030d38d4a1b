"""Takes a savepoint: a snapshot of a query's state that belongs to the user.

The checkpoint is pinned while it is read, so that a running query may go on and clean up. All files
of the target come into being before the metadata: interrupted at any moment there is no savepoint,
and the next try, which may be of another checkpoint, begins from the start.
"""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkckpt.checkpoints.directory import Location
from sparkckpt.coordinator.committed import STATE
from sparkckpt.coordinator.restored import read_restored
from sparkckpt.coordinator.savepoints import SavepointMarker, is_complete, read_savepoint
from sparkckpt.errors import CheckpointNotFoundError, SavepointExistsError
from sparkckpt.format import CheckpointMetadata, MasterState
from sparkckpt.keygroups import DEFAULT_MAX_PARALLELISM
from sparkckpt.restoration.copies import copy_sources
from sparkckpt.restoration.exclusive import Clock, wall_clock
from sparkckpt.restoration.leftovers import clear_leftover
from sparkckpt.restoration.markers import pinned_max_parallelism
from sparkckpt.restoration.source import (
    Needed,
    Snapshot,
    Source,
    lay_pins,
    open_storage,
    remove_pins,
    take_snapshot,
)
from sparkckpt.restoration.state import checkpoint_ids
from sparkckpt.savepoints.merging import MergePart, Progress, merge_in_threads, parts_of
from sparkckpt.savepoints.writer import SavepointWriter, WrittenStore
from sparkckpt.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TRIES = 5

Merge = Callable[[list[MergePart]], list[WrittenStore]]


@dataclass(frozen=True)
class SavepointOperator:
    """An operator in a savepoint."""

    operator_id: int
    name: str
    parallelism: int
    stores: tuple[str, ...]
    rows: int
    files: int
    bytes: int


@dataclass(frozen=True)
class SavepointReport:
    """A savepoint that was taken."""

    path: str
    name: str
    source: str
    checkpoint_id: int
    batch_id: int
    query_id: str
    operators: tuple[SavepointOperator, ...]
    rows: int
    files: int
    bytes: int
    seconds: float


def savepoint(
    source: Location,
    target: Location,
    *,
    checkpoint_id: int | None = None,
    name: str | None = None,
    spark: "SparkSession | bool" = False,
    confs: Mapping[str, str] | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
) -> SavepointReport:
    """Takes a savepoint of a query, running or stopped, in the new directory `target`.

    `source` is a checkpointLocation, of which the newest checkpoint is taken or that with
    `checkpoint_id`, or a directory `_sparkckpt/chk-<id>` in one. The savepoint holds everything
    that a restore needs, can be moved or copied elsewhere, and is never deleted by sparkckpt.
    `name` is what it calls itself, by default the last part of `target`.

    The state is merged by `threads` of this process, by default one for each processor; or by a
    Spark job, in the session given as `spark`, or with `spark=True` in the active one or else in
    one of its own, that gets `confs`. `progress` is told how many parts are merged, and how many
    there are.

    One that was broken off can be taken again with the same target.
    """
    opened = Source.at(source, checkpoint_id)
    storage, url = open_storage(target)
    taking = Taking(opened, storage, url, name or last_part(url), wall_clock)

    def in_threads(parts: list[MergePart]) -> list[WrittenStore]:
        root = opened.storage.below(STATE)
        return merge_in_threads(parts, root, storage.below(STATE), tell, threads)

    def with_spark(parts: list[MergePart]) -> list[WrittenStore]:
        from sparkckpt.savepoints.spark import merge_with_spark, savepoint_session

        given = None if isinstance(spark, bool) else spark
        with savepoint_session(given, confs or {}) as session:
            roots = (opened.root.url, f"{url}/{STATE}")
            return merge_with_spark(session, parts, *roots, tell)

    tell = progress or say_nothing
    return taking.run(in_threads if spark is False else with_spark)


@dataclass(frozen=True)
class Taking:
    """A savepoint that is being taken of `source`; `revised` may change Spark's own files in it."""

    source: Source
    target: Storage
    url: str
    name: str
    clock: Clock
    revised: Callable[[Sequence[MasterState]], Sequence[MasterState]] = tuple

    def run(self, merge: Merge) -> SavepointReport:
        began = time.monotonic()
        self.source.refuse_if_unusable(self.url)
        if self.url == self.source.root.url or self.url.startswith(f"{self.source.root.url}/"):
            raise SavepointExistsError.inside_state(self.target.where(""))
        leftover = self._leftover()
        with self._pinned(leftover) as (writer, kept):
            metadata = kept.metadata
            merged = merge(parts_of(metadata.operator_states))
            copy_sources(self.source.storage, self.target)
            written = writer.complete(
                merged,
                checkpoint_id=self._checkpoint_id(kept),
                batch_id=metadata.batch_id,
                query_id=metadata.query_id,
                max_parallelism=self._max_parallelism(metadata),
                master_states=tuple(self.revised(_master_states(kept))),
                duration_ms=int((time.monotonic() - began) * 1000),
            )
        return report_of(
            written,
            path=self.target.where(""),
            name=self.name,
            source=self.source.storage.where(""),
            seconds=time.monotonic() - began,
        )

    def _leftover(self) -> SavepointMarker | None:
        """The try that was broken off here; None if the target is new."""
        leftover = read_savepoint(self.target)
        where = self.target.where("")
        if leftover is None:
            names = sorted({path.split("/")[0] for path in self.target.find("")})
            if names:
                raise SavepointExistsError.not_empty(where, names)
            return None
        if is_complete(self.target):
            raise SavepointExistsError.complete(where, leftover.name)
        if leftover.source != self.source.url or leftover.is_under_way:
            by = f"process {leftover.pid} on {leftover.host}"
            raise SavepointExistsError.under_way(where, leftover.source, by)
        return leftover

    @contextmanager
    def _pinned(
        self, leftover: SavepointMarker | None
    ) -> Iterator[tuple[SavepointWriter, Snapshot]]:
        """Marks the target, and keeps the files of a checkpoint for as long as they are read.

        A running query may remove it before it sees the pin. Then a newer one is taken, unless this
        very one was asked for; with another pin, since an owner reads each only once.
        """
        for number in range(_TRIES):
            snapshot = take_snapshot(self.source, self.clock)
            pin = f"savepoint-{uuid.uuid4()}"
            marker = SavepointMarker.here(self.name, self.source.url, pin, self.clock())
            writer = SavepointWriter(self.target, marker)
            writer.begin(again=leftover is not None or number > 0)
            needed = Needed.of(self.source, snapshot.metadata)
            directories = lay_pins(self.source, needed, pin, self.url, in_source=True)
            try:
                if leftover is not None:
                    remove_pins(self.source, leftover.pin, directories)
                    clear_leftover(self.target)
                    leftover = None
                if snapshot.is_still_there(self.source):
                    yield writer, snapshot
                    return
            finally:
                remove_pins(self.source, pin, directories)
            if self.source.checkpoint_id is not None:
                break
        ids = list(map(str, checkpoint_ids(self.source.names())))
        where, gone = self.source.storage.where(""), str(snapshot.checkpoint_id)
        raise CheckpointNotFoundError(where, gone, ids)

    def _checkpoint_id(self, snapshot: Snapshot) -> int:
        """Queries that are restored from it give their checkpoints ids above it."""
        if snapshot.checkpoint_id is not None:
            return snapshot.checkpoint_id
        restored = read_restored(self.source.storage)
        return max(snapshot.newest_id, restored.checkpoint_id if restored else 0) + 1

    def _max_parallelism(self, metadata: CheckpointMetadata) -> int:
        """That of the state, if there is any: it may be about to be read into another number."""
        found = {operator.max_parallelism for operator in metadata.operator_states}
        pinned = pinned_max_parallelism(self.source.storage)
        return max(found) if found else pinned or DEFAULT_MAX_PARALLELISM


def _master_states(snapshot: Snapshot) -> tuple[MasterState, ...]:
    """With the next batch, if it is planned: it is to be run with the same offsets."""
    states = snapshot.metadata.master_states
    planned = snapshot.planned
    if planned is None or any(state.path == planned.path for state in states):
        return states
    return tuple(
        sorted((*states, MasterState(planned.path, planned.content)), key=lambda s: s.path)
    )


def report_of(
    metadata: CheckpointMetadata, *, path: str, name: str, source: str, seconds: float
) -> SavepointReport:
    """What was written, in figures."""
    operators = []
    for operator in metadata.operator_states:
        refs = [file for handle in operator.handles for file in handle.files]
        data = [data for handle in operator.handles for data in handle.data]
        operators.append(
            SavepointOperator(
                operator_id=operator.operator_id,
                name=operator.operator_name,
                parallelism=operator.parallelism,
                stores=tuple(handle.store_name for handle in operator.subtasks[0].handles),
                rows=sum(ref.rows for ref in refs),
                files=len(data),
                bytes=sum(part.length for part in data),
            )
        )
    return SavepointReport(
        path=path,
        name=name,
        source=source,
        checkpoint_id=metadata.checkpoint_id,
        batch_id=metadata.batch_id,
        query_id=metadata.query_id,
        operators=tuple(operators),
        rows=sum(operator.rows for operator in operators),
        files=sum(operator.files for operator in operators),
        bytes=sum(operator.bytes for operator in operators),
        seconds=seconds,
    )


def last_part(url: str) -> str:
    return url.rstrip("/").rpartition("/")[2] or "savepoint"


def say_nothing(done: int, total: int) -> None:
    """Nobody watches."""
