"""The target of a restore, an import or an export: whose it is, and what a former run has left.

A target is new, but for leases of former tries, or marked by a run of the same that was broken off.
Of such a run everything goes that it may have written, and nothing else: a query may keep its
output, or its input, below its checkpointLocation.
"""

from collections.abc import Collection, Sequence

from sparkckpt.coordinator.committed import STATE
from sparkckpt.coordinator.lease import OWNERS
from sparkckpt.coordinator.restored import RESTORED_PATH
from sparkckpt.errors import TargetNotEmptyError
from sparkckpt.format.manifest import MANIFESTS
from sparkckpt.restoration.copies import SOURCES
from sparkckpt.restoration.markers import BACKEND_PATH, Restoring, read_restoring, unfinished
from sparkckpt.restoration.state import DIRECTORY, checkpoint_ids
from sparkckpt.sparklog.checkpoint import QUERY_PATH
from sparkckpt.storage import Storage

_LOGS = ("offsets", "commits")
_DIRECTORIES = (*_LOGS, STATE, SOURCES, MANIFESTS)
_FILES = (QUERY_PATH, BACKEND_PATH, RESTORED_PATH)


def leftover_of(
    target: Storage, source: str, modes: Sequence[str], started: bool = False
) -> Restoring | None:
    """The run of the same that was broken off here; None if the target is new.

    Raises RestorePendingError if it is another's, and TargetNotEmptyError if it is neither. With
    `started` it belongs to a query that has its id, and may hold what is not the query's own.
    """
    leftover = read_restoring(target)
    if leftover is not None:
        same = leftover.source == source and leftover.mode in modes
        if not same or leftover.is_under_way:
            raise unfinished(target, leftover)
        return leftover
    if started:
        names = [name for name in (*_LOGS, SOURCES, STATE) if target.find(name)]
        ids = checkpoint_ids(target.list_names(DIRECTORY))
        names += [f"{DIRECTORY}/chk-{checkpoint_id}" for checkpoint_id in ids]
    else:
        found = (path for path in target.find("") if not path.startswith(f"{OWNERS}/"))
        names = list({path.split("/")[0] for path in found})
    if names:
        raise TargetNotEmptyError(target.where(""), sorted(names))
    return None


def clear_leftover(target: Storage, spared: Collection[str] = ()) -> None:
    """Deletes what a run that was broken off may have written, but for the files to be spared."""
    written = [path for directory in _DIRECTORIES for path in target.find(directory)]
    target.delete(path for path in (*written, *_FILES) if path not in spared)
