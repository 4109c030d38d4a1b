from hypothesis import given
from hypothesis import strategies as st

from sparkckpt.keygroups import (
    DEFAULT_MAX_PARALLELISM,
    KeyGroupRange,
    key_group_of,
    partition_of,
    range_of,
)

max_parallelisms = st.integers(1, DEFAULT_MAX_PARALLELISM)
parallelisms = st.integers(1, 3000)
hashes = st.integers(-(2**31), 2**31 - 1)
key_groups = st.integers(0, DEFAULT_MAX_PARALLELISM - 1)
ranges = st.tuples(key_groups, key_groups).map(lambda ends: KeyGroupRange(min(ends), max(ends)))


@given(parallelisms, max_parallelisms)
def test_ranges_of_all_partitions_cover_every_key_group_once_and_in_order(n: int, m: int) -> None:
    covered = [
        kg for p in range(n) for kg in range(range_of(p, n, m).first, range_of(p, n, m).last + 1)
    ]
    assert covered == list(range(m))


@given(hashes, parallelisms, max_parallelisms)
def test_a_key_group_lies_in_the_range_of_its_partition_only(h: int, n: int, m: int) -> None:
    key_group = key_group_of(h, m)
    partition = partition_of(key_group, n, m)
    assert 0 <= partition < n
    assert key_group in range_of(partition, n, m)
    assert all(key_group not in range_of(p, n, m) for p in range(n) if p != partition)


@given(parallelisms, max_parallelisms)
def test_ranges_differ_in_size_by_at_most_one(n: int, m: int) -> None:
    sizes = {len(range_of(p, n, m)) for p in range(n)}
    assert max(sizes) - min(sizes) <= 1
    assert m >= n or min(sizes) == 0


@given(hashes, max_parallelisms)
def test_key_group_of_a_negative_hash_is_not_negative(h: int, m: int) -> None:
    assert 0 <= key_group_of(h, m) < m
    assert (h - key_group_of(h, m)) % m == 0


@given(ranges, ranges)
def test_clip_is_the_common_part(a: KeyGroupRange, b: KeyGroupRange) -> None:
    clipped = a.clip_to(b)
    assert clipped == b.clip_to(a)
    assert (clipped is not None) == a.overlaps(b) == b.overlaps(a)
    if clipped is not None:
        assert {clipped.first, clipped.last} <= {a.first, a.last, b.first, b.last}
        assert all(end in a and end in b for end in (clipped.first, clipped.last))


def test_known_ranges() -> None:
    assert [str(range_of(p, 3, 8)) for p in range(3)] == ["[0, 2]", "[3, 5]", "[6, 7]"]
    assert [len(range_of(p, 4, 2)) for p in range(4)] == [1, 0, 1, 0]
