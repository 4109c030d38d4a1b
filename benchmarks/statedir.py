"""Counts what is written into a checkpoint's state directory, by kind of file.

The benchmark keeps Spark from deleting old versions, and the directory is polled during the run all
the same: a file that vanishes before the end has still been written. Checksum sidecars are left out
for every contestant, and so are temporary names: a file counts under the name it gets at last.
"""

import os
import threading
import time
from collections import Counter
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

POLL_SECONDS = 1.0


class FileKind(Enum):
    """What a file of a state directory is, by its name; `log` files grow with every batch."""

    HANDLE = "handle"
    DELTA = "delta"
    MERGE = "merge"
    CHANGELOG = "changelog"
    SNAPSHOT = "snapshot"
    OTHER = "other"

    @property
    def is_log(self) -> bool:
        return self in (FileKind.HANDLE, FileKind.DELTA, FileKind.CHANGELOG)

    @staticmethod
    def of(name: str) -> "FileKind":
        for suffix, kind in _KINDS.items():
            if name.endswith(suffix):
                return kind
        return FileKind.OTHER


_KINDS = {
    ".handle": FileKind.HANDLE,
    ".delta.arrow": FileKind.DELTA,
    ".merge.arrow": FileKind.MERGE,
    ".delta": FileKind.DELTA,
    ".changelog": FileKind.CHANGELOG,
    ".zip": FileKind.SNAPSHOT,
    ".sst": FileKind.SNAPSHOT,
    ".log": FileKind.SNAPSHOT,
    ".snapshot": FileKind.SNAPSHOT,
}


@dataclass(frozen=True)
class Written:
    """Files and bytes by kind."""

    files: dict[str, int]
    bytes: dict[str, int]


class StateDirWatch:
    """Remembers every file ever seen below a directory, with the largest size it had."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._sizes: dict[str, int] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)

    def __enter__(self) -> "StateDirWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()

    def snapshot(self) -> dict[str, int]:
        """Sizes by path of all files seen so far."""
        with self._lock:
            _scan(self._directory, self._sizes)
            return dict(self._sizes)

    def settle(self, quiet_seconds: float, timeout_seconds: float = 300) -> dict[str, int]:
        """Waits until background work has written nothing for a while; the sizes then."""
        deadline = time.monotonic() + timeout_seconds
        sizes = self.snapshot()
        quiet_since = time.monotonic()
        while time.monotonic() - quiet_since < quiet_seconds:
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self._directory} is still written to after the last batch")
            time.sleep(0.2)
            latest = self.snapshot()
            if latest != sizes:
                sizes, quiet_since = latest, time.monotonic()
        return sizes

    def _poll(self) -> None:
        while not self._closed.wait(POLL_SECONDS):
            self.snapshot()


def written_between(before: dict[str, int], after: dict[str, int]) -> Written:
    """What came into being between two snapshots of a watch."""
    files: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for path, size in after.items():
        if path not in before:
            kind = FileKind.of(path).value
            files[kind] += 1
            sizes[kind] += size
    return Written(dict(files), dict(sizes))


def _scan(directory: Path | str, sizes: dict[str, int]) -> None:
    try:
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.name.startswith(".") or entry.name.endswith(".crc"):
                    continue
                if entry.is_dir():
                    _scan(entry.path, sizes)
                else:
                    sizes[entry.path] = max(sizes.get(entry.path, 0), entry.stat().st_size)
    except FileNotFoundError:
        return
