"""Reads files through fsspec, so that a checkpoint may lie wherever fsspec can reach.

The one place that opens files. Paths in a checkpoint are relative to a root, so that it can be
moved as a whole. It must never list a directory to find out what a checkpoint consists of: that is
what handles are for.
"""

import os
from dataclasses import dataclass
from typing import Any

import fsspec

from sparkckpt.errors import UnreadableFileError


@dataclass(frozen=True)
class Storage:
    """A directory on some file system, and the files below it."""

    filesystem: Any
    root: str

    @classmethod
    def at(cls, url: str | os.PathLike[str], **options: Any) -> "Storage":
        """The directory at a path or URL; `options` go to the file system."""
        filesystem, root = fsspec.core.url_to_fs(os.fspath(url), **options)
        return cls(filesystem, root)

    def locate(self, path: str) -> tuple[Any, str]:
        """The file system of a path and the path on it: below the root unless it is absolute."""
        if "://" in path:
            filesystem, absolute = fsspec.core.url_to_fs(path)
            return filesystem, absolute
        absolute = path if path.startswith("/") else f"{self.root.rstrip('/')}/{path}"
        return self.filesystem, absolute

    def where(self, path: str) -> str:
        """The path as messages name it."""
        filesystem, absolute = self.locate(path)
        return str(filesystem.unstrip_protocol(absolute))

    def read_all(self, path: str) -> bytes:
        return self._read(path, None, None)

    def read_range(self, path: str, offset: int, length: int) -> bytes:
        """The bytes from `offset`; fewer than `length` where the file ends."""
        return self._read(path, offset, offset + length)

    def _read(self, path: str, start: int | None, end: int | None) -> bytes:
        filesystem, absolute = self.locate(path)
        try:
            return bytes(filesystem.cat_file(absolute, start=start, end=end))
        except OSError as error:
            why = error.strerror or str(error) or type(error).__name__
            raise UnreadableFileError(self.where(path), why) from error
