"""The driver's storage as the coordinator sees it; the driver is a stand-in with a directory."""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sparkckpt.errors import FileMissingError
from sparkckpt.storage import Storage
from tests.unit.fake_driver import Bridge, bridged


@pytest.fixture
def bridge(tmp_path: Path) -> Iterator[Bridge]:
    with bridged(f"file:{tmp_path}") as both_ends:
        yield both_ends


def test_a_file_is_created_whole_and_read_in_parts(bridge: Bridge) -> None:
    path = bridge.path("a/b/file")
    bridge.filesystem.create_atomic(path, b"0123456789")
    assert bridge.filesystem.cat_file(path) == b"0123456789"
    assert bridge.filesystem.cat_file(path, 2, 5) == b"234"
    assert bridge.filesystem.cat_file(path, start=8) == b"89"
    assert bridge.filesystem.cat_file(path, start=-3) == b"789"
    assert bridge.filesystem.cat_file(path, 4, -4) == b"45"
    assert bridge.filesystem.open(path).read() == b"0123456789"


def test_a_file_is_replaced_only_when_that_is_asked_for(bridge: Bridge) -> None:
    path = bridge.path("file")
    bridge.filesystem.create_atomic(path, b"first")
    with pytest.raises(FileExistsError):
        bridge.filesystem.create_atomic(path, b"second")
    assert bridge.filesystem.cat_file(path) == b"first"
    bridge.filesystem.create_atomic(path, b"third", overwrite=True)
    assert bridge.filesystem.cat_file(path) == b"third"


def test_what_is_missing_is_said_to_be(bridge: Bridge) -> None:
    missing = bridge.path("missing")
    assert not bridge.filesystem.exists(missing)
    for ask in (bridge.filesystem.cat_file, bridge.filesystem.info, bridge.filesystem.ls):
        with pytest.raises(FileNotFoundError):
            ask(missing)
    bridge.filesystem.rm([missing])


def test_listings_have_the_paths_that_were_asked_for(bridge: Bridge) -> None:
    names = ["d/x", "d/e/y", "d/e/f/z z"]
    for number, name in enumerate(names):
        bridge.filesystem.create_atomic(bridge.path(name), b"." * number)
    assert sorted(bridge.filesystem.ls(bridge.path("d"), detail=False)) == [
        bridge.path("d/e"),
        bridge.path("d/x"),
    ]
    assert bridge.filesystem.isdir(bridge.path("d/e"))
    found = bridge.filesystem.find(bridge.path("d"), detail=True)
    assert {path: info["size"] for path, info in found.items()} == {
        bridge.path(name): number for number, name in enumerate(names)
    }
    assert bridge.driver.requests[-1] == ("find", bridge.path("d"))


def test_many_files_are_deleted_in_one_request(bridge: Bridge) -> None:
    paths = [bridge.path(f"d/{number}") for number in range(20)]
    for path in paths:
        bridge.filesystem.create_atomic(path, b"")
    before = len(bridge.driver.requests)
    bridge.filesystem.rm(paths)
    assert len(bridge.driver.requests) == before + 1
    assert bridge.filesystem.ls(bridge.path("d")) == []
    with pytest.raises(OSError, match="deleting 1 of 1 files failed"):
        bridge.filesystem.rm(bridge.path("d"))
    bridge.filesystem.rm(bridge.path("d"), recursive=True)
    assert not bridge.filesystem.exists(bridge.path("d"))


def test_a_copy_is_made_at_the_other_end(bridge: Bridge, tmp_path: Path) -> None:
    storage = Storage(bridge.filesystem, bridge.root)
    (tmp_path / "file").write_bytes(b"0123")
    storage.copy("file", storage, "d/copy")
    assert (tmp_path / "d/copy").read_bytes() == b"0123"
    assert [op for op, _ in bridge.driver.requests] == ["copy"]
    with pytest.raises(FileMissingError):
        storage.copy("none", storage, "d/copy")


def test_answers_find_the_threads_that_asked(bridge: Bridge) -> None:
    contents = {bridge.path(str(number)): os.urandom(number * 100) for number in range(50)}
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda item: bridge.filesystem.create_atomic(*item), contents.items()))
        read = dict(zip(contents, pool.map(bridge.filesystem.cat_file, contents), strict=True))
    assert read == contents


def test_whoever_waits_when_the_driver_ends_gets_an_error(bridge: Bridge) -> None:
    bridge.driver.hold.clear()
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(bridge.filesystem.cat_file, bridge.path(str(n))) for n in range(4)]
        while len(bridge.driver.requests) < 4:
            time.sleep(0.01)
        bridge.pipe.close()
        for answer in asked:
            with pytest.raises(ConnectionError, match="driver has ended"):
                answer.result(60)
    with pytest.raises(ConnectionError, match="driver has ended"):
        bridge.filesystem.cat_file(bridge.path("late"))


def test_it_is_storage_like_any_other(bridge: Bridge, tmp_path: Path) -> None:
    storage = Storage(bridge.filesystem, bridge.root)
    (tmp_path / "file").write_bytes(b"0123")
    assert storage.read_all("file") == b"0123"
    assert storage.read_range("file", 1, 2) == b"12"
    assert storage.where("file") == bridge.path("file")
