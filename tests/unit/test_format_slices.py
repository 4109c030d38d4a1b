"""Slices: every key group's files reach one partition, whole and in their order."""

import random
from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from sparkckpt.format import FamilyFiles, StateFileRef, StateHandle, clip, slices_of
from sparkckpt.keygroups import KeyGroupRange, range_of
from tests.unit.metadata_samples import random_handle

M = 64


def file(first: int, last: int, version: int, path: str = "f", **fields: object) -> StateFileRef:
    ref = StateFileRef(path, 0, 100, 10, 1, 5, first, last, version, version, 0, False)
    return replace(ref, **fields)


def handle(partition: int, parallelism: int, *families: FamilyFiles) -> StateHandle:
    owned = range_of(partition, parallelism, M)
    like = random_handle(random.Random(0))
    return replace(
        like,
        partition=partition,
        parallelism=parallelism,
        max_parallelism=M,
        first_key_group=owned.first,
        last_key_group=owned.last,
        families=families,
    )


def default(*files: StateFileRef) -> FamilyFiles:
    return FamilyFiles("default", False, files)


def test_clip() -> None:
    whole = file(10, 20, 1)
    assert clip(whole, KeyGroupRange(0, 63)) is whole
    assert clip(whole, KeyGroupRange(21, 63)) is None
    assert clip(file(0, 0, 1, rows=0), KeyGroupRange(0, 63)) is None
    clipped = clip(whole, KeyGroupRange(15, 63))
    assert clipped == file(15, 20, 1)


def test_a_partition_that_only_shrinks_keeps_its_base() -> None:
    base = file(0, 31, 4, "base", base=True, level=1, first_version=1)
    (family,) = slices_of([handle(0, 2, default(base, file(7, 9, 5)))], KeyGroupRange(0, 8))
    assert [f.base for f in family.files] == [True, False]
    assert [f.key_groups for f in family.files] == [KeyGroupRange(0, 8), KeyGroupRange(7, 8)]


def test_partitions_that_come_together_have_no_base_and_one_history() -> None:
    left = handle(0, 2, default(file(0, 31, 4, "a", base=True), file(3, 4, 7, "b")))
    right = handle(1, 2, default(file(32, 60, 5, "c", base=True), file(40, 41, 6, "d")))
    (family,) = slices_of([left, right], KeyGroupRange(0, 63))
    assert [f.path for f in family.files] == ["a", "c", "d", "b"]
    assert not any(f.base for f in family.files)


def test_families_without_a_row_are_left_out() -> None:
    other = FamilyFiles("timers", True, (file(0, 3, 1),))
    assert slices_of([handle(0, 2, default(file(5, 6, 1)), other)], KeyGroupRange(8, 31)) == ()


@st.composite
def stores(draw: st.DrawFn) -> list[StateHandle]:
    """A store in any parallelism; each partition has files of ascending versions in its range."""
    parallelism = draw(st.integers(1, 12))
    seed = random.Random(draw(st.integers(0, 2**32)))
    handles = []
    for partition in range(parallelism):
        owned = range_of(partition, parallelism, M)
        versions = sorted(seed.choices(range(1, 20), k=seed.randint(0, 5)))
        families = []
        for name in ("default", "$ttl"):
            files = []
            for number, version in enumerate(versions):
                span = sorted(seed.choices(range(owned.first, owned.last + 1), k=2))
                path = f"{partition}/{version}_{number}.{name}"
                rows = seed.choice((0, 3, 3, 3))
                files.append(file(*span, version, path, rows=rows, base=number == 0))
            families.append(FamilyFiles(name, name != "default", tuple(files)))
        handles.append(handle(partition, parallelism, *families))
    return handles


def rescaled(handles: Sequence[StateHandle], parallelism: int) -> list[StateHandle]:
    return [
        handle(p, parallelism, *slices_of(handles, range_of(p, parallelism, M)))
        for p in range(parallelism)
    ]


def histories(handles: Sequence[StateHandle]) -> dict[tuple[int, str], list[str]]:
    """For every key group and family the files that hold its rows, in the order they apply."""
    found: dict[tuple[int, str], list[str]] = {}
    for one in handles:
        for family in one.families:
            for ref in family.files:
                span = ref.key_groups.clip_to(one.key_groups)
                assert span == ref.key_groups, "no partition has what it does not own"
                for key_group in range(span.first, span.last + 1) if ref.rows else ():
                    found.setdefault((key_group, family.family), []).append(ref.path)
    return found


@settings(max_examples=150, deadline=None)
@given(stores(), st.lists(st.integers(1, 16), min_size=1, max_size=4))
def test_every_key_groups_files_arrive_once_and_in_order(
    before: list[StateHandle], chain: list[int]
) -> None:
    handles = before
    for parallelism in chain:
        handles = rescaled(handles, parallelism)
        assert histories(handles) == histories(before)
        for one in handles:
            for family in one.families:
                versions = [ref.last_version for ref in family.files]
                assert versions == sorted(versions)
                assert family.multi_valued == (family.family != "default")


@given(stores(), st.integers(1, 16))
def test_back_to_the_same_parallelism_changes_nothing(
    before: list[StateHandle], parallelism: int
) -> None:
    there = rescaled(before, parallelism)
    again = rescaled(there, len(before))
    assert histories(again) == histories(rescaled(before, len(before)))
