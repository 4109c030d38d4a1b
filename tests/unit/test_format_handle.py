"""Handles come back as they were written, and are refused when they are not what was written."""

import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard

from sparkckpt.errors import (
    CorruptStateError,
    SparkckptError,
    UnreadableFileError,
    UnsupportedFormatVersionError,
)
from sparkckpt.format import StateFile, handle_path, load_handle, read_handle, write_handle
from sparkckpt.format.handle import HEADER_LENGTH
from sparkckpt.storage import Storage
from tests.unit.format_samples import (
    description_of,
    flipped,
    handle_of,
    puts,
    state_file,
    with_description,
)


@pytest.fixture(scope="module")
def inlined() -> bytes:
    """A handle with one state file in it."""
    data, ref = state_file(puts(30), offset=HEADER_LENGTH)
    return write_handle(handle_of(replace(ref, path="0/0/1_a.handle")), data)


def test_round_trip() -> None:
    _, ref = state_file(puts(30))
    handle = replace(handle_of(ref), base_id="b", version=2)
    assert read_handle(write_handle(handle)) == handle
    assert read_handle(write_handle(handle_of())) == handle_of()


def test_inlined_file_is_read_from_the_handle(inlined: bytes) -> None:
    (ref,) = read_handle(inlined).files_of()
    assert ref.inlined
    assert StateFile.from_bytes(inlined, ref).read() == puts(30)


def test_absent_optional_fields_are_left_out_and_unknown_ones_ignored() -> None:
    data = write_handle(handle_of())
    description = description_of(data)
    assert "baseId" not in description
    assert read_handle(with_description(data, {**description, "new": [1]})) == handle_of()
    assert read_handle(with_description(data, {**description, "baseId": None})) == handle_of()


def test_every_truncation_is_refused(inlined: bytes) -> None:
    for length in range(len(inlined)):
        with pytest.raises(CorruptStateError):
            read_handle(inlined[:length])


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_no_flipped_byte_changes_what_is_read(inlined: bytes, mask: int) -> None:
    expected = read_handle(inlined)
    for position in range(len(inlined)):
        damaged = flipped(inlined, position, mask)
        try:
            handle = read_handle(damaged)
        except SparkckptError:
            continue
        assert handle == expected, f"byte {position}"
        assert position >= HEADER_LENGTH, "the header must be checked"


def test_a_newer_version_is_refused_by_name(inlined: bytes) -> None:
    newer = inlined[:8] + (3).to_bytes(4, "little") + inlined[12:]
    with pytest.raises(
        UnsupportedFormatVersionError, match=r"x\.handle has format version 3.*to 2"
    ):
        read_handle(newer, "x.handle")


def test_a_version_that_does_not_fit_is_refused(inlined: bytes) -> None:
    other = inlined[:8] + (2).to_bytes(4, "little") + inlined[12:]
    with pytest.raises(CorruptStateError, match="what it says is not of format version 2"):
        read_handle(other, "x.handle")


def test_bytes_after_the_end_are_refused(inlined: bytes) -> None:
    with pytest.raises(CorruptStateError, match="does not end as a handle"):
        read_handle(inlined + b"\0")


def test_a_description_longer_than_the_handle_is_refused(inlined: bytes) -> None:
    for length in (len(inlined), 2**31, 2**32 - 1):
        with pytest.raises(CorruptStateError, match=f"cannot have {length} bytes"):
            read_handle(inlined[:-16] + length.to_bytes(4, "little") + inlined[-12:])


def set_field(name: str, value: object) -> Callable[[dict[str, Any]], object]:
    return lambda description: {**description, name: value}


def set_file_field(name: str, value: object) -> Callable[[dict[str, Any]], object]:
    def edit(description: dict[str, Any]) -> object:
        description["families"][0]["files"][0][name] = value
        return description

    return edit


IMPOSSIBLE: dict[str, Callable[[dict[str, Any]], object]] = {
    "no object": lambda _: [],
    "missing": lambda d: {name: value for name, value in d.items() if name != "version"},
    "text for a number": set_field("version", "1"),
    "bool for a number": set_field("version", True),
    "number for a bool": set_field("keyed", 1),
    "version 0": set_field("version", 0),
    "empty id": set_field("id", ""),
    "no digest": set_field("changeDigest", "xyz"),
    "more key groups than there may be": set_field("maxParallelism", 1 << 20),
    "more partitions than key groups": set_field("parallelism", 65),
    "partition beyond the parallelism": set_field("partition", 1),
    "key groups of another partition": set_field("lastKeyGroup", 31),
    "families no list": set_field("families", {}),
    "a family twice": lambda d: {**d, "families": d["families"] * 2},
    "negative offset": set_file_field("offset", -1),
    "negative length": set_file_field("length", -1),
    "negative rows": set_file_field("rows", -1),
    "no tail": set_file_field("tailLength", 0),
    "tail longer than the file": set_file_field("tailLength", 1 << 20),
    "checksum too large": set_file_field("tailCrc32", 1 << 32),
    "key groups reversed": set_file_field("firstKeyGroup", 63),
    "key group that does not exist": set_file_field("lastKeyGroup", 64),
    "versions reversed": set_file_field("firstVersion", 2),
    "no path": set_file_field("path", ""),
    "inlined in the header": set_file_field("offset", 4),
    "inlined beyond the description": set_file_field("offset", 40),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_a_description_that_cannot_be_is_refused(inlined: bytes, name: str) -> None:
    edited = IMPOSSIBLE[name](description_of(inlined))
    with pytest.raises(CorruptStateError, match="at this place is corrupt"):
        read_handle(with_description(inlined, edited), "the handle at this place")


def test_description_that_is_not_json_is_refused(inlined: bytes) -> None:
    for packed in (zstandard.compress(b"{"), zstandard.compress(b"\xff\xfe"), b"not zstd"):
        trailer = len(packed).to_bytes(4, "little") + zlib.crc32(packed).to_bytes(4, "little")
        with pytest.raises(CorruptStateError):
            read_handle(inlined[:12] + packed + trailer + inlined[-8:])


def test_paths() -> None:
    assert handle_path(0, 3, 12, "id") == "0/3/12_id.handle"
    assert handle_path(1, 0, 1, "id", "left-keyToNumValues") == (
        "1/0/left-keyToNumValues/1_id.handle"
    )


def test_load(tmp_path: Path) -> None:
    handle = handle_of()
    path = tmp_path / handle.path
    path.parent.mkdir(parents=True)
    path.write_bytes(write_handle(handle))
    storage = Storage.at(tmp_path)
    assert load_handle(storage, 0, 0, 1, "a") == handle
    assert read_handle(path) == handle


def test_a_missing_handle_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnreadableFileError, match=r"0/0/1_a\.handle cannot be read: No such file"):
        load_handle(Storage.at(tmp_path), 0, 0, 1, "a")


def test_a_handle_under_the_name_of_another_is_refused(tmp_path: Path) -> None:
    path = tmp_path / handle_path(0, 1, 1, "a")
    path.parent.mkdir(parents=True)
    path.write_bytes(write_handle(handle_of()))
    with pytest.raises(CorruptStateError, match=r"it is the handle 0/0/1_a\.handle"):
        load_handle(Storage.at(tmp_path), 0, 1, 1, "a")
