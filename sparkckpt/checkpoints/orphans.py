"""Files that nobody needs any more, found and deleted while no query runs.

A running query's coordinator does the same. What an orphan is, it alone decides: this module only
asks its cleaner.
"""

import time

import pyarrow as pa

from sparkckpt.checkpoints.directory import CheckpointDirectory, Location
from sparkckpt.coordinator import offline_cleaner
from sparkckpt.coordinator.committed import STATE, CommittedState
from sparkckpt.coordinator.lease import refuse_if_running
from sparkckpt.coordinator.manifests import orphaned_manifests
from sparkckpt.coordinator.pins import orphaned_pins, pin_path
from sparkckpt.errors import CleaningBlockedError
from sparkckpt.paths import is_absolute

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
    if not dry_run:
        refuse_if_running(
            directory.storage,
            time.time_ns() // 1_000_000,
            ", and its coordinator cleans up by itself: nothing was deleted",
        )
    pins = orphaned_pins(directory.storage)
    sweep = offline_cleaner(directory.storage, directory.store(), pins).sweep(dry_run)
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
    if not dry_run:
        directory.storage.delete(path for _, path, _ in others)
    rows += [
        {"kind": kind, "path": path, "bytes": size, "deleted": not dry_run}
        for kind, path, size in others
    ]
    return pa.Table.from_pylist(rows, SCHEMA)
