"""Operator state comes back item by item, and is refused when it is not what was written."""

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkckpt.errors import CorruptStateError, SparkckptError, UnsupportedFormatVersionError
from sparkckpt.format import (
    OperatorStateItems,
    load_operator_state,
    read_handle,
    write_handle,
)
from sparkckpt.format.handle import HEADER_LENGTH, check_unread_bytes
from sparkckpt.format.operatorstate import MODES, handle_of, read_blob, write_blob
from sparkckpt.storage import Storage
from tests.unit import format_samples
from tests.unit.format_samples import description_of, flipped, with_description

STATES = (
    OperatorStateItems("offsets", "split", (b"a", b"", b"ccc")),
    OperatorStateItems("gesehen ü", "union", (bytes(range(256)),)),
    OperatorStateItems("rules", "broadcast", ()),
)
BLOB = write_blob(STATES)
PATH = "0/0/1_a.handle"
HANDLE = replace(
    format_samples.handle_of(), operator_state=handle_of(PATH, BLOB, STATES, HEADER_LENGTH)
)


def blob_of(header: Any, items: bytes = b"", version: int = 1) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<ii", version, len(text)) + text + items


@st.composite
def states(draw: st.DrawFn) -> tuple[OperatorStateItems, ...]:
    names = draw(st.lists(st.text(min_size=1, max_size=9), unique=True, max_size=4))
    return tuple(
        OperatorStateItems(
            name.encode("utf-8", "ignore").decode() or "x" + str(number),
            draw(st.sampled_from(MODES)),
            tuple(draw(st.lists(st.binary(max_size=20), max_size=6))),
        )
        for number, name in enumerate(names)
    )


@given(states())
def test_any_states_come_back(written: tuple[OperatorStateItems, ...]) -> None:
    if len({state.name for state in written}) == len(written):
        assert read_blob(write_blob(written), "x") == written


def test_the_bytes_are_those_of_the_protocol() -> None:
    (state,) = (OperatorStateItems("s", "split", (b"ab", b"c")),)
    header = b'{"states":[{"name":"s","mode":"split","lengths":[2,1]}]}'
    blob = b"\x01\0\0\0" + bytes([len(header), 0, 0, 0]) + header + b"abc"
    assert write_blob([state]) == blob
    assert read_blob(blob, "x") == (state,)


def test_what_is_cut_off_or_added_is_noticed() -> None:
    for length in range(len(BLOB)):
        with pytest.raises(CorruptStateError):
            read_blob(BLOB[:length], "x")
    with pytest.raises(CorruptStateError, match="instead of"):
        read_blob(BLOB + b"\0", "x")


def test_a_newer_version_is_refused() -> None:
    with pytest.raises(UnsupportedFormatVersionError, match=r"x has format version 2.*to 1"):
        read_blob(blob_of({"states": []}, version=2), "x")


STATE = {"name": "s", "mode": "split", "lengths": [1]}
IMPOSSIBLE = {
    "version 0": (blob_of({"states": []}, version=0), "does not begin"),
    "no object": (blob_of([]), "no JSON object"),
    "no states": (blob_of({}), "'states' is None"),
    "no JSON": (struct.pack("<ii", 1, 1) + b"{", "the head of its operator state"),
    "negative length of the header": (struct.pack("<ii", 1, -4) + b"1234", "does not begin"),
    "no name": (blob_of({"states": [{**STATE, "name": ""}]}, b"x"), "'name' is ''"),
    "an unknown mode": (blob_of({"states": [{**STATE, "mode": "x"}]}, b"x"), "the mode 'x'"),
    "a negative item": (blob_of({"states": [{**STATE, "lengths": [-1]}]}), "'lengths' is"),
    "text for a length": (blob_of({"states": [{**STATE, "lengths": ["1"]}]}), "'lengths' is"),
    "a state twice": (blob_of({"states": [STATE, STATE]}, b"xy"), "occurs twice"),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_a_blob_that_cannot_be_is_refused(name: str) -> None:
    blob, message = IMPOSSIBLE[name]
    with pytest.raises(CorruptStateError, match=f"(?s)this place is corrupt: .*{message}"):
        read_blob(blob, "this place")


@pytest.mark.parametrize(
    "state",
    [
        OperatorStateItems("", "split", ()),
        OperatorStateItems("x" * 1025, "split", ()),
        OperatorStateItems("s", "even-split", ()),
    ],
)
def test_what_could_not_be_read_is_not_written(state: OperatorStateItems) -> None:
    with pytest.raises(ValueError):
        write_blob([state])


def test_a_handle_carries_it(tmp_path: Path) -> None:
    data = write_handle(HANDLE, BLOB)
    assert data[8] == 2 and write_handle(format_samples.handle_of())[8] == 1
    assert read_handle(data) == HANDLE
    check_unread_bytes(data, HANDLE, "x")
    storage = Storage.at(tmp_path)
    storage.write_atomic(PATH, data)
    assert HANDLE.operator_state is not None
    assert load_operator_state(storage, HANDLE.operator_state) == STATES
    alone = handle_of("0/0/1_b.operator-state", BLOB, STATES)
    storage.write_atomic(alone.path, BLOB)
    assert load_operator_state(storage, alone) == STATES


def test_what_was_inherited_is_known_from_the_handle(tmp_path: Path) -> None:
    inherited = (replace(STATES[1], inherited=True),)
    blob = write_blob(inherited)
    storage = Storage.at(tmp_path)
    storage.write_atomic("x", blob)
    assert load_operator_state(storage, handle_of("x", blob, inherited)) == inherited


def test_damage_is_found_or_harmless(tmp_path: Path) -> None:
    data = write_handle(HANDLE, BLOB)
    storage = Storage.at(tmp_path)
    for position in range(len(data)):
        storage.write_atomic(PATH, flipped(data, position, 1 << position % 8), overwrite=True)
        try:
            handle = read_handle(storage.read_all(PATH))
            assert handle.operator_state is not None
            found = load_operator_state(storage, handle.operator_state)
        except SparkckptError:
            continue
        raise AssertionError(f"byte {position} was not noticed: {found}")


@pytest.mark.parametrize(
    ("field", "value"), [("length", len(BLOB) - 1), ("crc32", 1), ("offset", HEADER_LENGTH - 1)]
)
def test_another_place_is_refused(tmp_path: Path, field: str, value: int) -> None:
    assert HANDLE.operator_state is not None
    storage = Storage.at(tmp_path)
    storage.write_atomic(PATH, write_handle(HANDLE, BLOB))
    with pytest.raises(CorruptStateError, match="checksum of its operator state"):
        load_operator_state(storage, replace(HANDLE.operator_state, **{field: value}))


@pytest.mark.parametrize("offset", [0, HEADER_LENGTH - 1, HEADER_LENGTH + 1])
def test_a_handle_without_room_for_it_is_refused(offset: int) -> None:
    data = write_handle(HANDLE, BLOB)
    description = description_of(data)
    description["operatorState"]["offset"] = offset
    with pytest.raises(CorruptStateError, match="it has no room"):
        read_handle(with_description(data, description), "x")


def test_other_states_than_the_handle_says_are_refused(tmp_path: Path) -> None:
    storage = Storage.at(tmp_path)
    storage.write_atomic("x", BLOB)
    handle = handle_of("x", BLOB, STATES)
    fewer = replace(handle, states=handle.states[:1])
    with pytest.raises(CorruptStateError, match="its operator states are"):
        load_operator_state(storage, fewer)
