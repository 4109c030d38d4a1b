"""State that the real backend wrote: its rows are those that Spark says, and no damage changes one.

`tests/unit/data` is made by `tests/spark/make_golden.py`.
"""

import json
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from sparkckpt.errors import CorruptStateError, SparkckptError
from sparkckpt.format import (
    StateFile,
    StateFileRef,
    StateHandle,
    load_operator_state,
    read_handle,
    read_state,
)
from sparkckpt.keygroups import KeyGroupRange
from sparkckpt.storage import Storage
from tests.unit.format_samples import DATA, flipped

GOLDEN = sorted(path.parent.name for path in DATA.glob("*/expected.json"))
LARGEST = 20 * 1024


def handle_of(name: str) -> StateHandle:
    expected = json.loads((DATA / name / "expected.json").read_text())
    return read_handle(DATA / name / expected["handle"])


def files_of(name: str) -> Iterator[tuple[bytes, StateFileRef]]:
    for family in handle_of(name).families:
        for ref in family.files:
            yield (DATA / name / ref.path).read_bytes(), ref


def plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return value.replace(tzinfo=None).isoformat() if isinstance(value, datetime) else value


def entries(state: pa.Table) -> Counter[str]:
    return Counter(
        json.dumps(plain({"key": row["key"], "value": row["value"]})) for row in state.to_pylist()
    )


def test_there_is_something_to_test() -> None:
    refs = [ref for name in GOLDEN for _, ref in files_of(name)]
    assert any(ref.inlined for ref in refs)
    assert any(ref.base for ref in refs)
    assert any(ref.path.endswith(".delta.arrow") for ref in refs)
    assert all(path.stat().st_size < LARGEST for path in DATA.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", GOLDEN)
def test_rows_are_those_that_spark_says(name: str) -> None:
    expected = json.loads((DATA / name / "expected.json").read_text())
    storage = Storage.at(DATA / name)
    for family, rows in expected["families"].items():
        state = read_state(storage, handle_of(name), family)
        assert entries(state) == Counter(
            json.dumps({"key": key, "value": value}) for key, value in rows
        )


def test_operator_state_is_that_of_the_version_before() -> None:
    expected = json.loads((DATA / "operator" / "expected.json").read_text())
    state = handle_of("operator").operator_state
    assert state is not None and state.path != expected["handle"]
    found = load_operator_state(Storage.at(DATA / "operator"), state)
    assert [
        {"name": s.name, "mode": s.mode, "items": [item.hex() for item in s.items]} for s in found
    ] == expected["operatorStates"]


@pytest.mark.parametrize("name", GOLDEN)
def test_ranges_add_up_to_the_whole(name: str) -> None:
    storage, handle = Storage.at(DATA / name), handle_of(name)
    middle = handle.last_key_group // 3
    halves = [KeyGroupRange(0, middle), KeyGroupRange(middle + 1, handle.last_key_group)]
    for family in handle.families:
        parts = [read_state(storage, handle, family.family, half) for half in halves]
        assert pa.concat_tables(parts) == read_state(storage, handle, family.family)


@pytest.mark.parametrize("name", GOLDEN)
def test_any_arrow_reader_sees_the_same_rows(name: str) -> None:
    for data, ref in files_of(name):
        rows = StateFile.from_bytes(data, ref).read()
        whole = data[ref.offset : ref.offset + ref.length]
        assert pa.ipc.open_file(whole).read_all() == rows
        assert len(rows) == ref.rows


@pytest.mark.parametrize("name", GOLDEN)
def test_damage_is_found_or_harmless(name: str) -> None:
    for data, ref in files_of(name):
        expected = StateFile.from_bytes(data, ref).read()
        for position in range(0, len(data), 37):
            try:
                damaged = flipped(data, position, mask=(0x01, 0x80, 0xFF)[position % 3])
                rows = StateFile.from_bytes(damaged, ref).read()
            except SparkckptError:
                continue
            assert rows == expected, f"byte {position} of {ref.path}"
        for length in range(0, ref.offset + ref.length, 101):
            with pytest.raises(CorruptStateError):
                StateFile.from_bytes(data[:length], ref).read()


@pytest.mark.parametrize("name", GOLDEN)
def test_a_file_in_place_of_another_is_refused(name: str, tmp_path: Path) -> None:
    files = list(files_of(name))
    for (_, ref), (other, _) in zip(files, files[1:] + files[:1], strict=True):
        with pytest.raises(CorruptStateError):
            StateFile.from_bytes(other, ref).read()


@pytest.mark.parametrize("name", GOLDEN)
def test_the_head_of_a_file_fits_its_footer(name: str) -> None:
    """Nobody reads it, but `verify` does: it is the one part without a checksum."""
    for data, ref in files_of(name):
        file = StateFile.from_bytes(data, ref)
        file.check_unread_bytes()
        for position in range(file.batches[0].offset):
            damaged = flipped(data, ref.offset + position, 1 << position % 8)
            with pytest.raises(CorruptStateError, match="its head"):
                StateFile.from_bytes(damaged, ref).check_unread_bytes()
