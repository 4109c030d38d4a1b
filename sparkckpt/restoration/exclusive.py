"""A command that changes a checkpoint directory while no query runs on it.

It takes the lease that a coordinator would take, so that other commands keep away, and makes sure
before each change that nobody has taken over. A command that was killed holds its lease until it
expires, except from a later one on the same machine, which can see that it is gone.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sparkckpt.coordinator.lease import Lease, Owner, refuse_if_running, running_owner
from sparkckpt.errors import NewerOwnerError
from sparkckpt.storage import Storage

Clock = Callable[[], int]
"""Milliseconds since 1970."""

_COMMAND = "command "
"""How the run of a command is named in its lease; a query's is a UUID."""


def wall_clock() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class Exclusive:
    """The right to change a checkpoint directory."""

    storage: Storage
    lease: Lease
    clock: Clock

    def confirm(self) -> None:
        """Raises NewerOwnerError if a query, or another command, has taken over."""
        if self.lease.needs_renewal(self.clock()):
            held = self.lease.renew(self.clock())
        else:
            held = self.lease.is_held()
        if not held:
            raise NewerOwnerError(self.storage.where(""))

    def keep(self) -> None:
        """The same where it is asked often: only now and then it looks."""
        if self.lease.needs_renewal(self.clock()):
            self.confirm()


@contextmanager
def exclusively(
    storage: Storage, command: str, clock: Clock, run_id: str | None = None
) -> Iterator[Exclusive]:
    """Raises QueryRunningError if a query, or another command, is at work.

    With `run_id` it is a run of the directory's own query that begins with this: as any run does,
    it takes over from a former one, whose lease may not have expired if its driver was killed.
    """
    if run_id is None:
        refuse_others(storage, clock())
    lease = Lease.claim(storage, run_id or _COMMAND + command, clock())
    try:
        yield Exclusive(storage, lease, clock)
    finally:
        lease.release(clock())


def is_in_use(storage: Storage, now_ms: int) -> bool:
    """Whether a query runs, or a command that has not been killed."""
    owner = running_owner(storage, now_ms)
    return owner is not None and not _is_dead_command(owner)


def refuse_others(storage: Storage, now_ms: int) -> None:
    """Raises QueryRunningError if the directory is in use."""
    if is_in_use(storage, now_ms):
        refuse_if_running(storage, now_ms, ", and nothing was changed")


def _is_dead_command(owner: Owner) -> bool:
    return owner.run_id.startswith(_COMMAND) and owner.process.is_gone
