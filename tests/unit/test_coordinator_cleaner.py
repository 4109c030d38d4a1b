"""The sweep keeps and deletes exactly what the rules say; on real files and handles."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkckpt.coordinator import (
    CheckpointsCleaner,
    FileCompletedCheckpointStore,
    Holder,
    offline_cleaner,
)
from sparkckpt.coordinator.retention import Floor, files_of, oldest_loadable, subsume
from sparkckpt.format.metadata import metadata_path
from sparkckpt.paths import StateRoot
from sparkckpt.storage import Storage
from tests.unit.coordinator_samples import FakeQuery, Memory, Run, needed_by

A, B = "0a0a0a0a-0000-4000-8000-000000000001", "0b0b0b0b-0000-4000-8000-000000000002"


@pytest.fixture
def query(tmp_path: Path) -> FakeQuery:
    return FakeQuery(Storage.at(tmp_path / "checkpoint"), min_batches=4, merge_after=3)


def run_batches(query: FakeQuery, count: int, retained: int = 2) -> Run:
    run = Run(query, retained=retained)
    run.work()
    for batch in range(query.latest + 1, query.latest + 1 + count):
        run.batch(batch)
        run.work()
    return run


def retained_files(query: FakeQuery) -> set[str]:
    files: set[str] = set()
    store = FileCompletedCheckpointStore.at(query.storage)
    store.recover(lambda m: files.update(*map(needed_by, m.handles)))
    return files


def lay(query: FakeQuery, *names: str) -> set[str]:
    """Puts files that nobody refers to into the first store's directory."""
    paths = {f"0/0/{name}" for name in names}
    for path in paths:
        query.write(f"state/{path}", b"orphan")
    return paths


def test_what_is_left_is_exactly_what_somebody_needs(query: FakeQuery) -> None:
    run_batches(query, 20)
    needed = retained_files(query) | query.live_files()
    assert query.state_files() == needed
    assert "0/0/1_" not in "".join(needed)


def test_files_of_losing_attempts_go_once_they_are_below_the_floor(query: FakeQuery) -> None:
    run = run_batches(query, 2)
    query.plan(2)
    loser = query.attempt(2, query.stores[0])
    winners = [query.attempt(2, store) for store in query.stores]
    for handle in (loser, *winners):
        run.ack(handle)
    query.commit(2, winners)
    own = {path for path in needed_by(loser) if loser.id in path}
    for batch in range(3, 7):
        run.batch(batch)
        run.work()
        assert own <= query.state_files()
    run.batch(7)
    run.work()
    assert own.isdisjoint(query.state_files())


def test_a_start_sweeps_orphans_below_the_floor(query: FakeQuery) -> None:
    run_batches(query, 20)
    floor = min(query.committed) + 1
    window = 2
    gone = lay(
        query,
        f"{floor - 1}_{A}.handle",
        f"{floor - 1}_{A}.%24rows.delta.arrow",
        f"{floor - 1 - window}_{A}.merge.arrow",
        f".{floor - 1}_{A}.handle.{B}.tmp",
    )
    kept = lay(
        query,
        f"{floor}_{A}.handle",
        f"{floor}_{A}.delta.arrow",
        f"{floor - window}_{A}.merge.arrow",
        f".{floor}_{A}.delta.arrow.{B}.tmp",
        "1_snapshot.zip",
        "_metadata/schema",
        "notes.txt",
    )
    Run(query, retained=2).work()
    found = set(query.storage.below("state").find(""))
    assert gone.isdisjoint(found)
    assert kept <= found
    assert retained_files(query) | query.live_files() <= found


def test_pinned_files_stay_until_the_pin_is_gone(query: FakeQuery) -> None:
    run = run_batches(query, 3)
    pinned = retained_files(query)
    pin = "_sparkckpt/pins/savepoint.json"
    query.write(pin, json.dumps({"formatVersion": 1, "files": sorted(pinned)}).encode())
    for batch in range(3, 20):
        run.batch(batch)
        run.work()
    assert query.state_files() == pinned | retained_files(query) | query.live_files()
    query.storage.delete([pin])
    run.batch(20)
    run.work()
    assert query.state_files() == retained_files(query) | query.live_files()


def test_with_a_pin_that_cannot_be_read_nothing_is_deleted(query: FakeQuery) -> None:
    run = run_batches(query, 3)
    query.write("_sparkckpt/pins/savepoint.json", b"?")
    before = query.state_files()
    for batch in range(3, 12):
        run.batch(batch)
        run.work()
    assert before <= query.state_files()


def test_with_a_checkpoint_that_cannot_be_read_nothing_is_deleted(query: FakeQuery) -> None:
    run_batches(query, 12)
    data = query.storage.read_all(metadata_path(12))
    query.write(metadata_path(11), data[:8] + b"\x63\0\0\0" + data[12:])
    before = query.state_files()
    run = run_batches(query, 12)
    assert len(run.recorder.completed) == 12
    assert before <= query.state_files()


