"""Which batches are pending, before, at and after a recovery."""

from sparkckpt.coordinator.pending import Phase
from sparkckpt.coordinator.tracker import CheckpointTracker
from tests.unit.coordinator_samples import FakeQuery, ack_of

QUERY = FakeQuery()


def acked(tracker: CheckpointTracker, *batches: int) -> None:
    for batch in batches:
        tracker.acknowledge(ack_of(QUERY.attempt(batch, QUERY.stores[0])))


def committed(tracker: CheckpointTracker) -> list[int]:
    return [p.batch_id for p in tracker.pending if p.phase is Phase.COMMITTED]


def test_before_the_recovery_only_what_was_heard_of_is_pending() -> None:
    tracker = CheckpointTracker("run", 1, 10)
    acked(tracker, 1000, 1001)
    assert tracker.committed(1000, 0) == []
    assert committed(tracker) == [1000]
    assert tracker.recovered(range(900, 1001), [998], 0) == []
    assert committed(tracker) == [999, 1000]


def test_a_commit_that_the_listing_has_missed_stays_pending() -> None:
    tracker = CheckpointTracker("run", 1, 10)
    acked(tracker, 7)
    tracker.committed(7, 0)
    tracker.recovered([5, 6], [5, 6], 0)
    assert committed(tracker) == [7]


def test_before_the_first_commit_nothing_is_pending() -> None:
    tracker = CheckpointTracker("run", 1, 10)
    assert tracker.recovered([], [], 0) == []
    assert tracker.pending == []
    assert tracker.latest_committed == -1


def test_of_an_older_timeline_a_checkpoint_does_not_count() -> None:
    tracker = CheckpointTracker("run", 1, 10)
    tracker.recovered([3, 4, 5], [4, 9], 0)
    assert committed(tracker) == [5]


def test_after_the_recovery_batches_unheard_of_are_pending_too() -> None:
    tracker = CheckpointTracker("run", 1, 10)
    tracker.recovered([0], [0], 0)
    tracker.committed(3, 0)
    assert committed(tracker) == [1, 2, 3]


def test_no_more_wait_than_there_is_capacity_for() -> None:
    tracker = CheckpointTracker("run", 2, 2)
    tracker.recovered([], [], 0)
    skipped = [p.batch_id for batch in range(8) for p in tracker.committed(batch, 0)]
    assert skipped == [1, 3]
    assert [p.batch_id for p in tracker.pending if p.wanted] == [5, 7]
