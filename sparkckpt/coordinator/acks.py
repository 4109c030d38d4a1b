"""The acknowledgement of one store: the handle that a task has written, and how long that took.

Values only. Whether an acknowledgement counts is decided elsewhere: an id is worth nothing until
Spark's commit log names it.
"""

import enum
from dataclasses import dataclass

from sparkckpt.format.handle import StateHandle


@dataclass(frozen=True)
class Ack:
    """A handle as a task reports it; `received_ms` is the driver's clock, the rest the task's."""

    run_id: str
    handle: StateHandle
    received_ms: int
    sync_ms: int
    write_ms: int
    bytes_written: int
    task_attempt: int

    @property
    def batch_id(self) -> int:
        """State of version v is what batch v - 1 leaves behind."""
        return self.handle.version - 1


class AcknowledgeResult(enum.Enum):
    """What became of an acknowledgement."""

    NEW = "new"
    """It is the first of this id, and its batch is still pending."""
    DUPLICATE = "duplicate"
    """The same id was acknowledged before, in a batch that is still pending."""
    LATE = "late"
    """Its id is the committed one, but its batch is settled and has no need of it any more."""
    STALE = "stale"
    """Nothing will ever need it: another run, an aborted batch, or an attempt that lost."""
