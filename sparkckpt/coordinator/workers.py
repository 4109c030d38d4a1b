"""A thread that does one job after the other, so that whoever has them done need not wait."""

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Protocol

logger = logging.getLogger(__name__)

Job = Callable[[], None]


class Worker(Protocol):
    """Does jobs in the order in which they come, one at a time."""

    def submit(self, job: Job) -> None:
        """Has a job done; one that is waiting already is not added again."""

    def join(self, timeout_s: float) -> bool:
        """Waits until all jobs are done; whether they are."""

    def close(self) -> None:
        """Takes no more jobs, and drops those that have not begun."""


class WorkerThread:
    """A worker on a thread of its own, which does not keep the process alive."""

    def __init__(self, name: str) -> None:
        self._jobs: deque[Job] = deque()
        self._changed = threading.Condition()
        self._busy = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        with self._changed:
            if not self._closed and job not in self._jobs:
                self._jobs.append(job)
                self._changed.notify_all()

    def join(self, timeout_s: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._jobs and not self._busy, timeout_s)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._jobs.clear()
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._jobs or self._closed)
                if not self._jobs:
                    return
                job = self._jobs.popleft()
                self._busy = True
            try:
                job()
            except Exception:
                logger.exception("%s goes on after a job has failed", self._thread.name)
