"""Deletes a savepoint, after making sure that it is one and that nobody needs it.

The metadata goes first, so that what is left of a disposal that was broken off is no savepoint any
more, and the marker last, so that the disposal can be gone on with. Only what a savepoint consists
of is deleted: other files in the directory stay.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from sparkckpt.checkpoints.directory import Location
from sparkckpt.coordinator.committed import STATE
from sparkckpt.coordinator.pins import orphaned_pins, pin_names, pin_path, target_of
from sparkckpt.coordinator.restored import claimed_by
from sparkckpt.coordinator.savepoints import (
    SAVEPOINT_PATH,
    SavepointMarker,
    is_complete,
    read_savepoint,
)
from sparkckpt.errors import (
    ClaimedCheckpointError,
    NotASavepointError,
    SavepointExistsError,
    SavepointInUseError,
    SparkckptError,
)
from sparkckpt.restoration.copies import SOURCES
from sparkckpt.restoration.source import open_storage
from sparkckpt.restoration.state import DIRECTORY
from sparkckpt.storage import Storage

_METADATA = "/_metadata"


@dataclass(frozen=True)
class DisposeReport:
    """A savepoint, or what there was of one, that is deleted."""

    path: str
    name: str
    complete: bool
    """False: it had been broken off."""
    files: int
    bytes: int


def dispose(savepoint: Location, *, force: bool = False) -> DisposeReport:
    """Deletes a savepoint, or what is left of one that was broken off.

    It is refused while a query that was restored from it without a copy needs its files, unless
    with `force`; and of a directory that is no savepoint, or that another one has claimed.
    """
    storage, _ = open_storage(savepoint)
    where = storage.where("")
    marker = read_savepoint(storage)
    if marker is None:
        exists = storage.exists("")
        why = "it has no _sparkckpt/savepoint.json" if exists else "it does not exist"
        raise NotASavepointError(where, why)
    complete = is_complete(storage)
    if not complete:
        _refuse_under_way(where, marker)
    owner = claimed_by(storage)
    if owner is not None and not force:
        raise ClaimedCheckpointError(where, owner)
    users = _users(storage)
    if users and not force:
        raise SavepointInUseError(where, users)
    if not complete:
        _remove_pin(marker)
    files = {
        path: size
        for directory in (DIRECTORY, STATE, SOURCES)
        for path, size in storage.find(directory).items()
    }
    _delete(storage, files)
    return DisposeReport(where, marker.name, complete, len(files), sum(files.values()))


def _refuse_under_way(where: str, marker: SavepointMarker) -> None:
    if marker.is_under_way:
        by = f"process {marker.pid} on {marker.host}"
        raise SavepointExistsError.under_way(where, marker.source, by)


def _users(storage: Storage) -> list[str]:
    """The directories that were restored from here and need its files, and savepoints that are
    being taken of it."""
    orphaned = orphaned_pins(storage)
    needed = [name for name in pin_names(storage) if name not in orphaned]
    return [target_of(storage, name) or f"the pin {pin_path(name)}" for name in needed]


def _remove_pin(marker: SavepointMarker) -> None:
    """Frees the files that a try which was broken off has kept from being deleted."""
    if not (marker.source and marker.pin):
        return
    try:
        source, _ = open_storage(marker.source)
        source.delete([pin_path(marker.pin)])
    except SparkckptError:
        # The source is gone, or out of reach; `sparkckpt clean` removes the pin there.
        return


def _delete(storage: Storage, files: Iterable[str]) -> None:
    paths = list(files)
    metadata = [path for path in paths if path.endswith(_METADATA) and path.startswith(DIRECTORY)]
    storage.delete(metadata)
    storage.delete(set(paths) - {*metadata, SAVEPOINT_PATH})
    storage.delete([SAVEPOINT_PATH])
    for directory in (DIRECTORY, STATE, SOURCES):
        _remove_empty(storage, directory)
    storage.delete_directory("")


def _remove_empty(storage: Storage, directory: str) -> None:
    """Removes directories in which there is nothing any more, where storage has directories."""
    for name in storage.list_names(directory):
        _remove_empty(storage, f"{directory}/{name}")
    storage.delete_directory(directory)
