"""Counts who needs each file of state.

Incremental checkpoints share files, so that a file may go only when the last of its holders has
gone. Pure bookkeeping: it never deletes, and is not safe for threads without a lock around it.
"""

from collections.abc import Iterable, KeysView
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from sparkckpt.paths import is_absolute


class Holder(NamedTuple):
    """Something that keeps files alive."""

    kind: str
    name: str

    @classmethod
    def checkpoint(cls, checkpoint_id: int) -> "Holder":
        return cls("checkpoint", str(checkpoint_id))

    @classmethod
    def live(cls, version: int) -> "Holder":
        """A version that Spark can still load."""
        return cls("live", str(version))

    @classmethod
    def pin(cls, name: str) -> "Holder":
        """A savepoint, or whatever else has laid a pin."""
        return cls("pin", name)

    @classmethod
    def claimed_pin(cls, name: str) -> "Holder":
        """A pin in the claimed directory that the query was restored from."""
        return cls("claimed pin", name)

    @property
    def is_pin(self) -> bool:
        return self.kind.endswith("pin")

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class SharedStateRegistry:
    """The files of every holder, and for every file the number of its holders.

    Files are known by their names (see `paths`): those of other directories by URL.

    Holders share most of their files. They keep references to one copy of each path, since there
    may be a hundred holders of a hundred thousand files.
    """

    def __init__(self) -> None:
        self._held: dict[Holder, tuple[str, ...]] = {}
        self._paths: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._foreign: set[str] = set()

    def __contains__(self, path: str) -> bool:
        return path in self._counts

    def __len__(self) -> int:
        return len(self._counts)

    @property
    def holders(self) -> KeysView[Holder]:
        return self._held.keys()

    @property
    def foreign(self) -> AbstractSet[str]:
        """The held files that belong to other checkpoint directories."""
        return self._foreign

    def files_of(self, holder: Holder) -> tuple[str, ...]:
        return self._held.get(holder, ())

    def register(self, holder: Holder, paths: Iterable[str]) -> None:
        """Notes that the holder needs these files, and no others."""
        if holder in self._held:
            raise ValueError(f"{holder} is registered already; release it first")
        one_copy, counts = self._paths, self._counts
        held = tuple([one_copy.setdefault(path, path) for path in dict.fromkeys(paths)])
        for path in held:
            count = counts.get(path, 0)
            counts[path] = count + 1
            if not count and is_absolute(path):
                self._foreign.add(path)
        self._held[holder] = held

    def release(self, holder: Holder) -> list[str]:
        """Forgets a holder; the files that nobody else needs."""
        freed = []
        for path in self._held.pop(holder, ()):
            count = self._counts[path] - 1
            if count:
                self._counts[path] = count
            else:
                del self._counts[path]
                del self._paths[path]
                self._foreign.discard(path)
                freed.append(path)
        return freed
