"""Stops a running query with a savepoint of exactly the state that it stops at.

The query's coordinator is asked, through the checkpoint directory, to hold the query before its
next batch; then the savepoint is taken of its last batch, and only then the query is stopped. So a
query whose savepoint does not come about goes on. It must never stop a query by itself.
"""

import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from sparkckpt.checkpoints.directory import CheckpointDirectory, Location
from sparkckpt.coordinator.lease import Owner, running_owner
from sparkckpt.coordinator.stopping import (
    ANSWER_PATH,
    RENEWAL_SECONDS,
    REQUEST_PATH,
    StopRequest,
    Wish,
    read_answer,
    read_request,
)
from sparkckpt.errors import ClassicSessionNeededError, SparkckptError, StopRefusedError
from sparkckpt.restoration.exclusive import wall_clock
from sparkckpt.savepoints.merging import Progress
from sparkckpt.savepoints.take import SavepointReport, savepoint
from sparkckpt.sparklog import SparkCheckpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Found = TypeVar("Found")

TIMEOUT_SECONDS = 600.0
_POLL_SECONDS = 0.2
_END_SECONDS = 120.0
"""So long the query may take to end once it is told to, and its coordinator to be done."""


def stop_with_savepoint(
    query: "StreamingQuery | Location",
    target: Location,
    *,
    name: str | None = None,
    spark: "SparkSession | bool" = False,
    confs: Mapping[str, str] | None = None,
    threads: int | None = None,
    timeout: float = TIMEOUT_SECONDS,
    progress: Progress | None = None,
) -> SavepointReport:
    """Has a query finish its batch, takes a savepoint of the state after it, and stops the query.

    `query` is a running query of this application, or the checkpointLocation of one that runs
    anywhere, with its coordinator. Until the savepoint is there the query waits before its next
    batch; if none comes about, or the batch takes more than `timeout` seconds, the query goes on.
    The other arguments are those of `savepoint`.

    A query that ends by itself meanwhile has the savepoint taken of its end.
    """
    location = _location_of(query)
    run = _Run(CheckpointDirectory.open(location), time.monotonic() + timeout)
    with run.held():
        checkpoint_id = run.checkpoint_of_last_batch()
        report = savepoint(
            location,
            target,
            checkpoint_id=checkpoint_id,
            name=name,
            spark=spark,
            confs=confs,
            threads=threads,
            progress=progress,
        )
        run.stop(report)
    return report


def _location_of(query: "StreamingQuery | Location") -> Location:
    if isinstance(query, str) or hasattr(query, "__fspath__"):
        return query
    java_query: Any = getattr(query, "_jsq", None)
    if java_query is None:
        raise ClassicSessionNeededError("Stopping a query, other than by its checkpointLocation,")
    return str(java_query.streamingQuery().resolvedCheckpointRoot())


class _Run:
    """The run of the query that is asked to stop."""

    def __init__(self, directory: CheckpointDirectory, deadline: float) -> None:
        self._directory = directory
        self._storage = directory.storage
        self._deadline = deadline
        self._where = f"The query on {self._storage.where('')}"
        owner = self._owner()
        if owner is None or owner.run_id.startswith("command "):
            raise StopRefusedError.not_running(self._storage.where(""))
        self._request = StopRequest(str(uuid.uuid4()), owner.run_id, "hold", 0)
        self._lock = threading.Lock()
        self._ended = threading.Event()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Asks for the query to be held, and renews the request, until the end of the block."""
        other = read_request(self._storage)
        if other is not None and other.run_id == self._request.run_id and self._renews(other):
            raise StopRefusedError.asked_already(self._where)
        self._storage.delete([ANSWER_PATH])
        self._wish("hold")
        renewing = threading.Thread(target=self._renew, name="sparkckpt-stop", daemon=True)
        renewing.start()
        try:
            yield
        finally:
            self._ended.set()
            renewing.join()
            self._storage.delete([REQUEST_PATH, ANSWER_PATH])

    def checkpoint_of_last_batch(self) -> int | None:
        """Waits until the query is held and the checkpoint of its last batch complete; its id.

        None if the query has ended by itself: then its last batch is what there is.
        """
        held = self._await(lambda: not self._is_running() or self._state() == "held")
        if held is None:
            why = "its batch did not end in time. Give it more time (--timeout), or try again."
            raise StopRefusedError.goes_on(self._where, why)
        if not self._is_running():
            return None
        batch_id = self._last_batch()
        if batch_id is None:
            raise StopRefusedError.goes_on(
                self._where, "it has no committed batch yet. Try again later."
            )
        found = self._await(lambda: self._checkpoint_of(batch_id))
        if found is None:
            why = f"the checkpoint of batch {batch_id} did not complete in time; its log says why."
            raise StopRefusedError.goes_on(self._where, why)
        return found

    def stop(self, report: SavepointReport) -> None:
        """Has the query stopped, and waits for its end."""
        if self._is_running():
            if self._last_batch() == report.batch_id:
                self._wish("stop")
            self._deadline = time.monotonic() + _END_SECONDS
            self._await(lambda: not self._is_running() or self._lost(report))
        # It may have been let go and held again, if its coordinator was gone for a while.
        if self._is_running() or self._last_batch() != report.batch_id:
            raise StopRefusedError.went_on(self._where, report.path, report.batch_id)

    def _wish(self, wish: Wish) -> None:
        with self._lock:
            self._request = replace(self._request, wish=wish, renewal=self._request.renewal + 1)
            self._storage.write_atomic(REQUEST_PATH, self._request.to_bytes(), overwrite=True)

    def _renew(self) -> None:
        while not self._ended.wait(RENEWAL_SECONDS):
            try:
                self._wish(self._request.wish)
            except SparkckptError:
                # The next renewal may succeed; if none does, the query goes on, and `stop` says so.
                continue

    def _renews(self, other: StopRequest) -> bool:
        """Whether somebody else, who lives, is asking for the same."""
        time.sleep(RENEWAL_SECONDS * 1.5)
        return read_request(self._storage) not in (None, other)

    def _owner(self) -> Owner | None:
        return running_owner(self._storage, wall_clock())

    def _is_running(self) -> bool:
        owner = self._owner()
        return owner is not None and owner.run_id == self._request.run_id

    def _state(self) -> str | None:
        answer = read_answer(self._storage)
        return answer.state if answer is not None and answer.id == self._request.id else None

    def _lost(self, report: SavepointReport) -> bool:
        return self._state() == "lost" or self._last_batch() != report.batch_id

    def _last_batch(self) -> int | None:
        return max(SparkCheckpoint(self._storage).committed_batches(), default=None)

    def _checkpoint_of(self, batch_id: int) -> int | None:
        ids = self._directory.complete_ids()
        newest = self._directory.metadata(ids[-1]) if ids else None
        return ids[-1] if newest is not None and newest.batch_id == batch_id else None

    def _await(self, look: Callable[[], Found | None]) -> Found | None:
        """What is found before the deadline; None or False is nothing."""
        while not (found := look()):
            if time.monotonic() >= self._deadline:
                return None
            time.sleep(_POLL_SECONDS)
        return found
