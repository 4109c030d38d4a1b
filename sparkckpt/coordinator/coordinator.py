"""The checkpoint coordinator of one run of a query: from acknowledgements to completed checkpoints.

Events come in from one thread and never wait for storage. What takes time is done by workers: one
completes checkpoints, in the order of their batches; one deletes; and one does nothing but renew
the lease, which would expire if that had to wait for the others. Nothing here is on the query's
path, and all of it can be lost at any moment: whatever is missing is read again from the commit log
and from handles.
"""

import logging
import threading
import time
from collections.abc import Callable

from sparkckpt.coordinator.acks import Ack, AcknowledgeResult
from sparkckpt.coordinator.cleaner import CheckpointsCleaner
from sparkckpt.coordinator.committed import CommittedState
from sparkckpt.coordinator.completed import (
    CompletedCheckpointStore,
    FileCompletedCheckpointStore,
)
from sparkckpt.coordinator.failures import CheckpointFailureReason, reason_of
from sparkckpt.coordinator.finalizer import CheckpointFinalizer
from sparkckpt.coordinator.ids import CheckpointIDCounter
from sparkckpt.coordinator.janitor import Janitor, take_over
from sparkckpt.coordinator.ownership import Ownership
from sparkckpt.coordinator.pending import PendingCheckpoint, Phase
from sparkckpt.coordinator.reporter import CheckpointListener, CheckpointReporter, QueryRun
from sparkckpt.coordinator.restored import RESTORING_PATH, claimed_by
from sparkckpt.coordinator.settings import CoordinatorSettings
from sparkckpt.coordinator.source import RestoredSource
from sparkckpt.coordinator.tracker import CheckpointTracker
from sparkckpt.coordinator.workers import Worker, WorkerThread
from sparkckpt.errors import (
    ClaimedCheckpointError,
    NewerOwnerError,
    OwnedElsewhereError,
    RestorePendingError,
    SparkckptError,
    StoreUnavailableError,
)
from sparkckpt.storage import Storage

logger = logging.getLogger(__name__)

ACK_GRACE_MS = 1_000
"""So long after Spark's commit an acknowledgement may still be under way; then handles are read."""
RETRY_MS = 1_000
OWNED_ELSEWHERE_MS = 5_000
"""So often a resumed run looks whether another one that owns the directory has ended."""
SWEEP_INTERVAL_MS = 3_600_000
BACKEND_PATH = "_sparkckpt/backend.json"

