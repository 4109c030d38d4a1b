"""The file that makes a directory a savepoint, or an attempt at one: `savepoint.json`.

It is the first file of a savepoint, and the metadata of its checkpoint is the last: a directory
that has the one without the other is a savepoint that was broken off. Only what the file says is
read and written here.
"""

import json
import os
import re
import socket
from dataclasses import dataclass

from sparkckpt.coordinator.restored import FORMAT_VERSION, read_fields
from sparkckpt.errors import UnfinishedSavepointError
from sparkckpt.fields import Fields
from sparkckpt.processes import is_another
from sparkckpt.storage import Storage

SAVEPOINT_PATH = "_sparkckpt/savepoint.json"
_DIRECTORY = "_sparkckpt"
_CHECKPOINT = re.compile(r"chk-\d+/_metadata")


@dataclass(frozen=True)
class SavepointMarker:
    """What a savepoint is called, of what it is, and who takes or has taken it."""

    name: str
    source: str
    """The URL of the checkpoint directory; empty if the state comes from no query."""
    pin: str
    """The name of the pin that keeps the source's files until they are merged; or empty."""
    created_ms: int
    host: str
    pid: int

    @classmethod
    def here(cls, name: str, source: str, pin: str, created_ms: int) -> "SavepointMarker":
        return cls(name, source, pin, created_ms, socket.gethostname(), os.getpid())

    @property
    def is_under_way(self) -> bool:
        """Whether another process of this machine takes it."""
        return is_another(self.host, self.pid)

    def to_bytes(self) -> bytes:
        return json.dumps(
            {
                "formatVersion": FORMAT_VERSION,
                "name": self.name,
                "source": self.source,
                "pin": self.pin,
                "createdMs": self.created_ms,
                "host": self.host,
                "pid": self.pid,
            }
        ).encode()


def read_savepoint(storage: Storage) -> SavepointMarker | None:
    """What the directory says of itself, if it is a savepoint or an attempt at one."""
    values = read_fields(storage, SAVEPOINT_PATH)
    if values is None:
        return None
    fields = Fields(values, "its content", storage.where(SAVEPOINT_PATH))
    return SavepointMarker(
        fields.text("name"),
        fields.text("source", r"(?s).*"),
        fields.text("pin", r"[\w-]*"),
        fields.integer("createdMs"),
        fields.text("host", r"(?s).*"),
        fields.integer("pid"),
    )


def is_complete(storage: Storage) -> bool:
    """Whether a savepoint has its metadata."""
    return any(
        _CHECKPOINT.fullmatch(path.removeprefix(f"{_DIRECTORY}/"))
        for path in storage.find(_DIRECTORY)
    )


def completed_savepoint(storage: Storage) -> SavepointMarker | None:
    """The savepoint in this directory, or None if it is none.

    Raises UnfinishedSavepointError if it was broken off, or is being taken.
    """
    marker = read_savepoint(storage)
    if marker is not None and not is_complete(storage):
        raise UnfinishedSavepointError(storage.where(""), marker.source)
    return marker
