"""When the coordinator of a query that has ended is done with its directory."""

from pathlib import Path

import sparkckpt
from sparkckpt.coordinator.lease import OWNERS, Owner
from tests.spark.faults import wait_until


def await_release(checkpoint: Path, run_id: object = None) -> None:
    """Waits until the last owner has released the directory: from then on nobody writes there.

    A query does not wait for its coordinator: after a short run it may not even have become the
    owner. With the id of the run, only the release by its coordinator counts.
    """
    wait_until(lambda: _is_released(checkpoint, run_id))


def _is_released(checkpoint: Path, run_id: object) -> bool:
    files = list((checkpoint / OWNERS).glob("[0-9]*"))
    if not files:
        return False
    newest = max(files, key=lambda file: int(file.name))
    try:
        owner = Owner.from_bytes(newest.read_bytes(), str(newest))
    except FileNotFoundError:  # A newer owner has just removed it.
        return False
    return owner.expires_ms == 0 and run_id in (None, owner.run_id)


def newest_batch(checkpoint: Path) -> int:
    """That of the newest completed checkpoint, -1 if there is none."""
    if not (checkpoint / "_sparkckpt").exists():
        return -1
    batches = sparkckpt.list_checkpoints(checkpoint)["batch_id"].to_pylist()
    return max((batch for batch in batches if batch is not None), default=-1)