Reason = CheckpointFailureReason


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class CheckpointCoordinator:
    """Completes the checkpoints of one run.

    `storage` is at the query's checkpointLocation. A coordinator writes nothing there before it
    knows that the query's state is ours: by `backend.json`, or by the first acknowledgement. With
    `resumed` the run had a coordinator before, which may have been overtaken by another run's.
    """

    def __init__(
        self,
        storage: Storage,
        run: QueryRun,
        settings: CoordinatorSettings,
        listener: CheckpointListener,
        *,
        resumed: bool = False,
        store: CompletedCheckpointStore | None = None,
        worker: Worker | None = None,
        janitor_worker: Worker | None = None,
        lease_worker: Worker | None = None,
        clock: Callable[[], int] = now_ms,
    ) -> None:
        self._storage = storage
        self._run = run
        self._settings = settings
        self._reporter = CheckpointReporter(run, settings, listener)
        self._clock = clock
        self._lock = threading.Lock()
        self._store = store or FileCompletedCheckpointStore.at(storage, settings.retained)
        self._tracker = CheckpointTracker(run.run_id, settings.interval, settings.max_waiting)
        self._ids = CheckpointIDCounter()
        self._committed = CommittedState(storage)
        self._ownership = Ownership(storage, run.run_id, clock, self._suspend, resumed=resumed)
        self._cleaner = CheckpointsCleaner(storage, settings.min_batches_to_retain)
        self._source = RestoredSource(storage, self._cleaner)
        self._finalizer = CheckpointFinalizer(
            run.query_id,
            self._committed,
            self._store,
            self._ids,
            self._cleaner,
            self._lock,
            clock,
        )
        self._janitor = Janitor(
            storage,
            self._store,
            self._cleaner,
            self._source,
            settings.min_batches_to_retain,
            self._ownership,
        )
        self._worker = worker or WorkerThread("sparkckpt-checkpoints")
        self._janitor_worker = janitor_worker or WorkerThread("sparkckpt-janitor")
        self._lease_worker = lease_worker or WorkerThread("sparkckpt-lease")
        self._recovered = False
        self._recovery_due_ms: int | None = None
        self._recovery_failure = ""
        self._ended = False
        self._swept_ms = clock()

    # Events. They come from one thread, and return at once.

    def query_started(self) -> None:
        """Takes over what former runs have left."""
        self._worker.submit(self._recover)

    def acknowledge(self, ack: Ack) -> AcknowledgeResult:
        """Takes a store's handle in. A batch that writes state proves that Spark has committed the
        one before it."""
        with self._lock:
            if self.is_suspended or self._ended:
                return AcknowledgeResult.STALE
            first = not self._tracker.acknowledged
            result = self._tracker.acknowledge(ack)
            if result is AcknowledgeResult.STALE:
                return result
            pending = self._tracker.get(ack.batch_id)
            proves_commit = ack.batch_id - 1 > self._tracker.latest_committed
            was_last = (
                pending is not None
                and result is AcknowledgeResult.NEW
                and pending.is_fully_acknowledged
            )
            if pending is not None and was_last:
                pending.retry_ms = 0
        if first:
            self._worker.submit(self._recover)
        if proves_commit:
            self.batch_committed(ack.batch_id - 1)
        if was_last:
            self._worker.submit(self._finalize_due)
        if pending is not None and pending.nondeterministic is not None:
            self._reporter.nondeterministic(pending.nondeterministic)
        return result

    def batch_committed(self, batch_id: int) -> None:
        """Spark has written the batch to its commit log."""
        with self._lock:
            if self.is_suspended:
                return
            skipped = self._tracker.committed(batch_id, self._clock())
        self._reporter.aborted(skipped, Reason.CHECKPOINT_SUBSUMED, "Storage cannot keep up.")
        self._worker.submit(self._finalize_due)

    def batch_aborted(self, batch_id: int, message: str = "") -> None:
        """The batch has failed and will not be committed in this run."""
        with self._lock:
            if batch_id <= self._tracker.latest_committed:
                return
            pending = self._tracker.settle(batch_id)
        if pending is not None:
            self._reporter.aborted([pending], Reason.CHECKPOINT_DECLINED, message)

    def query_ended(self, error: str | None = None) -> None:
        """The run is over: its last batch becomes a checkpoint, and the lease ends."""
        if not self._ended:
            self._ended = True
            self._worker.submit(lambda: self._finish(error))

    @property
    def owns(self) -> bool:
        """Whether the directory is known to be this run's."""
        return self._recovered and not self.is_suspended

    @property
    def is_suspended(self) -> bool:
        """Whether another coordinator has taken over: this one does nothing more."""
        return self._ownership.is_lost

    def complete_last(self) -> None:
        """No batch runs: the last one becomes a checkpoint, whatever the interval."""
        self._worker.submit(self._want_last)

    def tick(self) -> None:
        """Does what the time asks for; to be called about once a second."""
        now = self._clock()
        with self._lock:
            expired = self._tracker.expired(now, self._settings.timeout_ms)
            for pending in expired:
                self._tracker.settle(pending.batch_id)
            due = self._tracker.next_due(now) is not None
        for pending in expired:
            self._reporter.aborted([pending], Reason.CHECKPOINT_EXPIRED, pending.failure)
        if self._ownership.needs_renewal():
            self._lease_worker.submit(self._ownership.renew)
        if self.is_suspended or self._ended:
            return
        if self._recovery_due_ms is not None and self._recovery_due_ms <= now:
            self._worker.submit(self._recover)
        if due and self._recovered:
            self._worker.submit(self._finalize_due)
        if self._recovered and now - self._swept_ms >= SWEEP_INTERVAL_MS:
            self._swept_ms = now
            self._janitor_worker.submit(self._sweep)

    def drain(self, timeout_s: float) -> bool:
        """Ends the run if it has not ended, and waits for what is under way; whether all is done.

        What is not done is found by the next start.
        """
        self.query_ended()
        deadline = time.monotonic() + timeout_s
        done = self._worker.join(timeout_s)
        return self._janitor_worker.join(max(0.0, deadline - time.monotonic())) and done

    def close(self) -> None:
        """Ends the threads, without waiting."""
        self._worker.close()
        self._janitor_worker.close()
        self._lease_worker.close()
        self._store.close()

    # Work that needs storage, on the worker that completes.

    def _recover(self) -> None:
        """Takes ownership, and finds what former runs have completed and what they have missed."""
        if self._recovered or self.is_suspended:
            return
        try:
            if self._storage.exists(RESTORING_PATH):
                raise RestorePendingError(self._storage.where(""))
            if not (self._tracker.acknowledged or self._storage.exists(BACKEND_PATH)):
                return
            if by := claimed_by(self._storage):
                raise ClaimedCheckpointError(self._storage.where(""), by)
            self._store.claim(self._ownership.claim())
            ids = take_over(self._store, self._cleaner)
            self._ids.see([*ids, self._source.take_over()])
            batches = self._committed.batches()
        except NewerOwnerError:
            self._ownership.lose()
            return
        except SparkckptError as error:
            self._put_recovery_off(error)
            return
        self._committed.begin_run(max(batches, default=-1) + 1)
        completed = [checkpoint.batch_id for checkpoint in self._store.all()]
        with self._lock:
            skipped = self._tracker.recovered(batches, completed, self._clock())
            self._recovered = True
            self._recovery_due_ms = None
        self._reporter.aborted(skipped, Reason.CHECKPOINT_SUBSUMED, "Storage cannot keep up.")
        self._finalize_due()
        self._janitor_worker.submit(self._sweep)

    def _put_recovery_off(self, error: SparkckptError) -> None:
        """If it is the store that fails, or another that owns, the batches that wait are given up;
        the recovery makes up for them."""
        if str(error) != self._recovery_failure:
            logger.warning("The checkpoints of %s are not taken over yet. %s", self._run, error)
        self._recovery_failure = str(error)
        reason = None
        delay = RETRY_MS
        if isinstance(error, StoreUnavailableError):
            reason = Reason.IO_EXCEPTION
        elif isinstance(error, OwnedElsewhereError):
            reason, delay = Reason.CHECKPOINT_COORDINATOR_SUSPEND, OWNED_ELSEWHERE_MS
        self._recovery_due_ms = self._clock() + delay
        if reason is not None:
            with self._lock:
                waiting = [p for p in self._tracker.pending if p.phase is Phase.COMMITTED]
                for pending in waiting:
                    self._tracker.settle(pending.batch_id)
            self._reporter.aborted(waiting, reason, str(error))

    def _finalize_due(self) -> None:
        """Works off what is committed, oldest first."""
        while self._recovered and not self.is_suspended:
            with self._lock:
                pending = self._tracker.next_due(self._clock())
            if pending is None:
                return
            self._finalize(pending)

    def _finalize(self, pending: PendingCheckpoint) -> None:
        try:
            has_state = self._finalizer.look_up(pending)
        except Exception as error:
            logger.debug("The commit of batch %d is not read yet", pending.batch_id, exc_info=True)
            self._try_again(pending, error)
            return
        try:
            if not has_state:
                with self._lock:
                    self._tracker.settle(pending.batch_id)
            elif self._await_acks(pending):
                pending.retry_ms = pending.committed_ms + ACK_GRACE_MS
            elif pending.wanted:
                self._finalizer.read_outstanding(pending)
                self._complete(pending)
            else:
                self._keep_live(pending)
        except NewerOwnerError:
            self._ownership.lose()
        except SparkckptError as error:
            reason = reason_of(error)
            if reason is None:
                self._try_again(pending, error)
            else:
                self._give_up(pending, reason, error)
        except Exception as error:
            logger.exception("Completing batch %d of %s failed", pending.batch_id, self._run)
            self._give_up(pending, Reason.IO_EXCEPTION, error)

    def _await_acks(self, pending: PendingCheckpoint) -> bool:
        if pending.is_fully_acknowledged or pending.manifest_id is not None or self._ended:
            return False
        with self._lock:
            if not self._tracker.may_wait_for_acks(pending):
                return False
        return self._clock() < pending.committed_ms + ACK_GRACE_MS

    def _keep_live(self, pending: PendingCheckpoint) -> None:
        """The interval leaves the batch out; only its files matter, if they are all known."""
        if pending.is_fully_acknowledged:
            self._finalizer.hold_live(pending)
        with self._lock:
            pending.phase = Phase.LIVE
        self._janitor_worker.submit(self._clean)

    def _complete(self, pending: PendingCheckpoint) -> None:
        if not self._ownership.is_held():
            return
        with self._lock:
            if self._tracker.get(pending.batch_id) is not pending:
                return
            pending.finalizing = True
        completed = self._finalizer.complete(pending)
        with self._lock:
            older = self._tracker.completed(pending.batch_id)
        self._reporter.completed(completed)
        newer = f"Checkpoint {completed.checkpoint_id} is complete."
        self._reporter.aborted(older, Reason.CHECKPOINT_SUBSUMED, newer)
        self._janitor_worker.submit(self._clean)

    def _try_again(self, pending: PendingCheckpoint, error: Exception) -> None:
        if self._ended:
            self._give_up(pending, Reason.IO_EXCEPTION, error)
            return
        pending.finalizing = False
        pending.failure = str(error)
        pending.retry_ms = self._clock() + RETRY_MS

    def _give_up(
        self, pending: PendingCheckpoint, reason: CheckpointFailureReason, error: Exception
    ) -> None:
        with self._lock:
            settled = self._tracker.settle(pending.batch_id)
        if settled is not None:
            self._reporter.aborted([settled], reason, str(error))

    def _want_last(self) -> None:
        """The commit log is the truth: events may have been lost."""
        try:
            batches = self._committed.batches()
        except SparkckptError as unreadable:
            logger.warning("The last batches of %s are not known. %s", self._run, unreadable)
            batches = []
        with self._lock:
            now = self._clock()
            skipped = self._tracker.committed(max(batches, default=-1), now)
            self._tracker.want_last(now)
            for pending in self._tracker.pending:
                pending.retry_ms = 0
        self._reporter.aborted(skipped, Reason.CHECKPOINT_SUBSUMED, "Storage cannot keep up.")
        self._finalize_due()

    def _finish(self, error: str | None) -> None:
        self._recover()
        if not self._recovered or self.is_suspended:
            return
        self._want_last()
        with self._lock:
            left = [self._tracker.settle(p.batch_id) for p in self._tracker.pending]
        reason = Reason.JOB_FAILURE if error else Reason.CHECKPOINT_COORDINATOR_SHUTDOWN
        self._reporter.aborted(filter(None, left), reason, error or "")
        self._janitor_worker.submit(self._clean)
        self._janitor_worker.submit(self._release)

    # Work on the worker that deletes.

    def _clean(self) -> None:
        with self._lock:
            latest_version = self._tracker.latest_committed + 1
        self._tolerantly(lambda: self._janitor.clean(latest_version))

    def _sweep(self) -> None:
        self._tolerantly(self._janitor.sweep)

    def _release(self) -> None:
        self._tolerantly(self._ownership.release)

    def _tolerantly(self, work: Callable[[], object]) -> None:
        if self.is_suspended:
            return
        try:
            work()
        except SparkckptError as error:
            logger.warning("Cleaning up after %s is put off. %s", self._run, error)

    # Common to all threads.

    def _suspend(self) -> None:
        """Another coordinator owns the directory: this one does nothing more."""
        with self._lock:
            left = [self._tracker.settle(p.batch_id) for p in self._tracker.pending]
        message = f"A newer coordinator owns {self._storage.where('')}."
        logger.warning("The coordinator of %s stops. %s", self._run, message)
        self._reporter.aborted(filter(None, left), Reason.CHECKPOINT_COORDINATOR_SUSPEND, message)
