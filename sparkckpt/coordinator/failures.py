"""Why a checkpoint fails, and how many failures in a row are too many.

Decisions on values; what follows from them (a warning, a stopped query) is the coordinator's.
"""

import enum

from sparkckpt.errors import (
    CheckpointNotStoredError,
    CorruptStateError,
    FileMissingError,
    PossiblyInconsistentCheckpointError,
    SparkckptError,
    StoreUnavailableError,
    UnsupportedFormatVersionError,
)


class CheckpointFailureReason(enum.Enum):
    """Why a pending checkpoint was given up; Flink's names where Flink has the reason."""

    CHECKPOINT_EXPIRED = "it was not complete within the timeout after Spark's commit"
    CHECKPOINT_DECLINED = "its batch was aborted"
    CHECKPOINT_SUBSUMED = "a newer checkpoint has taken its place"
    FINALIZE_CHECKPOINT_FAILURE = "its metadata could not be stored"
    IO_EXCEPTION = "storage failed"
    STATE_UNREADABLE = "state that Spark has committed is missing or damaged"
    JOB_FAILURE = "the query failed"
    CHECKPOINT_COORDINATOR_SHUTDOWN = "the query ended"
    CHECKPOINT_COORDINATOR_SUSPEND = "another coordinator owns the checkpoint directory"

    @property
    def counts(self) -> bool:
        """False where nothing is wrong with checkpointing itself."""
        return self in _COUNTED


_COUNTED = frozenset(
    {
        CheckpointFailureReason.CHECKPOINT_EXPIRED,
        CheckpointFailureReason.CHECKPOINT_DECLINED,
        CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE,
        CheckpointFailureReason.IO_EXCEPTION,
        CheckpointFailureReason.STATE_UNREADABLE,
    }
)


def reason_of(error: SparkckptError) -> CheckpointFailureReason | None:
    """Why an error ends a checkpoint; None if the next try may succeed."""
    match error:
        case StoreUnavailableError():
            return CheckpointFailureReason.IO_EXCEPTION
        case CheckpointNotStoredError() | PossiblyInconsistentCheckpointError():
            return CheckpointFailureReason.FINALIZE_CHECKPOINT_FAILURE
        case FileMissingError() | CorruptStateError() | UnsupportedFormatVersionError():
            return CheckpointFailureReason.STATE_UNREADABLE
    return None


class CheckpointFailureManager:
    """Counts failures in a row, each batch once; a success begins the count anew."""

    UNLIMITED = -1

    def __init__(self, tolerable: int = UNLIMITED) -> None:
        self._tolerable = tolerable
        self._failed: set[int] = set()
        self._last_success = -1

    @property
    def consecutive_failures(self) -> int:
        return len(self._failed)

    def failed(self, batch_id: int, reason: CheckpointFailureReason) -> bool:
        """Whether this failure is one more than is tolerated."""
        if not reason.counts or batch_id <= self._last_success:
            return False
        self._failed.add(batch_id)
        if self._tolerable == self.UNLIMITED or len(self._failed) <= self._tolerable:
            return False
        self._failed.clear()
        return True

    def succeeded(self, batch_id: int) -> None:
        if batch_id > self._last_success:
            self._last_success = batch_id
            self._failed.clear()
