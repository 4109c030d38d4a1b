"""Which checkpoints a query has: one row for each, also for those that are not complete."""

from collections.abc import Collection

import pyarrow as pa

from sparkckpt.checkpoints.directory import CheckpointDirectory, Location
from sparkckpt.coordinator.completed import CompletedCheckpoint, InconsistentCheckpoint
from sparkckpt.coordinator.pins import pin_names, read_pin
from sparkckpt.coordinator.retention import files_of
from sparkckpt.format.metadata import CheckpointMetadata

RETAINED = "retained"
PINNED = "pinned"
"""Something else, such as a savepoint, needs its files: they outlive the checkpoint. A pin is of
the newest checkpoint that it holds all files of, since that may need those of the one before."""
SAVEPOINT = "savepoint"
"""The one checkpoint that a savepoint is."""
INCONSISTENT = "inconsistent"
"""Its metadata is missing or cannot be read; `problem` says why."""

SCHEMA = pa.schema(
    [
        pa.field("checkpoint_id", pa.int64(), nullable=False),
        pa.field("batch_id", pa.int64()),
        pa.field("completed", pa.timestamp("ms", "UTC")),
        pa.field("duration_ms", pa.int64()),
        pa.field("state_bytes", pa.int64()),
        pa.field("delta_bytes", pa.int64()),
        pa.field("files", pa.int64()),
        pa.field("new_files", pa.int64()),
        pa.field("operators", pa.int64()),
        pa.field("status", pa.string(), nullable=False),
        pa.field("problem", pa.string()),
    ]
)


def why_empty(path: Location) -> str:
    """Why a query has no checkpoints, in words."""
    return CheckpointDirectory.open(path).why_empty()


def list_checkpoints(path: Location) -> pa.Table:
    """The checkpoints in a query's checkpointLocation, oldest first; see SCHEMA."""
    directory = CheckpointDirectory.open(path)
    root = directory.root
    pins = [
        frozenset(map(root.name_of, read_pin(directory.storage, name)))
        for name in pin_names(directory.storage)
    ]
    operators: dict[int, int] = {}
    newest_in: dict[int, int] = {}

    def visit(metadata: CheckpointMetadata) -> None:
        operators[metadata.checkpoint_id] = len(metadata.operator_states)
        files = frozenset(files_of(metadata.handles, root)) if pins else frozenset()
        newest_in.update(
            (number, metadata.checkpoint_id) for number, pin in enumerate(pins) if files <= pin
        )

    store = directory.store()
    store.recover(visit)
    rows = [
        _completed(
            checkpoint,
            operators[checkpoint.checkpoint_id],
            _status(directory, checkpoint.checkpoint_id in newest_in.values()),
        )
        for checkpoint in store.all()
    ]
    rows += _inconsistent(directory, store.inconsistent())
    return pa.Table.from_pylist(rows, SCHEMA).sort_by("checkpoint_id")


def _status(directory: CheckpointDirectory, pinned: bool) -> str:
    if directory.savepoint is not None:
        return SAVEPOINT
    return PINNED if pinned else RETAINED


def _completed(checkpoint: CompletedCheckpoint, operators: int, status: str) -> dict[str, object]:
    statistics = checkpoint.statistics
    return {
        "checkpoint_id": checkpoint.checkpoint_id,
        "batch_id": checkpoint.batch_id,
        "completed": checkpoint.timestamp_ms,
        "duration_ms": statistics.duration_ms,
        "state_bytes": statistics.state_bytes,
        "delta_bytes": statistics.delta_bytes,
        "files": statistics.files,
        "new_files": statistics.new_files,
        "operators": operators,
        "status": status,
    }


def _inconsistent(
    directory: CheckpointDirectory, broken: Collection[InconsistentCheckpoint]
) -> list[dict[str, object]]:
    """A running query may have removed some of them since they were looked at."""
    still_there = directory.remains() if broken else ()
    return [
        {"checkpoint_id": one.checkpoint_id, "status": INCONSISTENT, "problem": one.why}
        for one in broken
        if one.checkpoint_id in still_there
    ]
