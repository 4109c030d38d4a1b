"""Whether a coordinator may still complete and delete: its lease, and that it is lost for good.

Once another coordinator has taken over, nothing is completed or deleted here any more, whatever
becomes of the other. The run begins again with a new Ownership, as one that is resumed: unlike a
query that is started, it may have been overtaken before, and so takes the directory from nobody
who is at work.
"""

import logging
import threading
from collections.abc import Callable

from sparkckpt.coordinator.lease import Lease, running_owner
from sparkckpt.errors import OwnedElsewhereError, SparkckptError
from sparkckpt.storage import Storage

logger = logging.getLogger(__name__)


class Ownership:
    """The lease of one run; `on_lost` is called once. Safe to be used by several threads."""

    def __init__(
        self,
        storage: Storage,
        run_id: str,
        clock: Callable[[], int],
        on_lost: Callable[[], None],
        *,
        resumed: bool = False,
    ) -> None:
        self._storage = storage
        self._run_id = run_id
        self._clock = clock
        self._on_lost = on_lost
        self._resumed = resumed
        self._lock = threading.Lock()
        self._lease: Lease | None = None
        self._is_lost = False

    @property
    def is_lost(self) -> bool:
        return self._is_lost

    def claim(self) -> Lease:
        """Becomes the owner, the first time it is called.

        Raises OwnedElsewhereError where a resumed run must not.
        """
        if self._lease is None:
            if self._resumed:
                self._refuse_to_take_over()
            self._lease = Lease.claim(self._storage, self._run_id, self._clock())
        return self._lease

    def _refuse_to_take_over(self) -> None:
        """A process that was replaced within this run has left a lease that is the run's own."""
        owner = running_owner(self._storage, self._clock())
        if owner is not None and owner.run_id != self._run_id:
            raise OwnedElsewhereError(self._storage.where(""), owner.describe())

    def is_held(self) -> bool:
        """Whether this coordinator may still complete and delete."""
        if self._lease is None or self._is_lost:
            return False
        if not self._lease.is_held():
            self.lose()
        return not self._is_lost

    def needs_renewal(self) -> bool:
        """Whether it is time to; also while a run that has ended has work left."""
        if self._lease is None or self._is_lost:
            return False
        return self._lease.needs_renewal(self._clock())

    def renew(self) -> None:
        if self._lease is None:
            return
        try:
            if not self._lease.renew(self._clock()):
                self.lose()
        except SparkckptError as error:
            logger.warning("The lease of %s is renewed later. %s", self._storage.where(""), error)

    def release(self) -> None:
        """Says that nobody runs any more."""
        if self._lease is not None and not self._is_lost:
            self._lease.release(self._clock())

    def lose(self) -> None:
        """Another has taken over."""
        with self._lock:
            if self._is_lost:
                return
            self._is_lost = True
        self._on_lost()
