"""Deletes the state that nobody needs any more, and nothing else.

Knows who holds which file, and forgets no file that has lost its last holder until it is gone. A
file is deleted only below the floor (see `retention`), and never while some checkpoint may hold
files that cannot be known. Deleting is not urgent: what fails is tried again.
"""

import logging
import threading
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from sparkckpt.coordinator.committed import STATE, CommittedState
from sparkckpt.coordinator.pins import pin_names, read_pin
from sparkckpt.coordinator.registry import Holder, SharedStateRegistry
from sparkckpt.coordinator.retention import Floor, files_of, is_state_file, oldest_loadable
from sparkckpt.errors import SparkckptError, UnreachableStorageError, UnwritableFileError
from sparkckpt.format.handle import StateHandle
from sparkckpt.paths import StateRoot, is_absolute
from sparkckpt.storage import Storage

logger = logging.getLogger(__name__)

THREADS = 8
FILES_PER_DELETE = 100


@dataclass(frozen=True)
class Sweep:
    """The outcome of a search for orphans: their names, with sizes.

    Names are relative to the state root; those in a claimed source are URLs.
    """

    floor: int
    orphans: dict[str, int]
    deleted: frozenset[str]
    kept_files: int
    blocked_by: tuple[str, ...] = ()
    """Why nothing was looked for, if nothing was."""

    @property
    def orphan_bytes(self) -> int:
        return sum(self.orphans.values())


