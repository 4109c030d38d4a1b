"""State files come back as they were written, in part or as a whole, or not at all."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import fsspec
import pyarrow as pa
import pytest

from sparkckpt.errors import (
    CorruptStateError,
    SparkckptError,
    UnknownFamilyError,
    UnreadableFileError,
    UnsupportedFormatVersionError,
)
from sparkckpt.format import (
    BatchIndex,
    StateFile,
    StateFileRef,
    StateHandle,
    load_handle,
    read_state,
    write_handle,
)
from sparkckpt.keygroups import KeyGroupRange
from sparkckpt.storage import Storage
from tests.unit.format_samples import (
    MAX_PARALLELISM,
    flipped,
    handle_of,
    puts,
    state_file,
    table_of,
    with_batches,
    with_footer,
)

ROWS = puts(100)


@pytest.fixture(scope="module")
def sample() -> tuple[bytes, StateFileRef]:
    return state_file(ROWS)


def between(table: pa.Table, first: int, last: int) -> pa.Table:
    return table.filter([first <= key_group <= last for key_group in table["kg"].to_pylist()])


@pytest.mark.parametrize("codec", ["zstd", "lz4", None])
@pytest.mark.parametrize("count", [0, 1, 9, 10, 11, 100])
def test_round_trip(count: int, codec: str | None) -> None:
    data, ref = state_file(puts(count), codec=codec)
    assert StateFile.from_bytes(data, ref).read() == puts(count)
    assert pa.ipc.open_file(data).read_all() == puts(count)


def test_record_batches_end_on_key_group_borders(sample: tuple[bytes, StateFileRef]) -> None:
    batches = StateFile.from_bytes(*sample).batches
    assert len(batches) > 5
    borders = itertools.pairwise(batches)
    assert all(before.last_key_group < after.first_key_group for before, after in borders)


def test_a_key_group_that_outgrows_a_batch_is_cut() -> None:
    rows = table_of([(7, 0, {"k": str(i), "x": 0.0}, {"n": i}) for i in range(45)])
    data, ref = state_file(rows)
    file = StateFile.from_bytes(data, ref)
    assert [batch.rows for batch in file.batches] == [20, 20, 5]
    assert file.read(KeyGroupRange(7, 7)) == rows


def test_every_range_reads_its_rows_and_only_the_batches_it_needs(
    sample: tuple[bytes, StateFileRef],
) -> None:
    data, ref = sample
    reads: list[tuple[int, int]] = []

    def read_range(offset: int, length: int) -> bytes:
        reads.append((offset, length))
        return data[offset : offset + length]

    file = StateFile(read_range, ref, "sample")
    assert reads == [(ref.length - ref.tail_length, ref.tail_length)]
    for first in range(0, 36, 2):
        for last in range(first, 36, 3):
            reads.clear()
            wanted = KeyGroupRange(first, last)
            assert file.read(wanted) == between(ROWS, first, last)
            needed = [b for b in file.batches if b.key_groups.overlaps(wanted)]
            if needed:
                start, end = needed[0].offset, needed[-1].offset + needed[-1].length
                assert reads == [(start, end - start)]
            else:
                assert reads == []
    assert file.read(KeyGroupRange(60, 63)).num_rows == 0
    assert file.read() == ROWS


def test_damage_in_one_batch_does_not_concern_the_others(
    sample: tuple[bytes, StateFileRef],
) -> None:
    data, ref = sample
    victim = StateFile.from_bytes(data, ref).batches[2]
    damaged = flipped(data, victim.offset + victim.length // 2)
    file = StateFile.from_bytes(damaged, ref)
    before = victim.first_key_group - 1
    assert file.read(KeyGroupRange(0, before)) == between(ROWS, 0, before)
    with pytest.raises(CorruptStateError, match="checksum of the record batch of the key groups"):
        file.read(KeyGroupRange(victim.first_key_group, victim.first_key_group))
    with pytest.raises(CorruptStateError):
        file.read()


def test_no_flipped_byte_gives_a_wrong_row(sample: tuple[bytes, StateFileRef]) -> None:
    data, ref = sample
    head = StateFile.from_bytes(data, ref).batches[0].offset
    for position in range(0, len(data), 5):
        damaged = flipped(data, position, mask=(0x01, 0x80, 0xFF)[position % 3])
        try:
            rows = StateFile.from_bytes(damaged, ref).read()
        except SparkckptError:
            continue
        assert rows == ROWS, f"byte {position}"
        assert position < head, f"byte {position} lies in what is read"


def test_every_truncation_is_refused(sample: tuple[bytes, StateFileRef]) -> None:
    data, ref = sample
    for length in range(0, len(data), 3):
        with pytest.raises(CorruptStateError, match="truncated"):
            StateFile.from_bytes(data[:length], ref).read()


def test_a_newer_version_is_refused_by_name(sample: tuple[bytes, StateFileRef]) -> None:
    newer, ref = with_footer(*sample, lambda f: f.update({"sparkckpt.formatVersion": "2"}))
    with pytest.raises(UnsupportedFormatVersionError, match=r"arrow has format version 2.*up to 1"):
        StateFile.from_bytes(newer, ref)


def test_footer_that_vouches_for_itself_is_read(sample: tuple[bytes, StateFileRef]) -> None:
    assert StateFile.from_bytes(*with_footer(*sample, lambda f: None)).read() == ROWS


FOOTERS = {
    "no index": lambda f: f.pop("sparkckpt.batches"),
    "index no list": lambda f: f.update({"sparkckpt.batches": "7"}),
    "index entry too short": lambda f: f.update({"sparkckpt.batches": "[[1,2]]"}),
    "index of texts": lambda f: f.update({"sparkckpt.batches": '[["1",2,3,4,5,6]]'}),
    "index not JSON": lambda f: f.update({"sparkckpt.batches": "["}),
    "no version": lambda f: f.pop("sparkckpt.formatVersion"),
    "version 0": lambda f: f.update({"sparkckpt.formatVersion": "0"}),
    "version no number": lambda f: f.update({"sparkckpt.formatVersion": "one"}),
    "unknown encoding": lambda f: f.update({"sparkckpt.keyEncoding": "avro"}),
    "other encoding": lambda f: f.update({"sparkckpt.valueEncoding": "unsaferow"}),
    "multi-valued maybe": lambda f: f.update({"sparkckpt.multiValued": "maybe"}),
    "fewer key groups than used": lambda f: f.update({"sparkckpt.maxParallelism": "8"}),
    "too many key groups": lambda f: f.update({"sparkckpt.maxParallelism": "65536"}),
}


@pytest.mark.parametrize("name", FOOTERS)
def test_a_footer_that_cannot_be_is_refused(sample: tuple[bytes, StateFileRef], name: str) -> None:
    data, ref = with_footer(*sample, FOOTERS[name])
    with pytest.raises(CorruptStateError, match=r"0/0/1_a\.delta\.arrow is corrupt"):
        StateFile.from_bytes(data, ref)


def first(**changes: int) -> Callable[[list[BatchIndex]], Sequence[BatchIndex]]:
    return lambda batches: [replace(batches[0], **changes), *batches[1:]]


INDEXES: dict[str, Callable[[list[BatchIndex]], Sequence[BatchIndex]]] = {
    "negative offset": first(offset=-8),
    "negative length": first(length=-8),
    "length 0": first(length=0),
    "overlapping batches": first(length=1500),
    "beyond the end": lambda b: [*b[:-1], replace(b[-1], length=1 << 30)],
    "into the tail": lambda b: [*b[:-1], replace(b[-1], length=b[-1].length + 8)],
    "negative key group": first(first_key_group=-1),
    "reversed key groups": first(last_key_group=-1),
    "overlapping key groups": first(last_key_group=9),
    "unsorted": lambda b: [b[1], b[0], *b[2:]],
    "other rows": first(rows=11),
    "no rows": first(rows=0),
    "one batch too few": lambda b: b[:-1],
    "one batch twice": lambda b: [*b, b[-1]],
    "key group that does not exist": lambda b: [*b[:-1], replace(b[-1], last_key_group=64)],
}


@pytest.mark.parametrize("name", INDEXES)
def test_an_index_that_cannot_be_is_refused(sample: tuple[bytes, StateFileRef], name: str) -> None:
    data, ref = with_batches(*sample, INDEXES[name])
    with pytest.raises(CorruptStateError):
        StateFile.from_bytes(data, ref)


@pytest.mark.parametrize(
    "name", ["first_key_group", "last_key_group", "rows", "length", "tail_length", "tail_crc32"]
)
def test_a_file_that_contradicts_its_handle_is_refused(
    sample: tuple[bytes, StateFileRef], name: str
) -> None:
    data, ref = sample
    step = -1 if name == "first_key_group" else 1
    with pytest.raises(CorruptStateError):
        StateFile.from_bytes(data, replace(ref, **{name: getattr(ref, name) + step}))


def test_of_a_slice_only_its_span_is_read(sample: tuple[bytes, StateFileRef]) -> None:
    data, ref = sample
    for first in range(0, 34, 3):
        for last in range(first, 34, 4):
            file = StateFile.from_bytes(
                data, replace(ref, first_key_group=first, last_key_group=last)
            )
            assert file.read() == between(ROWS, first, last)
            assert file.read(KeyGroupRange(0, 10)) == between(ROWS, first, min(last, 10))
            assert file.read(KeyGroupRange(last + 1, 63)).num_rows == 0


def test_a_file_may_be_applied_in_disjoint_slices(tmp_path: Path) -> None:
    storage = stored(tmp_path, ROWS)
    handle = handle_in(tmp_path)
    (family,) = handle.families
    (ref,) = family.files
    slices = [
        replace(ref, first_key_group=first, last_key_group=last)
        for first, last in ((20, 33), (0, 4), (9, 9))
    ]
    sliced = replace(handle, families=(replace(family, files=tuple(slices)),))
    state = read_state(storage, sliced)
    whole = read_state(storage, handle)
    parts = [between(whole, *span) for span in ((0, 4), (9, 9), (20, 33))]
    assert state == pa.concat_tables(parts)


def test_of_a_slice_only_its_own_rows_are_read(sample: tuple[bytes, StateFileRef]) -> None:
    data, ref = sample
    whole = StateFile.from_bytes(data, ref)
    slices = [replace(ref, last_key_group=9), replace(ref, first_key_group=10)]
    tables = [StateFile.from_bytes(data, part).read() for part in slices]
    assert pa.concat_tables(tables) == whole.read()
    assert all(table.num_rows for table in tables)
    assert max(tables[0]["kg"].to_pylist()) <= 9 < min(tables[1]["kg"].to_pylist())
    assert StateFile.from_bytes(data, slices[0]).read(KeyGroupRange(10, 40)).num_rows == 0
    assert StateFile.from_bytes(data, slices[0]).span == whole.ref.key_groups


BAD_ROWS = {
    "unknown operation": table_of([(3, 0, {"k": "a"}, None), (3, 3, {"k": "b"}, None)]),
    "negative operation": table_of([(3, -1, {"k": "a"}, None)]),
    "null key": table_of([(3, 0, None, None)]),
}


@pytest.mark.parametrize("name", BAD_ROWS)
def test_rows_that_cannot_be_are_refused(name: str) -> None:
    with pytest.raises(CorruptStateError, match=r"record batch of the key groups \[3, 3\]"):
        StateFile.from_bytes(*state_file(BAD_ROWS[name])).read()


UNSORTED = table_of([(kg, 0, {"k": str(kg)}, None) for kg in (2, 4, 3, 5)])


def test_unsorted_rows_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="ascending key groups"):
        state_file(UNSORTED)
    monkeypatch.setattr("sparkckpt.format.writer._ascend", lambda key_groups: True)
    with pytest.raises(CorruptStateError, match="not in ascending order"):
        StateFile.from_bytes(*state_file(UNSORTED)).read()


def stored(tmp_path: Path, *tables: pa.Table) -> Storage:
    """A state root with one handle over these tables."""
    refs = []
    for version, table in enumerate(tables, 1):
        data, ref = state_file(table, first_version=version, last_version=version)
        ref = replace(ref, path=f"0/0/{version}_a.delta.arrow")
        path = tmp_path / ref.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        refs.append(ref)
    handle = handle_of(*refs)
    (tmp_path / handle.path).write_bytes(write_handle(handle))
    return Storage.at(tmp_path)


def handle_in(tmp_path: Path) -> StateHandle:
    return load_handle(Storage.at(tmp_path), 0, 0, 1, "a")


def test_state_of_a_version(tmp_path: Path) -> None:
    newer = table_of([(0, 1, {"k": "key 0", "x": 0.0}, None), (5, 0, {"k": "new"}, {"n": 1})])
    storage = stored(tmp_path, ROWS, newer)
    handle = handle_in(tmp_path)
    state = read_state(storage, handle)
    keys = [key["k"] for key in state["key"].to_pylist()]
    assert sorted(keys) == sorted([*(f"key {i}" for i in range(1, 100)), "new"])
    assert read_state(storage, handle, key_groups=KeyGroupRange(3, 5)) == between(state, 3, 5)
    assert read_state(storage, handle, key_groups=KeyGroupRange(50, 63)).num_rows == 0


def test_unknown_family_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownFamilyError, match=r"no column family 'timers'. It has default"):
        read_state(stored(tmp_path, ROWS), handle_in(tmp_path), "timers")


def test_missing_file_is_named(tmp_path: Path) -> None:
    storage = stored(tmp_path, ROWS)
    (tmp_path / "0/0/1_a.delta.arrow").unlink()
    with pytest.raises(UnreadableFileError, match=r"0/0/1_a\.delta\.arrow cannot be read: No such"):
        read_state(storage, handle_in(tmp_path))


def test_a_file_of_another_family_is_refused(tmp_path: Path) -> None:
    storage = stored(tmp_path, ROWS)
    handle = handle_in(tmp_path)
    (family,) = handle.families
    renamed = replace(handle, families=(replace(family, family="other"),))
    with pytest.raises(CorruptStateError, match="holds the column family 'default'"):
        read_state(storage, renamed, "other")
    other = replace(handle, max_parallelism=MAX_PARALLELISM // 2)
    with pytest.raises(CorruptStateError, match="takes it for 'default' in 32"):
        read_state(storage, other)


def test_any_storage_that_fsspec_knows() -> None:
    data, ref = state_file(ROWS)
    memory = fsspec.filesystem("memory")
    memory.pipe_file(f"/state/{ref.path}", data)
    assert StateFile.open(Storage.at("memory://state"), ref).read() == ROWS
    absolute = replace(ref, path=f"memory://state/{ref.path}")
    assert StateFile.open(Storage.at("/elsewhere"), absolute).read() == ROWS
    memory.rm("/state", recursive=True)
