"""Ids of checkpoints, which only grow: across restarts, failures and restores.

A later checkpoint has a greater id, whatever happened in between. An id is never given twice, not
even if what it was given for has failed.
"""

from collections.abc import Iterable


class CheckpointIDCounter:
    """Gives ids above all that were ever seen."""

    def __init__(self, last: int = 0) -> None:
        self._last = last

    @property
    def last(self) -> int:
        return self._last

    def next(self) -> int:
        self._last += 1
        return self._last

    def see(self, ids: Iterable[int]) -> None:
        self._last = max([self._last, *ids])