class CheckpointsCleaner:
    """The files below the state root of one checkpoint directory, and who needs them.

    Files of other directories are held too, but deleted only where such a directory is claimed.
    `storage` is at the checkpoint directory. Safe to be used by several threads.
    """

    def __init__(self, storage: Storage, min_batches_to_retain: int) -> None:
        self._storage = storage
        self._state = storage.below(STATE)
        self._root = StateRoot.of(self._state)
        self._claimed: StateRoot | None = None
        self._left_in_claimed: int | None = None
        self._min_batches = min_batches_to_retain
        self._lock = threading.Lock()
        self._registry = SharedStateRegistry()
        self._live: set[int] = set()
        self._floor = Floor.of(0, min_batches_to_retain)
        self._unneeded: set[str] = set()
        self._blocked_by: dict[int, str] = {}

    @property
    def floor(self) -> int:
        """The version below which files without a holder are deleted."""
        return self._floor.version

    def knows_live(self, version: int) -> bool:
        """Whether the files of some version not above this one are held as live."""
        with self._lock:
            return any(live <= version for live in self._live)

    def needs(self, path: str) -> bool:
        with self._lock:
            return path in self._registry

    def hold_checkpoint(self, checkpoint_id: int, handles: Iterable[StateHandle]) -> None:
        self._hold(Holder.checkpoint(checkpoint_id), files_of(handles, self._root))

    def hold_live(self, version: int, handles: Iterable[StateHandle]) -> None:
        """Holds the files of a committed version, until the floor has passed it."""
        self._hold(Holder.live(version), files_of(handles, self._root))
        with self._lock:
            self._live.add(version)

    def _hold(self, holder: Holder, paths: Iterable[str]) -> None:
        paths = list(paths)
        with self._lock:
            if holder not in self._registry.holders:
                self._registry.register(holder, paths)

    def release_checkpoint(self, checkpoint_id: int) -> None:
        with self._lock:
            self._unneeded.update(self._registry.release(Holder.checkpoint(checkpoint_id)))

    def doom(self, paths: Iterable[str]) -> None:
        """Names files that nobody has ever held, such as those of an attempt that has lost."""
        with self._lock:
            self._unneeded.update(paths)

    def block(self, checkpoint_id: int, why: str) -> None:
        """Nothing is deleted any more: a checkpoint may hold files that are not known."""
        self._blocked_by[checkpoint_id] = why

    def claim(self, source: StateRoot) -> None:
        """Deletes what nobody needs below this state root of another directory too."""
        self._claimed = source

    def is_free_of(self, source: StateRoot) -> bool:
        """Whether surely nobody needs a file below another state root any more, nor ever will.

        If it is claimed, its files must be gone too.
        """
        with self._lock:
            if self._blocked_by or not self._floor.version:
                return False
            if self._claimed == source and self._left_in_claimed != 0:
                return False
            return all(source.below(name) is None for name in self._registry.foreign)

    def refresh_pins(self, void: Collection[str] = ()) -> None:
        """Takes in which pins there are now, but for void ones; to be called before anything is
        deleted."""
        names = [name for name in pin_names(self._storage) if name not in void]
        found = {Holder.pin(name): (self._storage, self._root) for name in names}
        if self._claimed is not None:
            source = self._storage.below(self._claimed.checkpoint)
            for name in pin_names(source):
                found[Holder.claimed_pin(name)] = (source, self._claimed)
        with self._lock:
            known = {holder for holder in self._registry.holders if holder.is_pin}
            for holder in known - found.keys():
                self._unneeded.update(self._registry.release(holder))
        for holder in sorted(found.keys() - known):
            storage, root = found[holder]
            paths = read_pin(storage, holder.name)
            self._hold(holder, map(self._root.name_of, map(root.url_of, paths)))

    def advance(self, oldest: int) -> None:
        """Raises the floor to the oldest version that Spark can load, or as near as is known.

        A version serves as the floor only if its files are known: they are all that later versions
        can need of what lies below it, since those descend from it.
        """
        with self._lock:
            known = max((version for version in self._live if version <= oldest), default=0)
            if known <= self._floor.version:
                return
            self._floor = Floor.of(known, self._min_batches)
            for version in [version for version in self._live if version < known]:
                self._live.discard(version)
                self._unneeded.update(self._registry.release(Holder.live(version)))

    def clean(self) -> int:
        """Deletes what has become unneeded and lies below the floor; how many files."""
        if self._blocked_by:
            return 0
        with self._lock:
            self._unneeded = {path for path in self._unneeded if path not in self._registry}
            doomed = [path for path in self._unneeded if self._is_below_floor(path)]
        deleted = self._delete(doomed)
        with self._lock:
            self._unneeded -= deleted
        return len(deleted)

    def sweep(self, dry_run: bool = False) -> Sweep:
        """Finds all files below the floor that nobody holds, and deletes them."""
        if self._blocked_by:
            return Sweep(self.floor, {}, frozenset(), 0, tuple(self._blocked_by.values()))
        found = {**self._state.find(""), **self._find_claimed()}
        with self._lock:
            orphans = {
                path: size
                for path, size in found.items()
                if path not in self._registry and self._is_below_floor(path)
            }
        deleted = frozenset() if dry_run else frozenset(self._delete(list(orphans)))
        with self._lock:
            self._unneeded -= deleted
            left = found.keys() - deleted
            self._left_in_claimed = sum(is_absolute(p) and is_state_file(p) for p in left)
        return Sweep(self.floor, orphans, deleted, len(found) - len(orphans))

    def _find_claimed(self) -> dict[str, int]:
        if self._claimed is None:
            return {}
        found = self._storage.below(self._claimed.url).find("")
        return {f"{self._claimed.url}/{path}": size for path, size in found.items()}

    def _is_below_floor(self, name: str) -> bool:
        """Files of other directories never are, unless they have been claimed."""
        if self._claimed is None or not is_absolute(name):
            return self._floor.is_below(name)
        claimed = self._claimed.below(name)
        return claimed is not None and self._floor.is_below(claimed)

    def _delete(self, paths: Sequence[str]) -> set[str]:
        """Deletes files in parallel; returns those that are gone."""
        if not paths:
            return set()
        cuts = range(0, len(paths), FILES_PER_DELETE)
        chunks = [paths[cut : cut + FILES_PER_DELETE] for cut in cuts]
        with ThreadPoolExecutor(min(THREADS, len(chunks)), "sparkckpt-delete") as threads:
            return set().union(*threads.map(self._delete_chunk, chunks))

    def _delete_chunk(self, paths: Sequence[str]) -> Sequence[str]:
        try:
            self._state.delete(paths)
        except (UnreachableStorageError, UnwritableFileError) as error:
            logger.warning("Files that are not needed any more are tried again later. %s", error)
            return ()
        return paths


def learn_floor(
    cleaner: CheckpointsCleaner, committed: CommittedState, min_batches_to_retain: int | None
) -> None:
    """Finds out, at a start, which old files the versions that Spark can load need.

    Of these the oldest is enough; its handles are read. If one of them cannot be, the floor stays
    where it is and nothing is deleted.
    """
    oldest = oldest_loadable(committed.batches(), min_batches_to_retain)
    if oldest > 1 and not cleaner.knows_live(oldest):
        try:
            cleaner.hold_live(oldest, committed.load_all(oldest - 1))
        except SparkckptError as error:
            logger.warning(
                "No state is deleted for now: what version %d consists of is not known. %s",
                oldest,
                error,
            )
    cleaner.advance(oldest)