def test_with_a_handle_of_the_oldest_version_missing_nothing_is_deleted(query: FakeQuery) -> None:
    run_batches(query, 12)
    oldest = query.committed[min(query.committed)]
    query.storage.delete([f"state/{oldest[query.stores[0]].path}"])
    orphans = lay(query, f"1_{A}.handle")
    Run(query, retained=2).work()
    assert orphans <= query.state_files()


def test_offline_a_dry_run_names_orphans_and_deletes_nothing(query: FakeQuery) -> None:
    run_batches(query, 12).coordinator.drain(10)
    orphans = lay(query, f"1_{A}.handle", f"2_{A}.delta.arrow")
    before = query.state_files()
    store = FileCompletedCheckpointStore.at(query.storage)
    found = offline_cleaner(query.storage, store).sweep(dry_run=True)
    assert set(found.orphans) == orphans
    assert found.orphan_bytes == 12
    assert query.state_files() == before
    swept = offline_cleaner(query.storage, store).sweep()
    assert swept.deleted == orphans
    assert query.state_files() == before - orphans


def test_absolute_paths_into_the_state_root_hold_its_files(query: FakeQuery) -> None:
    run_batches(query, 1)
    handle = query.committed[0][query.stores[0]]
    root = StateRoot.of(query.storage.below("state"))
    (family,) = handle.families
    (file,) = family.files
    for prefix in (root.url, root.url.removeprefix("file://"), root.url.replace("://", ":")):
        absolute = replace(family, files=(replace(file, path=f"{prefix}/{file.path}"),))
        assert set(files_of([replace(handle, families=(absolute,))], root)) == needed_by(handle)


SOURCES = [StateRoot("file:///claimed/state"), StateRoot("file:///other/state")]
NAMES = [f"0/0/{version}_{A}.delta.arrow" for version in range(1, 5)]


@settings(max_examples=200)
@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.sets(st.sampled_from([*SOURCES, None])), st.booleans()),
        max_size=20,
    ),
    st.integers(1, 5),
    st.booleans(),
)
def test_of_other_directories_only_claimed_files_are_deleted(
    steps: list[tuple[int, set[StateRoot | None], bool]], floor: int, claims: bool
) -> None:
    """Holders come and go; what is deleted then is what nobody holds, below the floor, and ours."""
    storage = Storage(Memory(), "/own")
    deleted: set[str] = set()
    cleaner = CheckpointsCleaner(storage, 2)
    cleaner._delete = lambda paths: deleted.update(paths) or set(paths)  # type: ignore[method-assign,func-returns-value]
    cleaner._floor = Floor.of(floor, 2)
    if claims:
        cleaner.claim(SOURCES[0])
    held: dict[int, set[str]] = {}
    freed: set[str] = set()
    for holder, roots, release in steps:
        if release or holder in held:
            cleaner.release_checkpoint(holder)
            freed |= held.pop(holder, set())
        else:
            names = {
                name if root is None else root.url_of(name) for root in roots for name in NAMES
            }
            cleaner._hold(Holder.checkpoint(holder), names)
            held[holder] = names
    cleaner.clean()
    needed = set().union(*held.values())
    may_go = {root.url_of(name) for root in SOURCES[:1] if claims for name in NAMES} | set(NAMES)
    below = {name for name in may_go if int(name.rpartition("/")[2].split("_")[0]) < floor}
    assert deleted == (freed - needed) & below
    for source in SOURCES:
        free = not any(source.below(name) for name in needed)
        assert cleaner.is_free_of(source) is (free and not (claims and source == SOURCES[0]))


@given(st.integers(0, 300), st.integers(0, 200), st.booleans())
def test_the_floor_leaves_merges_time_to_be_adopted(
    version: int, min_batches: int, merge: bool
) -> None:
    kind = "merge" if merge else "delta"
    window = max(2, min_batches // 2) if merge else 0
    floor = Floor.of(150, min_batches)
    assert floor.is_below(f"0/3/left/{version}_{A}.{kind}.arrow") is (version + window < 150)


@pytest.mark.parametrize("path", ["/other/0/0/1_a.handle", "s3://b/0/0/1_a.handle", "0/0/1.delta"])
def test_what_is_not_ours_is_never_below_the_floor(path: str) -> None:
    assert not Floor.of(100, 4).is_below(path)


@given(st.lists(st.integers(), max_size=20), st.integers(1, 10))
def test_the_newest_are_retained(checkpoints: list[int], retained: int) -> None:
    dropped = subsume(checkpoints, retained)
    assert [*dropped, *checkpoints[len(dropped) :]] == checkpoints
    assert len(checkpoints) - len(dropped) == min(retained, len(checkpoints))


def test_the_oldest_version_that_spark_can_load() -> None:
    assert oldest_loadable([], 100) == 0
    assert oldest_loadable([7, 8, 9], 100) == 8
    assert oldest_loadable(list(range(200)), 100) == 100
    assert oldest_loadable(list(range(200)), None) == 1
