"""Reads and writes files through fsspec, so that a checkpoint may lie wherever fsspec can reach.

The one place that touches storage. Paths in a checkpoint are relative to a root, so that it can be
moved as a whole. A file is written as a whole or not at all, and never changed in place. Listing is
for logs and for finding what nobody refers to: what a checkpoint consists of is said by its handles
and its metadata, and must never be found out by listing.
"""

import glob
import inspect
import os
import shutil
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from sparkckpt.clients import NoCredentialsError, as_os_errors
from sparkckpt.errors import (
    FileExistsAlreadyError,
    FileMissingError,
    SparkckptError,
    UnreachableStorageError,
    UnreadableFileError,
    UnwritableFileError,
)

_COPIED_AT_ONCE = 8 << 20


@dataclass(frozen=True)
class Storage:
    """A directory on some file system, and the files below it."""

    filesystem: Any
    root: str

    @classmethod
    def at(cls, url: str | os.PathLike[str], **options: Any) -> "Storage":
        """The directory at a path or URL; `options` go to the file system."""
        return cls(*_open(os.fspath(url), **options))

    def below(self, path: str) -> "Storage":
        """A directory in this one."""
        return Storage(*self.locate(path))

    def locate(self, path: str) -> tuple[Any, str]:
        """The file system of a path and the path on it: below the root unless it is absolute."""
        # Hadoop writes file:/a where others write file:///a.
        is_url = ":/" in path
        if is_url and not getattr(self.filesystem, "takes_urls", False):
            return _open(path)
        absolute = path if path.startswith("/") or is_url else f"{self.root.rstrip('/')}/{path}"
        return self.filesystem, absolute.rstrip("/") or "/"

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
            with as_os_errors():
                return bytes(filesystem.cat_file(absolute, start=start, end=end))
        except OSError as error:
            raise self._unreadable(path, error) from error

    def size(self, path: str) -> int:
        """The length of a file."""
        filesystem, absolute = self.locate(path)
        try:
            with as_os_errors():
                filesystem.invalidate_cache()
                return int(filesystem.info(absolute)["size"])
        except OSError as error:
            raise self._unreadable(path, error) from error

    def exists(self, path: str) -> bool:
        """Whether there is a file or a directory."""
        filesystem, absolute = self.locate(path)
        try:
            with as_os_errors():
                filesystem.invalidate_cache()
                filesystem.info(absolute)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise self._unreadable(path, error) from error
        return True

    def list_names(self, directory: str) -> list[str]:
        """The names of what lies in a directory, sorted; none if there is no such directory."""
        filesystem, absolute = self.locate(directory)
        try:
            with as_os_errors():
                filesystem.invalidate_cache()
                paths = filesystem.ls(absolute, detail=False)
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise self._unreadable(directory, error) from error
        names = {_name(path) for path in paths if path.rstrip("/") != absolute}
        return sorted(name for name in names if not _is_checksum(filesystem, name))

    def find(self, directory: str) -> dict[str, int]:
        """The files at any depth below a directory, as paths relative to the root, with sizes."""
        filesystem, absolute = self.locate(directory)
        try:
            with as_os_errors():
                filesystem.invalidate_cache()
                found = _find(filesystem, absolute)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except OSError as error:
            raise self._unreadable(directory, error) from error
        base = directory.rstrip("/") + "/" if directory else ""
        return {
            base + path[len(absolute) :].lstrip("/"): int(info["size"])
            for path, info in found.items()
            if path != absolute and not _is_checksum(filesystem, _name(path))
        }

    def write_atomic(self, path: str, data: bytes, overwrite: bool = False) -> None:
        """Create a file with this content: whole or not at all, and by one writer only.

        On a local disk, through a bridge to Spark's storage and on object stores with conditional
        puts, exactly one of several writers succeeds; elsewhere an existing file is noticed, but
        not one that comes into being at the same moment.
        """
        filesystem, absolute = self.locate(path)
        try:
            with as_os_errors():
                if hasattr(filesystem, "create_atomic"):
                    filesystem.create_atomic(absolute, data, overwrite)
                elif _is_local(filesystem):
                    _write_local(Path(absolute), data, overwrite)
                else:
                    _put(filesystem, absolute, data, overwrite)
        except FileExistsError as error:
            raise FileExistsAlreadyError(self.where(path)) from error
        except OSError as error:
            raise _unwritable(self.where(path), error) from error

    def copy(self, path: str, target: "Storage", target_path: str) -> None:
        """Copy a file to another storage, in place of what may be there; without reading it where
        the file system can do it by itself. Only storage with neither renames nor whole writes can
        be left with a part of the file, which is then shorter than it should be."""
        filesystem, source = self.locate(path)
        other, absolute = target.locate(target_path)
        try:
            with as_os_errors():
                if filesystem is other and hasattr(other, "copy_atomic"):
                    other.copy_atomic(source, absolute)
                elif hasattr(other, "create_atomic"):
                    other.create_atomic(absolute, self.read_all(path), True)
                else:
                    _copy(filesystem, source, other, absolute)
        except FileNotFoundError as error:
            raise self._unreadable(path, error) from error
        except OSError as error:
            raise _unwritable(target.where(target_path), error) from error

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files; those that do not exist are not missed. Directories are refused."""
        by_filesystem: dict[Any, list[str]] = {}
        for path in paths:
            filesystem, absolute = self.locate(path)
            by_filesystem.setdefault(filesystem, []).append(absolute)
        for filesystem, absolutes in by_filesystem.items():
            try:
                with as_os_errors():
                    _delete(filesystem, absolutes)
            except OSError as error:
                what = str(filesystem.unstrip_protocol(absolutes[0]))
                if (unreachable := _unreachable(what, error)) is not None:
                    raise unreachable from error
                if len(absolutes) > 1:
                    what = f"One of {len(absolutes)} files, the first of them {what},"
                raise UnwritableFileError.delete(what, str(error)) from error

    def delete_directory(self, directory: str) -> None:
        """Delete a directory that has become empty, where storage has directories at all."""
        filesystem, absolute = self.locate(directory)
        try:
            with as_os_errors():
                filesystem.rmdir(absolute)
        except OSError:
            # Gone, not empty, or never there: an empty directory means nothing to anybody.
            return

    def _unreadable(self, path: str, error: OSError) -> SparkckptError:
        where = self.where(path)
        # What is said to lie in a file cannot be there.
        if isinstance(error, (FileNotFoundError, NotADirectoryError)):
            return FileMissingError(where, _reason(error))
        return _unreachable(where, error) or UnreadableFileError(where, _reason(error))


def _open(url: str, **options: Any) -> tuple[Any, str]:
    """The file system of a URL and the path on it; some clients log in for that."""
    try:
        with as_os_errors():
            filesystem, path = fsspec.core.url_to_fs(url, **options)
    except OSError as error:
        raise _unreachable(url, error) or UnreadableFileError(url, _reason(error)) from error
    return filesystem, path


def _unwritable(where: str, error: OSError) -> SparkckptError:
    return _unreachable(where, error) or UnwritableFileError.write(where, _reason(error))


def _unreachable(where: str, error: OSError) -> UnreachableStorageError | None:
    """Not the file is to blame, but all of its storage is out of reach."""
    if isinstance(error, NoCredentialsError):
        return UnreachableStorageError.credentials(where, _reason(error))
    if isinstance(error, (ConnectionError, TimeoutError)):
        return UnreachableStorageError.connection(where, _reason(error))
    return None


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__


def _name(path: str) -> str:
    return path.rstrip("/").rsplit("/", 1)[-1]


def _is_local(filesystem: Any) -> bool:
    return isinstance(filesystem, LocalFileSystem)


def _checksum_of(path: Path) -> Path:
    """Where Hadoop keeps the checksum of a file on a local disk; one of old content fails reads."""
    return path.with_name(f".{path.name}.crc")


def _is_checksum(filesystem: Any, name: str) -> bool:
    return _is_local(filesystem) and name.startswith(".") and name.endswith(".crc")


def _find(filesystem: Any, directory: str) -> dict[str, Any]:
    """The files below a directory. fsspec's general way leaves out what it fails to list, but a
    checkpoint that is overlooked is one whose state is taken for orphaned."""
    if getattr(filesystem.find, "__func__", None) is not AbstractFileSystem.find:
        found: dict[str, Any] = filesystem.find(directory, detail=True)
        return found
    found, directories = {}, [directory]
    while directories:
        here = directories.pop()
        try:
            entries = filesystem.ls(here, detail=True)
        except (FileNotFoundError, NotADirectoryError) as error:
            if here != directory and filesystem.exists(here):
                raise OSError(f"{here} cannot be listed: {error}") from error
            continue
        for entry in entries:
            if entry["type"] != "directory":
                found[entry["name"]] = entry
            elif entry["name"].rstrip("/") != here:
                directories.append(entry["name"].rstrip("/"))
    return found


def _write_local(path: Path, data: bytes, overwrite: bool) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:
        raise NotADirectoryError(error.errno, "its directory is a file") from error
    temporary = path.with_name(f".{path.name}.{uuid.uuid4()}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if overwrite:
            _checksum_of(path).unlink(missing_ok=True)
            temporary.replace(path)
        else:
            # Unlike a rename, a link never replaces a file.
            path.hardlink_to(temporary)
            _checksum_of(path).unlink(missing_ok=True)
    finally:
        temporary.unlink(missing_ok=True)


def _copy(filesystem: Any, source: str, other: Any, target: str) -> None:
    if not _is_local(other):
        other.makedirs(target.rsplit("/", 1)[0], exist_ok=True)
        if filesystem is other:
            try:
                filesystem.cp_file(source, target)
                return
            except NotImplementedError:
                pass
        with filesystem.open(source, "rb") as read, other.open(target, "wb") as write:
            shutil.copyfileobj(read, write, _COPIED_AT_ONCE)
        return
    path = Path(target)
    with filesystem.open(source, "rb") as read:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4()}.tmp")
        try:
            with temporary.open("xb") as write:
                shutil.copyfileobj(read, write, _COPIED_AT_ONCE)
                write.flush()
                os.fsync(write.fileno())
            _checksum_of(path).unlink(missing_ok=True)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def _put(filesystem: Any, path: str, data: bytes, overwrite: bool) -> None:
    options = {}
    if not overwrite:
        if "mode" in inspect.signature(filesystem.pipe_file).parameters:
            options = {"mode": "create"}
        elif filesystem.exists(path):
            raise FileExistsError(path)
    try:
        filesystem.pipe_file(path, data, **options)
    except FileNotFoundError:
        filesystem.makedirs(path.rsplit("/", 1)[0], exist_ok=True)
        filesystem.pipe_file(path, data, **options)


def _delete(filesystem: Any, paths: list[str]) -> None:
    # Other file systems delete many files in one call, but take their paths for patterns.
    if not _is_local(filesystem) and not any(map(glob.has_magic, paths)):
        try:
            filesystem.rm(paths)
            return
        except FileNotFoundError:
            pass
    for path in paths:
        _delete_one(filesystem, path)


def _delete_one(filesystem: Any, path: str) -> None:
    try:
        if _is_local(filesystem):
            Path(path).unlink(missing_ok=True)
            _checksum_of(Path(path)).unlink(missing_ok=True)
        else:
            filesystem.rm_file(path)
    except FileNotFoundError:
        return
