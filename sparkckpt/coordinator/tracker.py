"""All batches of one run of a query that are on their way to a checkpoint.

Tells acknowledgements apart, knows which batches Spark has committed, which of them are to become
checkpoints and which to skip when storage cannot keep up. Pure: events in, decisions out.
"""

from collections.abc import Collection

from sparkckpt.coordinator.acks import Ack, AcknowledgeResult
from sparkckpt.coordinator.pending import PendingCheckpoint, Phase

REMEMBERED_BATCHES = 8
"""Of so many settled batches the committed ids are kept, to tell late acks from stale ones."""


class CheckpointTracker:
    """The pending checkpoints of one run.

    `capacity` is how many batches may wait for their completion. The older ones beyond it are
    skipped: as soon as the newer ones are complete the store would subsume them anyway.
    """

    def __init__(self, run_id: str, interval: int, capacity: int) -> None:
        self._run_id = run_id
        self._interval = interval
        self._capacity = capacity
        self._pending: dict[int, PendingCheckpoint] = {}
        self._settled: dict[int, frozenset[tuple[int, int, str]]] = {}
        self.latest_committed = -1
        self._latest_completed = -1
        self._is_recovered = False
        self.acknowledged = False
        """Whether any store of this run was acknowledged: the query's state is ours."""

    def get(self, batch_id: int) -> PendingCheckpoint | None:
        return self._pending.get(batch_id)

    @property
    def pending(self) -> list[PendingCheckpoint]:
        return [self._pending[batch_id] for batch_id in sorted(self._pending)]

    def acknowledge(self, ack: Ack) -> AcknowledgeResult:
        if ack.run_id != self._run_id:
            return AcknowledgeResult.STALE
        self.acknowledged = True
        batch_id = ack.batch_id
        if batch_id in self._pending:
            return self._pending[batch_id].acknowledge(ack)
        if batch_id in self._settled:
            handle = ack.handle
            committed = (handle.operator_id, handle.partition, handle.id) in self._settled[batch_id]
            return AcknowledgeResult.LATE if committed else AcknowledgeResult.STALE
        if batch_id <= self.latest_committed:
            return AcknowledgeResult.STALE
        return self._of(batch_id).acknowledge(ack)

    def committed(self, batch_id: int, now_ms: int) -> list[PendingCheckpoint]:
        """Notes that Spark has committed the batch, and so all before it; returns the skipped ones.

        After the recovery, batches of which nothing was heard are pending too: their handles can
        be read. Before it, it is not known what they are.
        """
        first = max(self.latest_committed + 1, batch_id + 1 - self._capacity * self._interval)
        for committed in range(first, batch_id + 1):
            if self._is_recovered or committed in self._pending:
                self._commit(self._of(committed), now_ms)
        self.latest_committed = max(self.latest_committed, batch_id)
        self._end_waiting_for_acks()
        self._drop_unwanted()
        return self._skip_excess()

    def recovered(
        self, in_log: Collection[int], completed: Collection[int], now_ms: int
    ) -> list[PendingCheckpoint]:
        """Takes in what the commit log and the store of completed checkpoints hold at the start.

        Pending afterwards: the newest committed batches that want a checkpoint and come after the
        last one that has one. Returns those that had been pending and are skipped.
        """
        self._is_recovered = True
        logged = max(in_log, default=max(-1, self.latest_committed - 1))
        batches = [*sorted(in_log), *range(logged + 1, self.latest_committed + 1)]
        self.latest_committed = max(self.latest_committed, logged)
        self._latest_completed = last = max(
            (batch_id for batch_id in completed if batch_id <= self.latest_committed), default=-1
        )
        missing = [b for b in batches if b > last and self._wants_checkpoint(b)]
        for batch_id in [b for b in self._pending if b <= self.latest_committed]:
            if batch_id not in missing:
                del self._pending[batch_id]
        for batch_id in missing[-self._capacity :]:
            self._commit(self._of(batch_id), now_ms)
        self._end_waiting_for_acks()
        return self._skip_excess()

    def want_last(self, now_ms: int) -> None:
        """The run is over: its last committed batch becomes a checkpoint whatever the interval."""
        last = self.latest_committed
        if last > self._latest_completed and last not in self._settled:
            pending = self._of(last)
            pending.wanted = True
            self._commit(pending, now_ms)

    def next_due(self, now_ms: int) -> PendingCheckpoint | None:
        """The oldest committed batch that is to be looked at now."""
        for pending in self.pending:
            if pending.phase is Phase.COMMITTED and pending.retry_ms <= now_ms:
                return pending
        return None

    def expired(self, now_ms: int, timeout_ms: int) -> list[PendingCheckpoint]:
        return [
            pending
            for pending in self.pending
            if pending.phase is Phase.COMMITTED
            and not pending.finalizing
            and now_ms - pending.committed_ms >= timeout_ms
        ]

    def settle(self, batch_id: int) -> PendingCheckpoint | None:
        """Takes a batch out that is completed or given up."""
        pending = self._pending.pop(batch_id, None)
        if pending is not None:
            self._settled[batch_id] = pending.committed_ids
            while len(self._settled) > REMEMBERED_BATCHES:
                del self._settled[min(self._settled)]
        return pending

    def completed(self, batch_id: int) -> list[PendingCheckpoint]:
        """Settles a completed batch; returns the older ones that it subsumes."""
        self.settle(batch_id)
        self._latest_completed = max(self._latest_completed, batch_id)
        older = [p for p in self.pending if p.batch_id < batch_id and p.wanted]
        for pending in older:
            self.settle(pending.batch_id)
        return older

    def _of(self, batch_id: int) -> PendingCheckpoint:
        pending = self._pending.get(batch_id)
        if pending is None:
            pending = PendingCheckpoint(batch_id, self._wants_checkpoint(batch_id))
            self._pending[batch_id] = pending
        return pending

    def _wants_checkpoint(self, batch_id: int) -> bool:
        return (batch_id + 1) % self._interval == 0

    @staticmethod
    def _commit(pending: PendingCheckpoint, now_ms: int) -> None:
        if pending.phase is not Phase.COMMITTED:
            pending.phase = Phase.COMMITTED
            pending.committed_ms = now_ms

    def may_wait_for_acks(self, pending: PendingCheckpoint) -> bool:
        """Only the last committed batch: checkpoints are completed in the order of batches, so
        that an older one would hold up the newer."""
        return pending.batch_id == self.latest_committed

    def _end_waiting_for_acks(self) -> None:
        for pending in self._pending.values():
            if not pending.failure and not self.may_wait_for_acks(pending):
                pending.retry_ms = 0

    def _drop_unwanted(self) -> None:
        """Only the last committed batch may yet become a checkpoint out of turn."""
        for pending in self.pending:
            if pending.phase is Phase.LIVE and pending.batch_id < self.latest_committed:
                self.settle(pending.batch_id)

    def _skip_excess(self) -> list[PendingCheckpoint]:
        waiting = [p for p in self.pending if p.phase is Phase.COMMITTED and not p.finalizing]
        skipped = []
        for wanted in (True, False):
            group = [pending for pending in waiting if pending.wanted is wanted]
            skipped += group[: max(0, len(group) - self._capacity)]
        for pending in skipped:
            self.settle(pending.batch_id)
        return [pending for pending in skipped if pending.wanted]
