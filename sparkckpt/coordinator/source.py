"""What a restored query still needs of the directory that it was restored from.

A query that was restored without a claim has laid a pin there, which keeps the files it refers to;
one that has claimed the source deletes there what nobody needs, in place of the source's own
coordinator. Both end once nothing of the source is needed any more, which is then noted. Nothing
here may delete state by itself, and a source that cannot be reached must never keep the query from
its own checkpoints: what is to be done there waits.
"""

import json
import logging
from collections.abc import Iterable

from sparkckpt.coordinator.cleaner import CheckpointsCleaner
from sparkckpt.coordinator.pins import pin_path
from sparkckpt.coordinator.restored import (
    CLAIM,
    COPY,
    RESTORED_PATH,
    Restored,
    claimed_by,
    read_fields,
    read_restored,
)
from sparkckpt.errors import SparkckptError
from sparkckpt.paths import StateRoot, canonical
from sparkckpt.storage import Storage

logger = logging.getLogger(__name__)


class RestoredSource:
    """The source of a restored query, as its coordinator looks after it."""

    def __init__(self, storage: Storage, cleaner: CheckpointsCleaner) -> None:
        self._storage = storage
        self._cleaner = cleaner
        self._restored: Restored | None = None
        self._undecided: StateRoot | None = None
        """The source, as long as it is not known whether it is claimed."""
        self._put_off = ""
        self._removed: set[tuple[StateRoot, str | None]] = set()

    def take_over(self) -> int:
        """Finds out whether the query was restored; the id of the restored checkpoint, or 0.

        Looks at nothing but the query's own directory.
        """
        restored = read_restored(self._storage)
        if restored is None:
            return 0
        if restored.mode == CLAIM:
            self._undecided = next(iter(restored.depends_on), None)
        self._restored = restored
        return restored.checkpoint_id

    def claim(self) -> None:
        """Has the cleaner clean up in a claimed source; to be called before it looks for pins."""
        if self._undecided is None:
            return
        if self._is_claimed(self._undecided):
            self._cleaner.claim(self._undecided)
        self._undecided = None

    def try_claim(self) -> None:
        """The same, but as long as the source cannot be read it is taken for not claimed."""
        try:
            self.claim()
        except SparkckptError as error:
            self._postpone(error)

    def _is_claimed(self, source: StateRoot) -> bool:
        """A copy of the query's directory says that it has claimed the source too, but has not."""
        by = claimed_by(self._storage.below(source.checkpoint))
        here = self._storage.where("")
        if by is not None and canonical(by) == canonical(here):
            return True
        logger.warning(
            "State of %s that %s does not need any more is left there: it is claimed by %s.",
            source.checkpoint,
            here,
            by or "nobody",
        )
        return False

    def settle(self) -> None:
        """Gives up what is not needed any more of the source, and notes it once that is all of it.

        To be called by the owner only. Pins go first: an interruption is made up for. What fails is
        tried again the next time.
        """
        restored = self._restored
        if restored is None or not restored.depends_on or self._undecided is not None:
            return
        try:
            self._settle(restored)
        except SparkckptError as error:
            self._postpone(error)

    def _settle(self, restored: Restored) -> None:
        free = [root for root in restored.depends_on if self._cleaner.is_free_of(root)]
        self._remove_pins(restored, free)
        if len(free) < len(restored.depends_on):
            return
        if restored.mode == CLAIM:
            self._succeed(restored.depends_on[0])
        fields = read_fields(self._storage, RESTORED_PATH)
        data = json.dumps({**(fields or {}), "settled": True}).encode()
        self._storage.write_atomic(RESTORED_PATH, data, overwrite=True)
        self._restored = None
        logger.info("Nothing of %s is needed any more.", restored.source)

    def _succeed(self, source: StateRoot) -> None:
        """Nobody else will remove the pins of a source that was itself restored."""
        former = read_restored(self._storage.below(source.checkpoint))
        if former is not None and former.mode != COPY and not former.settled:
            self._remove_pins(former, former.pinned)

    def _remove_pins(self, restored: Restored, roots: Iterable[StateRoot]) -> None:
        """Of all these directories, even if some cannot be reached; then it raises an error."""
        failure: SparkckptError | None = None
        for root in roots:
            pin = (root, restored.pin)
            if restored.pin is None or root not in restored.pinned or pin in self._removed:
                continue
            try:
                self._storage.below(root.checkpoint).delete([pin_path(restored.pin)])
                self._removed.add(pin)
            except SparkckptError as error:
                failure = error
        if failure is not None:
            raise failure

    def _postpone(self, error: SparkckptError) -> None:
        if str(error) != self._put_off:
            logger.warning("What is to be done where the query came from is put off. %s", error)
        self._put_off = str(error)
