"""Pins: files of state that something outside of the query needs, such as a savepoint.

A pin is laid while the query runs and deletes. So that neither overlooks the other, a pin of a
checkpoint is written first, and then the checkpoint's metadata must still be there; whereas the
coordinator first deletes the metadata, then reads the pins, and only then deletes state.

A pin says which process of which host has laid it. Whether a process still runs can only be seen on
its own host, and what lies on a disk only there: a pin of which this cannot be told is kept, and is
left to people to remove.
"""

import json
import logging
from typing import Any

from sparkckpt.coordinator.restored import RESTORED_PATH, RESTORING_PATH, read_fields
from sparkckpt.coordinator.savepoints import SAVEPOINT_PATH, is_complete
from sparkckpt.errors import CorruptStateError, SparkckptError, UnsupportedFormatVersionError
from sparkckpt.fields import Fields
from sparkckpt.paths import canonical
from sparkckpt.processes import ProcessId
from sparkckpt.storage import Storage

logger = logging.getLogger(__name__)

PINS = "_sparkckpt/pins"
READER = "read-"
"""How the name of a pin begins that holds files for as long as a process reads them."""
FORMAT_VERSION = 1
_SUFFIX = ".json"
_DISK = "file:"


def pin_path(name: str) -> str:
    """Where a pin lies, relative to the checkpoint directory."""
    return f"{PINS}/{name}{_SUFFIX}"


def pin_names(storage: Storage) -> list[str]:
    names = storage.list_names(PINS)
    return [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]


def read_pin(storage: Storage, name: str) -> list[str]:
    """The files that a pin holds, relative to the state root or as URLs. One that cannot be read is
    an error: as long as it is not known what it holds, nothing may be deleted."""
    pin, where = _read(storage, name)
    files = pin["files"]
    if type(files) is not list or not all(type(file) is str for file in files):
        raise CorruptStateError(where, "it does not list files")
    return files


def orphaned_pins(storage: Storage) -> dict[str, int]:
    """The names of pins that were laid for a directory which does not need them, with sizes.

    Such a directory is gone, or neither its `restored.json` nor its `restoring.json` names the pin,
    nor is it a savepoint that is not complete and names it. What was laid by a reader is needed by
    a process instead of a directory.
    A pin that names no directory is none, nor one whose directory or process cannot be looked at.
    """
    return {
        name: storage.size(pin_path(name))
        for name in pin_names(storage)
        if (target := target_of(storage, name)) is not None and not _may_need(storage, target, name)
    }


def target_of(storage: Storage, name: str) -> str | None:
    """The directory that a pin was laid for, if it names one."""
    pin, where = _read(storage, name)
    target = pin.get("target")
    if target is not None and (type(target) is not str or not target):
        raise CorruptStateError(where, f"its 'target' is {target!r}")
    return target


def process_of(storage: Storage, name: str) -> ProcessId | None:
    """Who has laid a pin; those of older releases do not say."""
    pin, where = _read(storage, name)
    if "host" not in pin:
        return None
    fields = Fields(pin, "its content", where)
    return ProcessId(
        fields.text("host", r"(?s).*"), fields.integer("pid"), fields.text("started", r"(?s).*")
    )


def _may_need(storage: Storage, target: str, name: str) -> bool:
    process = process_of(storage, name)
    if process is not None:
        if name.startswith(READER) and not process.is_gone:
            return True
        if not process.is_of_this_host and canonical(target).startswith(_DISK):
            logger.warning(
                "The pin %s is kept, as %s is to be looked for on %s.", name, target, process.host
            )
            return True
    try:
        directory = storage.below(target)
        # In this order: a restore writes the one before it deletes the other.
        markers = (read_fields(directory, path) for path in (RESTORING_PATH, RESTORED_PATH))
        if any(fields is not None and fields.get("pin") == name for fields in markers):
            return True
        savepoint = read_fields(directory, SAVEPOINT_PATH)
        return savepoint is not None and savepoint.get("pin") == name and not is_complete(directory)
    except (SparkckptError, OSError, ImportError, ValueError) as error:
        logger.warning("The pin %s is kept, as %s cannot be looked at: %s", name, target, error)
        return True


def _read(storage: Storage, name: str) -> tuple[dict[str, Any], str]:
    path = pin_path(name)
    where = storage.where(path)
    try:
        pin = json.loads(storage.read_all(path))
        version, _ = pin["formatVersion"], pin["files"]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptStateError(where, f"it is no pin: {error!r}") from error
    if type(version) is int and version > FORMAT_VERSION:
        raise UnsupportedFormatVersionError(where, version, FORMAT_VERSION)
    if version != FORMAT_VERSION:
        raise CorruptStateError(where, f"it has format version {version!r}")
    return pin, where
