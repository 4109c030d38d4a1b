"""Who may complete checkpoints and delete files in a checkpoint directory.

A driver that is cut off may go on for a while after its successor has started. Each coordinator
therefore creates a file with the next epoch, which only one can; the highest epoch owns, and
everybody looks again before deleting or completing anything. Where storage cannot keep two from
creating the same file, what it says decides. The file also says until when its
owner is believed to run, so that commands can tell. It must never be used to wait for anybody: a
successor takes over at once.

Some storage replaces a file by deleting it first. For that moment only the name of the temporary
file tells of the epoch: whoever finds that looks again before it believes that there is no owner.
"""

import json
import logging
import re
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from sparkckpt.errors import (
    CorruptStateError,
    FileExistsAlreadyError,
    FileMissingError,
    QueryRunningError,
    UnreachableStorageError,
    UnwritableFileError,
)
from sparkckpt.processes import ProcessId
from sparkckpt.storage import Storage

logger = logging.getLogger(__name__)

OWNERS = "_sparkckpt/owner"
FORMAT_VERSION = 1
DURATION_MS = 60_000
RENEWAL_MS = DURATION_MS // 3
REPLACEMENT_SECONDS = 2.0
"""How long a file may be missing while it is being replaced."""
TEMPORARY = re.compile(r"\.(\d+)\..+\.tmp", re.ASCII)


@dataclass(frozen=True)
class Owner:
    """What the file of an epoch says."""

    epoch: int
    run_id: str
    process: ProcessId
    renewed_ms: int
    expires_ms: int

    def is_same_as(self, other: "Owner") -> bool:
        """Whether both are one coordinator: a run may have several, one after the other."""
        return (self.epoch, self.run_id, self.process) == (other.epoch, other.run_id, other.process)

    def describe(self) -> str:
        """For messages."""
        return f"run {self.run_id}, on {self.process.host}, process {self.process.pid}"

    def to_bytes(self) -> bytes:
        fields = {
            "formatVersion": FORMAT_VERSION,
            "epoch": self.epoch,
            "runId": self.run_id,
            "host": self.process.host,
            "pid": self.process.pid,
            "started": self.process.started,
            "renewedMs": self.renewed_ms,
            "expiresMs": self.expires_ms,
        }
        return json.dumps(fields).encode()

    @classmethod
    def from_bytes(cls, data: bytes, where: str) -> "Owner":
        try:
            fields = json.loads(data)
            return cls(
                int(fields["epoch"]),
                str(fields["runId"]),
                ProcessId(str(fields["host"]), int(fields["pid"]), str(fields.get("started", ""))),
                int(fields["renewedMs"]),
                int(fields["expiresMs"]),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptStateError(where, f"it does not name an owner: {error!r}") from error


class Lease:
    """The ownership of one coordinator. Safe to be used by several threads."""

    def __init__(self, storage: Storage, owner: Owner) -> None:
        self._storage = storage
        self._owner = owner
        self._is_released = False
        # Some storage replaces a file by deleting it first: nobody here may look in between.
        self._lock = threading.RLock()

    @classmethod
    def claim(cls, storage: Storage, run_id: str, now_ms: int) -> "Lease":
        """Becomes the owner, whoever was it before."""
        while True:
            names = storage.list_names(OWNERS)
            older = _epochs(names)
            owner = Owner(
                max(older + _epochs_being_written(names), default=0) + 1,
                run_id,
                ProcessId.here(),
                now_ms,
                now_ms + DURATION_MS,
            )
            try:
                storage.write_atomic(_path(owner.epoch), owner.to_bytes())
            except FileExistsAlreadyError:
                continue
            lease = cls(storage, owner)
            # Another may have claimed more than one epoch since, and removed this one's file.
            if lease.is_held():
                _delete_older(storage, older)
                return lease

    @property
    def owner(self) -> Owner:
        return self._owner

    @property
    def epoch(self) -> int:
        return self._owner.epoch

    def is_held(self) -> bool:
        """Whether no other coordinator has started since. Without a file there is no owner."""
        with self._lock:
            epochs = _epochs(self._storage.list_names(OWNERS))
            if max(epochs, default=0) != self.epoch:
                return False
            try:
                return _read(self._storage, self.epoch).is_same_as(self._owner)
            except FileMissingError:
                return False

    def needs_renewal(self, now_ms: int) -> bool:
        return not self._is_released and now_ms - self._owner.renewed_ms >= RENEWAL_MS

    def renew(self, now_ms: int) -> bool:
        """Extends the lease if it is still held, unless it was given up; whether it is held."""
        with self._lock:
            if self._is_released:
                return self.is_held()
            return self._write(now_ms, now_ms + DURATION_MS)

    def release(self, now_ms: int) -> None:
        """Says that nobody runs any more. The file stays: epochs must grow."""
        with self._lock:
            self._is_released = True
            self._write(now_ms, 0)

    def _write(self, renewed_ms: int, expires_ms: int) -> bool:
        if not self.is_held():
            return False
        self._owner = replace(self._owner, renewed_ms=renewed_ms, expires_ms=expires_ms)
        self._storage.write_atomic(_path(self.epoch), self._owner.to_bytes(), overwrite=True)
        return True


def running_owner(storage: Storage, now_ms: int) -> Owner | None:
    """The coordinator that works on this checkpoint directory, as far as its lease tells."""
    deadline = time.monotonic() + REPLACEMENT_SECONDS
    while names := storage.list_names(OWNERS):
        may_appear = time.monotonic() < deadline
        if epochs := _epochs(names):
            try:
                owner = _read(storage, epochs[-1])
            except FileMissingError:
                if not may_appear:
                    raise
            else:
                return owner if owner.expires_ms > now_ms else None
        elif not may_appear:
            return None
        time.sleep(0.01)
    return None


def refuse_if_running(storage: Storage, now_ms: int, outcome: str = "") -> None:
    """Raises QueryRunningError if there is a running owner; `outcome` says what was not done."""
    owner = running_owner(storage, now_ms)
    if owner is not None:
        expires = datetime.fromtimestamp(owner.expires_ms / 1000, timezone.utc)
        raise QueryRunningError(
            storage.where(""),
            owner.describe(),
            f"{expires:%Y-%m-%d %H:%M:%S} UTC",
            outcome,
        )


def _delete_older(storage: Storage, epochs: Iterable[int]) -> None:
    """They mean nothing any more; only their number is to be kept small."""
    try:
        storage.delete(map(_path, epochs))
    except (UnreachableStorageError, UnwritableFileError) as error:
        logger.warning("The leases of former owners are left behind. %s", error)


def _read(storage: Storage, epoch: int) -> Owner:
    path = _path(epoch)
    return Owner.from_bytes(storage.read_all(path), storage.where(path))


def _path(epoch: int) -> str:
    return f"{OWNERS}/{epoch}"


def _epochs(names: Iterable[str]) -> list[int]:
    return sorted(int(name) for name in names if name.isascii() and name.isdecimal())


def _epochs_being_written(names: Iterable[str]) -> list[int]:
    return [int(found[1]) for name in names if (found := TEMPORARY.fullmatch(name))]
