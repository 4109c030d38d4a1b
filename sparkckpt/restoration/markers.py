"""The files by which a restore tells others what it is doing and has done.

`restoring.json` stands in a target that is not finished, `restored.json` in one that is, and
`claimed.json` in a source that was given up to a target; a pin in a source keeps its files. Only
their bytes are here; when they are written and removed is decided by who restores.
"""

import json
import os
import socket
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from sparkckpt.coordinator.pins import FORMAT_VERSION as PIN_VERSION
from sparkckpt.coordinator.restored import (
    CLAIMED_PATH,
    COPY,
    FORMAT_VERSION,
    NO_CLAIM,
    RESTORED_PATH,
    RESTORING_PATH,
    claimed_by,
    read_fields,
)
from sparkckpt.errors import ClaimedCheckpointError, RestorePendingError
from sparkckpt.fields import Fields
from sparkckpt.keygroups import DEFAULT_MAX_PARALLELISM
from sparkckpt.paths import canonical
from sparkckpt.processes import ProcessId, is_another
from sparkckpt.storage import Storage

BACKEND_PATH = "_sparkckpt/backend.json"
BACKEND_VERSION = 1


@dataclass(frozen=True)
class Restoring:
    """What `restoring.json` says: which restore is under way, and in which process."""

    source: str
    mode: str
    pin: str
    host: str
    pid: int

    @classmethod
    def here(cls, source: str, mode: str, pin: str) -> "Restoring":
        return cls(source, mode, pin, socket.gethostname(), os.getpid())

    @property
    def is_under_way(self) -> bool:
        """Whether another process of this machine is at it."""
        return is_another(self.host, self.pid)

    def to_bytes(self) -> bytes:
        return _json({"formatVersion": FORMAT_VERSION, **vars(self)})


def read_restoring(storage: Storage) -> Restoring | None:
    """The restore that is not finished in this directory, if there is one."""
    values = read_fields(storage, RESTORING_PATH)
    if values is None:
        return None
    fields = Fields(values, "its content", storage.where(RESTORING_PATH))
    return Restoring(
        fields.text("source"),
        fields.text("mode"),
        fields.text("pin", r"[\w-]+"),
        fields.text("host", r"(?s).*"),
        fields.integer("pid"),
    )


def restored_bytes(
    checkpoint_id: int,
    batch_id: int,
    source: str,
    state_root: str,
    mode: str,
    pin: str | None,
    pinned: Iterable[str],
) -> bytes:
    """`restored.json`; `pinned` are the directories in which the pin lies."""
    return _json(
        {
            "formatVersion": FORMAT_VERSION,
            "checkpointId": checkpoint_id,
            "batchId": batch_id,
            "source": source,
            "sourceStateRoot": state_root,
            "mode": mode,
            "pin": pin,
            "pinned": list(pinned),
        }
    )


def claimed_bytes(by: str) -> bytes:
    return _json({"formatVersion": FORMAT_VERSION, "by": by})


def pin_bytes(files: Iterable[str], target: str) -> bytes:
    """A pin of this process for the directory `target`."""
    process = vars(ProcessId.here())
    return _json({"formatVersion": PIN_VERSION, "files": list(files), "target": target, **process})


def backend_bytes(max_parallelism: int) -> bytes:
    return _json({"formatVersion": BACKEND_VERSION, "maxParallelism": max_parallelism})


def pinned_max_parallelism(storage: Storage) -> int | None:
    """The number of key groups that a checkpoint directory is bound to; None if no file says so."""
    values = read_fields(storage, BACKEND_PATH)
    if values is None:
        return None
    fields = Fields(values, "its content", storage.where(BACKEND_PATH))
    return fields.integer("maxParallelism", 1, DEFAULT_MAX_PARALLELISM)


def refuse_unfinished(storage: Storage, names: Collection[str]) -> None:
    """Raises RestorePendingError in the target of a restore; `names` are in `_sparkckpt`."""
    if _name(RESTORING_PATH) in names and (restoring := read_restoring(storage)):
        raise unfinished(storage, restoring)


def unfinished(storage: Storage, restoring: Restoring) -> RestorePendingError:
    by = f"process {restoring.pid}" if restoring.is_under_way else ""
    pinned = restoring.mode in (NO_CLAIM, COPY)
    return RestorePendingError(storage.where(""), restoring.source, by, pinned)


def refuse_claimed(storage: Storage, names: Collection[str], but_by: str | None = None) -> None:
    """Raises ClaimedCheckpointError in a source that anybody, or any other, has claimed."""
    by = claimed_by(storage) if _name(CLAIMED_PATH) in names else None
    if by is not None and (but_by is None or canonical(by) != canonical(but_by)):
        raise ClaimedCheckpointError(storage.where(""), by)


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _json(fields: dict[str, object]) -> bytes:
    return json.dumps(fields).encode()


__all__ = [
    "BACKEND_PATH",
    "CLAIMED_PATH",
    "RESTORED_PATH",
    "RESTORING_PATH",
    "Restoring",
    "backend_bytes",
    "claimed_bytes",
    "pin_bytes",
    "pinned_max_parallelism",
    "read_restoring",
    "refuse_claimed",
    "refuse_unfinished",
    "restored_bytes",
    "unfinished",
]
