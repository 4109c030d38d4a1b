"""Files that nobody needs any more, found and deleted while no query runs.

A running query's coordinator does the same. What an orphan is, it alone decides: this module only
asks its cleaner.
"""

import pyarrow as pa

from sparkckpt.checkpoints.directory import CheckpointDirectory, Location
from sparkckpt.coordinator import offline_cleaner
from sparkckpt.coordinator.committed import STATE, CommittedState
from sparkckpt.coordinator.lease import refuse_if_running
from sparkckpt.coordinator.manifests import orphaned_manifests
from sparkckpt.coordinator.pins import orphaned_pins, pin_path
from sparkckpt.errors import CleaningBlockedError, IsASavepointError
from sparkckpt.paths import is_absolute
from sparkckpt.restoration.exclusive import Exclusive, exclusively, is_in_use, wall_clock

SCHEMA = pa.schema(
    [
        pa.field("kind", pa.string(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("deleted", pa.bool_(), nullable=False),
    ]
)


def clean(path: Location, dry_run: bool = True) -> pa.Table:
    """The orphans of a query's checkpointLocation, with paths relative to it; see SCHEMA.

    Of the kind "state" are files that no checkpoint, batch or pin needs, also those in a source
    that it has claimed, by URL; "manifest" are those that the commit log does not name; "pin" are
    those of restores whose target is gone or does not name them. What only such pins keep is
    orphaned too.
    With `dry_run=False` they are deleted, but not while a query runs: QueryRunningError.
    """
    directory = CheckpointDirectory.open(path)
    if directory.savepoint is not None:
        raise IsASavepointError(directory.storage.where(""))
    if dry_run:
        return _clean(directory, None)
    if is_in_use(directory.storage, wall_clock()):
        refuse_if_running(
            directory.storage,
            wall_clock(),
            ", and its coordinator cleans up by itself: nothing was deleted",
        )
    with exclusively(directory.storage, "clean", wall_clock) as owned:
        return _clean(directory, owned)


def _clean(directory: CheckpointDirectory, owned: Exclusive | None) -> pa.Table:
    """Deletes only for an owner, until a query that starts meanwhile takes over."""
    dry_run = owned is None
    pins = orphaned_pins(directory.storage)
    cleaner = offline_cleaner(directory.storage, directory.store(), pins)
    if owned is not None:
        owned.confirm()
    sweep = cleaner.sweep(dry_run)
    if sweep.blocked_by:
        raise CleaningBlockedError(directory.storage.where(""), " ".join(sweep.blocked_by))
    rows = [
        {
            "kind": "state",
            "path": orphan if is_absolute(orphan) else f"{STATE}/{orphan}",
            "bytes": size,
            "deleted": orphan in sweep.deleted,
        }
        for orphan, size in sorted(sweep.orphans.items())
    ]
    manifests = orphaned_manifests(directory.storage, CommittedState(directory.storage))
    others = [("manifest", path, size) for path, size in manifests.items()]
    others += [("pin", pin_path(name), size) for name, size in pins.items()]
    if owned is not None:
        owned.confirm()
        directory.storage.delete(path for _, path, _ in others)
    rows += [
        {"kind": kind, "path": path, "bytes": size, "deleted": not dry_run}
        for kind, path, size in others
    ]
    return pa.Table.from_pylist(rows, SCHEMA)
