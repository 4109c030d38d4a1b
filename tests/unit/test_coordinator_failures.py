"""Counting failures, as Flink does: in a row, each checkpoint once."""

import pytest

from sparkckpt.coordinator.failures import CheckpointFailureManager, CheckpointFailureReason

Reason = CheckpointFailureReason


def test_unlimited_by_default() -> None:
    manager = CheckpointFailureManager()
    assert not any(manager.failed(batch, Reason.CHECKPOINT_EXPIRED) for batch in range(1000))


def test_one_more_than_tolerated_and_the_count_begins_anew() -> None:
    manager = CheckpointFailureManager(2)
    verdicts = [manager.failed(batch, Reason.IO_EXCEPTION) for batch in range(6)]
    assert verdicts == [False, False, True, False, False, True]


def test_a_success_begins_the_count_anew() -> None:
    manager = CheckpointFailureManager(1)
    assert not manager.failed(0, Reason.STATE_UNREADABLE)
    manager.succeeded(1)
    assert manager.consecutive_failures == 0
    assert not manager.failed(2, Reason.STATE_UNREADABLE)


def test_a_batch_counts_once_and_not_after_a_later_success() -> None:
    manager = CheckpointFailureManager(0)
    manager.succeeded(5)
    assert not manager.failed(4, Reason.CHECKPOINT_EXPIRED)
    assert manager.failed(6, Reason.CHECKPOINT_EXPIRED)


@pytest.mark.parametrize(
    "reason",
    [
        Reason.CHECKPOINT_SUBSUMED,
        Reason.JOB_FAILURE,
        Reason.CHECKPOINT_COORDINATOR_SHUTDOWN,
        Reason.CHECKPOINT_COORDINATOR_SUSPEND,
    ],
)
def test_what_is_no_failure_of_checkpointing_does_not_count(reason: Reason) -> None:
    assert not CheckpointFailureManager(0).failed(1, reason)
