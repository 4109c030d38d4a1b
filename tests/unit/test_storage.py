"""Files are written whole and by one writer only, on disks, object stores and through a bridge."""

import os
import re
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import aiohttp
import botocore.exceptions as boto
import fsspec
import pytest
from fsspec.exceptions import FSTimeoutError
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

import sparkckpt
from sparkckpt.errors import (
    FileExistsAlreadyError,
    FileMissingError,
    UnreachableStorageError,
    UnreadableFileError,
    UnwritableFileError,
)
from sparkckpt.storage import Storage


class Bridge(MemoryFileSystem):  # type: ignore[misc]
    """A file system that creates files atomically by itself."""

    protocol = "bridge"
    store: ClassVar[dict[str, object]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    def create_atomic(self, path: str, data: bytes, overwrite: bool) -> None:
        if not overwrite and self.exists(path):
            raise FileExistsError(path)
        super().pipe_file(path, data)

    def pipe_file(self, *args: object, **kwargs: object) -> None:
        raise AssertionError("files must be created with create_atomic")


class OldStore(MemoryFileSystem):  # type: ignore[misc]
    """An object store whose puts take no mode."""

    protocol = "old"
    store: ClassVar[dict[str, object]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]

    def pipe_file(self, path: str, value: bytes) -> None:
        super().pipe_file(path, value)


class ObjectStore(MemoryFileSystem):  # type: ignore[misc]
    """An object store with conditional puts, which fsspec's own in memory only looks like."""

    protocol = "objects"
    store: ClassVar[dict[str, object]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    lock = threading.Lock()

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: object) -> None:
        with self.lock:
            super().pipe_file(path, value, mode=mode)


class Failing(MemoryFileSystem):  # type: ignore[misc]
    """A file system whose client cannot do anything, and says so in its own way."""

    protocol = "failing"
    cachable = False

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def fail(self, *arguments: object, **options: object) -> Any:
        raise self.error

    cat_file = info = ls = find = pipe_file = cp_file = rm = rm_file = rmdir = open = fail


fsspec.register_implementation("bridge", Bridge)
fsspec.register_implementation("objects", ObjectStore)
fsspec.register_implementation("old", OldStore)
fsspec.register_implementation("failing", Failing)


@pytest.fixture(params=["local", "memory", "bridge", "old"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    """A directory on each kind of file system; it does not exist yet."""
    if request.param == "local":
        yield Storage.at(tmp_path / "root")
        return
    directory = Storage.at(f"{request.param}:///{uuid.uuid4()}")
    yield directory
    if directory.list_names(""):
        directory.filesystem.rm(directory.root, recursive=True)


def test_a_file_is_created_once(storage: Storage) -> None:
    storage.write_atomic("a/b/c", b"first")
    with pytest.raises(FileExistsAlreadyError, match="a/b/c exists already"):
        storage.write_atomic("a/b/c", b"second")
    assert storage.read_all("a/b/c") == b"first"
    storage.write_atomic("a/b/c", b"third", overwrite=True)
    assert storage.read_all("a/b/c") == b"third"
    assert storage.list_names("a/b") == ["c"]


def test_listing(storage: Storage) -> None:
    assert storage.list_names("") == [] and storage.list_names("no/such") == []
    assert storage.find("") == {} and storage.find("no/such") == {}
    for path in ("a/b/1", "a/b/2", "a/.hidden", "c"):
        storage.write_atomic(path, path.encode())
    assert storage.list_names("") == ["a", "c"]
    assert storage.list_names("a") == [".hidden", "b"]
    assert storage.list_names("a/b/") == ["1", "2"]
    assert storage.find("") == {"a/b/1": 5, "a/b/2": 5, "a/.hidden": 9, "c": 1}
    assert storage.find("a/b") == {"a/b/1": 5, "a/b/2": 5}


def test_the_size_of_a_file(storage: Storage) -> None:
    storage.write_atomic("a/b", b"12345")
    assert storage.size("a/b") == 5
    with pytest.raises(FileMissingError):
        storage.size("a/c")


def test_directories_that_cannot_be_listed_are_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = Storage.at(tmp_path)
    storage.write_atomic("a/b/c", b"")
    storage.write_atomic("a/d", b"")
    ls = LocalFileSystem.ls

    def fail(error: OSError) -> None:
        def failing(filesystem: Any, path: str, *arguments: Any, **options: Any) -> Any:
            if path.endswith("/b"):
                raise error
            return ls(filesystem, path, *arguments, **options)

        monkeypatch.setattr(LocalFileSystem, "ls", failing)

    fail(PermissionError(13, "Permission denied"))
    with pytest.raises(UnreadableFileError, match="Permission denied"):
        storage.find("")
    fail(FileNotFoundError(2, "of something in it"))
    with pytest.raises(UnreadableFileError, match="of something in it"):
        storage.find("")
    monkeypatch.setattr(LocalFileSystem, "exists", lambda *arguments: False)
    assert storage.find("") == {"a/d": 0}


def test_existence(storage: Storage) -> None:
    storage.write_atomic("a/b", b"")
    assert storage.exists("a/b") and storage.exists("a")
    assert not storage.exists("b") and not storage.exists("a/b/c")


def test_delete(storage: Storage) -> None:
    for name in "abcde":
        storage.write_atomic(name, b"")
    storage.delete(["a", "not there", "b"])
    assert storage.list_names("") == ["c", "d", "e"]
    storage.delete([])
    storage.delete(["c", "d"])
    storage.delete(iter(["c"]))
    assert storage.list_names("") == ["e"]


def test_a_pattern_deletes_nothing_else(storage: Storage) -> None:
    for name in ("ab", "a*", "a[b]", "a?"):
        storage.write_atomic(name, b"")
    storage.delete(["a*"])
    storage.delete(["a?", "a[b]", "nothing"])
    assert storage.list_names("") == ["ab"]


def test_directories_are_not_deleted(tmp_path: Path) -> None:
    Storage.at(tmp_path).write_atomic("a/b", b"")
    with pytest.raises(UnwritableFileError, match="a cannot be deleted"):
        Storage.at(tmp_path).delete(["a"])
    assert (tmp_path / "a" / "b").exists()


def test_missing_files_are_told_from_unreadable_ones(storage: Storage) -> None:
    with pytest.raises(FileMissingError, match="no/such cannot be read"):
        storage.read_all("no/such")


def test_a_directory_is_not_read(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFileError, match="Is a directory"):
        Storage.at(tmp_path).read_all("")


def test_below(storage: Storage) -> None:
    storage.write_atomic("a/b/c", b"x")
    assert storage.below("a").below("b").read_all("c") == b"x"
    assert storage.below("a").find("") == {"b/c": 1}


@pytest.mark.parametrize("kind", ["local", "objects"])
def test_one_of_many_writers_wins(tmp_path: Path, kind: str) -> None:
    storage = Storage.at(tmp_path if kind == "local" else f"objects:///{uuid.uuid4()}")
    writers = 8
    ready = threading.Barrier(writers)

    def write(writer: int) -> bool:
        ready.wait()
        try:
            storage.write_atomic("owner/1", b"%d" % writer * 1000)
            return True
        except FileExistsAlreadyError:
            return False

    with ThreadPoolExecutor(writers) as pool:
        won = list(pool.map(write, range(writers)))
    assert won.count(True) == 1
    assert storage.read_all("owner/1") == b"%d" % won.index(True) * 1000
    assert storage.list_names("owner") == ["1"]


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UnwritableFileError, match="x cannot be written: No space left"):
        Storage.at(tmp_path).write_atomic("x", b"data")
    assert list(tmp_path.iterdir()) == []


def test_an_unwritable_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UnwritableFileError, match="file/x cannot be written"):
        Storage.at(tmp_path).write_atomic("file/x", b"")


NO_ANSWER = boto.EndpointConnectionError(endpoint_url="http://nowhere:9000")
NO_ONE = boto.NoCredentialsError()
ODD = boto.DataNotFoundError(data_path="x")


def everything(storage: Storage) -> Iterator[Callable[[], object]]:
    """What can be done with a storage whose file system fails."""
    for look in (storage.read_all, storage.size, storage.exists, storage.list_names, storage.find):
        yield partial(look, "a/b")
    yield from everything_that_writes(storage)


def everything_that_writes(storage: Storage) -> Iterator[Callable[[], object]]:
    yield lambda: storage.write_atomic("a/b", b"")
    yield lambda: storage.write_atomic("a/b", b"", overwrite=True)
    yield lambda: storage.copy("a/b", storage, "c")
    yield lambda: storage.delete(["a/b", "c"])


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (NO_ANSWER, r'/a/b cannot be reached: .*"http://nowhere:9000".* Check the network'),
        (boto.ReadTimeoutError(endpoint_url="http://slow"), r"cannot be reached: .*http://slow"),
        (boto.ConnectTimeoutError(endpoint_url="http://slow"), r"cannot be reached: .*http://slow"),
        (aiohttp.ServerDisconnectedError(), "cannot be reached: Server disconnected"),
        (FSTimeoutError(), "cannot be reached: FSTimeoutError"),
        (ConnectionResetError(104, "Connection reset"), "cannot be reached: Connection reset"),
        (NO_ONE, "/a/b does not know who asks: Unable to locate credentials.* AWS_ACCESS_KEY_ID"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_a_client_that_cannot_ask_is_named(error: Exception, message: str) -> None:
    storage = Storage(Failing(error), "/root")
    for do in everything(storage):
        with pytest.raises(UnreachableStorageError) as raised:
            do()
        assert re.search(message.replace("/a/b", "(/a/b|/c)"), str(raised.value))


@pytest.mark.parametrize("error", [PermissionError("Access Denied"), ODD], ids=["denied", "odd"])
def test_what_else_a_client_has_to_say_is_about_the_file(error: Exception) -> None:
    storage = Storage(Failing(error), "/root")
    writes = len(list(everything_that_writes(storage)))
    actions = list(everything(storage))
    for do in actions[:-writes]:
        with pytest.raises(UnreadableFileError, match=re.escape(f"/a/b cannot be read: {error}")):
            do()
    for do in actions[-writes:]:
        with pytest.raises(UnwritableFileError, match=re.escape(str(error))):
            do()


def test_what_is_no_error_of_a_client_is_left_as_it_is() -> None:
    for do in everything(Storage(Failing(KeyError("a mistake")), "/root")):
        with pytest.raises(KeyError, match="a mistake"):
            do()


def test_a_client_that_cannot_log_in_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    class DefaultCredentialsError(Exception):
        __module__ = "google.auth.exceptions"

    def refuse(self: object, *arguments: object) -> None:
        raise DefaultCredentialsError("Your default credentials were not found")

    monkeypatch.setattr(Failing, "__init__", refuse)
    for do in (
        lambda: Storage.at("failing://a"),
        lambda: sparkckpt.list_checkpoints("failing://a"),
    ):
        with pytest.raises(UnreachableStorageError, match="failing://a does not know who asks"):
            do()


def test_nothing_lies_in_a_file(storage: Storage) -> None:
    storage.write_atomic("file", b"")
    for look in (storage.read_all, storage.size):
        with pytest.raises(FileMissingError, match="file/x"):
            look("file/x")
    assert not storage.exists("file/x")
    assert storage.list_names("file/x") == [] and storage.find("file/x") == {}


def test_checksums_of_hadoop_follow_their_files(tmp_path: Path) -> None:
    storage = Storage.at(tmp_path)
    for name in ("a", "b"):
        (tmp_path / name).write_text("old")
        (tmp_path / f".{name}.crc").write_text("of old")
    assert storage.list_names("") == ["a", "b"]
    assert storage.find("") == {"a": 3, "b": 3}
    (tmp_path / ".c.crc").write_text("of a file long gone")
    storage.write_atomic("a", b"new", overwrite=True)
    storage.delete(["b"])
    storage.write_atomic("c", b"new")
    assert {path.name for path in tmp_path.iterdir()} == {"a", "c"}


@pytest.mark.parametrize("kind", ["local", "memory", "bridge"])
def test_copies(storage: Storage, tmp_path: Path, kind: str) -> None:
    other = {
        "local": Storage.at(tmp_path / "other"),
        "memory": Storage.at(f"memory://other-{uuid.uuid4()}"),
        "bridge": Storage(Bridge(), f"/other-{uuid.uuid4()}"),
    }[kind]
    storage.write_atomic("a/b c%24.arrow", b"x" * 100_000)
    for target in (other, storage.below("elsewhere")):
        for _ in range(2):
            storage.copy("a/b c%24.arrow", target, "d/e f")
            assert target.read_all("d/e f") == b"x" * 100_000
        with pytest.raises(FileMissingError, match="nothing"):
            storage.copy("a/nothing", target, "d/g")
        assert target.list_names("d") == ["e f"]


def test_a_copy_takes_the_checksum_of_the_former_file_away(tmp_path: Path) -> None:
    storage = Storage.at(tmp_path)
    storage.write_atomic("a", b"new")
    storage.write_atomic("b", b"old")
    (tmp_path / ".b.crc").write_bytes(b"of the old")
    storage.copy("a", storage, "b")
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]  # noqa: PTH208


def test_a_place_that_cannot_be_copied_to_is_named(tmp_path: Path) -> None:
    storage = Storage.at(tmp_path)
    storage.write_atomic("a", b"new")
    storage.write_atomic("file", b"")
    with pytest.raises(UnwritableFileError, match=r"file/b cannot be written"):
        storage.copy("a", storage, "file/b")
