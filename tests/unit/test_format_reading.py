"""State that is read a few key groups at a time is the state that is read at once."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkckpt.format import (
    BatchIndex,
    StateFile,
    StateStream,
    read_state,
    resolve,
    statefile,
    write_state_file,
)
from sparkckpt.keygroups import KeyGroupRange
from sparkckpt.storage import Storage
from tests.unit.format_samples import FAMILY, MAX_PARALLELISM, SCHEMA, handle_of, table_of
from tests.unit.test_format_resolve import as_rows, changes

File = Sequence[tuple[int, dict[str, object], int | None]]


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Storage:
    return Storage.at(tmp_path_factory.mktemp("state"))


@given(
    files=st.lists(st.lists(changes, max_size=20), min_size=1, max_size=4),
    rows=st.sampled_from([1, 3, 1000]),
    first=st.integers(0, 5),
    count=st.integers(0, 6),
)
def test_a_stream_gives_what_resolve_says(
    storage: Storage, files: list[File], rows: int, first: int, count: int
) -> None:
    tables = [table_of(as_rows(file)) for file in files]
    tables[0] = resolve(tables[:1])
    refs = []
    for number, table in enumerate(tables):
        path = f"0/0/{number + 1}_a.delta.arrow"
        data, ref = write_state_file(
            table,
            replace(FAMILY, multi_valued=True),
            path,
            first_version=1,
            last_version=number + 1,
            base=number == 0,
            record_batch_rows=2,
        )
        storage.write_atomic(path, data, overwrite=True)
        refs.append(ref)
    wanted = KeyGroupRange(first, first + count)
    stream = StateStream.open(storage, handle_of(*refs), key_groups=wanted, rows_at_once=rows)
    parts = list(stream)
    state = resolve(tables)
    mask = [key_group in wanted for key_group in state["kg"].to_pylist()]
    expected = state.filter(pa.array(mask, pa.bool_()))
    found = pa.concat_tables([SCHEMA.empty_table(), *parts])
    assert str(found.to_pylist()) == str(expected.to_pylist()), "NaN equals nothing"
    assert stream.family.multi_valued
    borders = [(part["kg"][0].as_py(), part["kg"][-1].as_py()) for part in parts if part.num_rows]
    assert all(a[1] < b[0] for a, b in pairwise(borders))


def test_changes_alone_are_the_state_but_for_the_deletes(tmp_path: Path) -> None:
    storage = Storage.at(tmp_path)
    rows = table_of([(1, 0, {"k": "a", "x": 1.0}, {"n": 1}), (1, 1, {"k": "b", "x": 1.0}, None)])
    path = "0/0/1_a.delta.arrow"
    data, ref = write_state_file(rows, FAMILY, path, first_version=1, last_version=1)
    storage.write_atomic(path, data)
    assert read_state(storage, handle_of(ref)) == rows.slice(0, 1)


def test_each_record_batch_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage.at(tmp_path)
    rows = table_of([(i, 0, {"k": "a", "x": float(i)}, {"n": i}) for i in range(MAX_PARALLELISM)])
    refs = []
    for number in (1, 2):
        path = f"0/0/{number}_a.delta.arrow"
        data, ref = write_state_file(
            rows, FAMILY, path, first_version=1, last_version=number, record_batch_rows=4 + number
        )
        storage.write_atomic(path, data)
        refs.append(ref)
    read: list[object] = []
    original = StateFile.read_batches

    def noted(self: StateFile, batches: Sequence[BatchIndex]) -> Iterator[pa.RecordBatch]:
        read.extend((self.ref.path, batch) for batch in batches)
        return original(self, batches)

    monkeypatch.setattr(StateFile, "read_batches", noted)
    parts = list(StateStream.open(storage, handle_of(*refs), rows_at_once=16))
    assert len(parts) > 4
    assert max(part.num_rows for part in parts) <= 16 + 2, "a share may end within a batch"
    assert len(read) == len(set(read)) == 13 + 11
    assert pa.concat_tables(parts).combine_chunks() == read_state(storage, handle_of(*refs))


def test_record_batches_that_lie_together_are_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = table_of([(i, 0, {"k": "a", "x": float(i)}, {"n": i}) for i in range(MAX_PARALLELISM)])
    path = "0/0/1_a.delta.arrow"
    data, ref = write_state_file(
        rows, FAMILY, path, first_version=1, last_version=1, record_batch_rows=4
    )
    requests: list[int] = []

    def read_range(offset: int, length: int) -> bytes:
        requests.append(length)
        return data[offset : offset + length]

    file = StateFile(read_range, ref, path)
    assert len(file.batches) == 16
    assert file.read() == rows
    assert len(requests) == 2
    requests.clear()
    monkeypatch.setattr(statefile, "READ_AT_ONCE", 2 * max(b.length for b in file.batches))
    assert file.read() == rows
    assert len(requests) == 8
    apart = [file.batches[0], file.batches[5], file.batches[6]]
    requests.clear()
    assert [b.num_rows for b in file.read_batches(apart)] == [4, 4, 4]
    assert len(requests) == 2
