"""Which checkpoints and which files may go: the rules, without any I/O.

A file of state may go if no checkpoint, no pin and no version that Spark can still load needs it,
and if nothing can begin to need it. The latter is what the version in its name is for: a task or a
merge that is under way has written files that no handle names yet, but never under a version below
the oldest that Spark can load.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sparkckpt.format.handle import StateHandle
from sparkckpt.paths import StateRoot, is_absolute

Checkpoint = TypeVar("Checkpoint")

_STATE_FILE = re.compile(
    r"(\d+)_[0-9A-Za-z-]+(?:\.[^/]+)?\.(?:handle|operator-state|delta\.arrow|(merge)\.arrow)"
)
_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f-]{36}\.tmp")


def subsume(checkpoints: Sequence[Checkpoint], retained: int) -> Sequence[Checkpoint]:
    """The checkpoints that are more than may be retained; they come oldest first."""
    return checkpoints[: max(0, len(checkpoints) - retained)]


@dataclass(frozen=True)
class Floor:
    """The oldest version that Spark can load: nothing can begin to need files below it.

    A merged file is younger than its name says: it may wait for `adoption_window` versions until a
    handle names it.
    """

    version: int
    adoption_window: int

    @classmethod
    def of(cls, version: int, min_batches_to_retain: int) -> "Floor":
        return cls(version, max(2, min_batches_to_retain // 2))

    def is_below(self, path: str) -> bool:
        """Whether a file below a state root lies below the floor.

        False too where the name is not one of ours: what we do not know, we do not delete.
        """
        named = None if is_absolute(path) else _named(path)
        if named is None:
            return False
        return int(named[1]) + (self.adoption_window if named[2] else 0) < self.version


def is_state_file(path: str) -> bool:
    """Whether a file has a name that only we give."""
    return _named(path) is not None


def _named(path: str) -> re.Match[str] | None:
    name = path.rpartition("/")[2]
    temporary = _TEMPORARY.fullmatch(name)
    return _STATE_FILE.fullmatch(temporary[1] if temporary else name)


def oldest_loadable(in_log: Sequence[int], min_batches_to_retain: int | None) -> int:
    """The oldest version that Spark may still load, by the ascending batches in its commit log.

    Spark removes an entry once `min_batches_to_retain` newer ones exist, but may be late to do so.
    """
    if not in_log:
        return 0
    oldest = in_log[0] + 1
    if min_batches_to_retain is None:
        return oldest
    return max(oldest, in_log[-1] + 1 - min_batches_to_retain)


def files_of(handles: Iterable[StateHandle], root: StateRoot) -> Iterator[str]:
    """Every file that these versions need, the handles themselves among them.

    Those below the state root are named relative to it, however the handle has put them, since
    that is how a listing names them.
    """
    for handle in handles:
        yield handle.path
        for data in handle.data:
            yield root.name_of(data.path)


def files_written_by(handle: StateHandle) -> Iterator[str]:
    """What the attempt that wrote this handle has written itself."""
    yield handle.path
    for file in handle.files:
        if file.level == 0 and file.last_version == handle.version and not file.inlined:
            yield file.path
