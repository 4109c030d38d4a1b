"""Tells how checkpoints end: to the query's driver, to the log, and to those who count failures."""

import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from sparkckpt.coordinator.completed import CompletedCheckpoint
from sparkckpt.coordinator.failures import CheckpointFailureManager, CheckpointFailureReason
from sparkckpt.coordinator.pending import PendingCheckpoint
from sparkckpt.coordinator.settings import CoordinatorSettings
from sparkckpt.format.handle import StateHandle

logger = logging.getLogger(__name__)


class CheckpointListener(Protocol):
    """What a coordinator has to tell, on any of its threads or its caller's."""

    def on_completed(self, checkpoint: CompletedCheckpoint) -> None: ...

    def on_aborted(self, batch_id: int, reason: CheckpointFailureReason, message: str) -> None: ...

    def on_stop_query(self, message: str) -> None: ...


@dataclass(frozen=True)
class QueryRun:
    """A run of a query, by Spark's ids; the name is for messages."""

    run_id: str
    query_id: str
    name: str = ""

    def __str__(self) -> str:
        return f"query {self.name or self.query_id}"


class CheckpointReporter:
    """Reports for one run; safe to be used by several threads."""

    def __init__(
        self, run: QueryRun, settings: CoordinatorSettings, listener: CheckpointListener
    ) -> None:
        self._run = run
        self._settings = settings
        self._listener = listener
        self._failures = CheckpointFailureManager(settings.tolerable_failures)
        self._lock = threading.Lock()
        self._warned_of_nondeterminism = False

    def completed(self, checkpoint: CompletedCheckpoint) -> None:
        with self._lock:
            self._failures.succeeded(checkpoint.batch_id)
        self._listener.on_completed(checkpoint)

    def aborted(
        self,
        checkpoints: Iterable[PendingCheckpoint],
        reason: CheckpointFailureReason,
        message: str,
    ) -> None:
        """Of a batch that was not to become a checkpoint there is nothing to tell."""
        for pending in checkpoints:
            if pending.wanted:
                text = f"The checkpoint of batch {pending.batch_id} was given up: {reason.value}."
                self._aborted(pending.batch_id, reason, f"{text} {message}".rstrip())

    def _aborted(self, batch_id: int, reason: CheckpointFailureReason, text: str) -> None:
        level = logging.WARNING if reason.counts else logging.INFO
        logger.log(level, "%s: %s", self._run, text)
        with self._lock:
            too_many = self._failures.failed(batch_id, reason)
        self._listener.on_aborted(batch_id, reason, text)
        if too_many:
            self._exceed_tolerance(text)

    def _exceed_tolerance(self, last: str) -> None:
        message = (
            f"More than {self._settings.tolerable_failures} checkpoints of {self._run} have failed "
            f"in a row. {last}"
        )
        if self._settings.stop_on_failure:
            self._listener.on_stop_query(message)
        else:
            logger.warning("%s", message)

    def nondeterministic(self, handle: StateHandle) -> None:
        """Warns, once, that two attempts at a batch have changed a store differently."""
        with self._lock:
            if self._warned_of_nondeterminism:
                return
            self._warned_of_nondeterminism = True
        logger.warning(
            "%s is not deterministic: two attempts at batch %d have changed the state of operator "
            "%d, partition %d, store %s differently. Output of the attempt that lost may not agree "
            "with the state that is kept. Look for random values, times of day or unordered input.",
            self._run,
            handle.version - 1,
            handle.operator_id,
            handle.partition,
            handle.store_name,
        )
