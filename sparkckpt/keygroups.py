"""The maths of key groups and ranges; mirrors `KeyGroups.scala` and is tested against it.

A key belongs to one key group for the life of a checkpoint, and a partition owns a contiguous range
of groups, so that rescaling only moves range borders. Pure functions on values: nothing here may do
I/O, know a file, or round in another way than the Scala side.
"""

from dataclasses import dataclass

DEFAULT_MAX_PARALLELISM = 32768
"""Also the largest that is allowed: a key group must fit the uint16 of a state file."""


@dataclass(frozen=True, order=True)
class KeyGroupRange:
    """The key groups from `first` to `last`, both inclusive; empty when `last` is `first - 1`."""

    first: int
    last: int

    def __len__(self) -> int:
        return max(0, self.last - self.first + 1)

    def __contains__(self, key_group: int) -> bool:
        return self.first <= key_group <= self.last

    def __str__(self) -> str:
        return f"[{self.first}, {self.last}]"

    def overlaps(self, other: "KeyGroupRange") -> bool:
        return self.first <= other.last and other.first <= self.last

    def clip_to(self, other: "KeyGroupRange") -> "KeyGroupRange | None":
        """The groups in both ranges, or None where there are none."""
        first, last = max(self.first, other.first), min(self.last, other.last)
        return KeyGroupRange(first, last) if first <= last else None


def key_group_of(key_hash: int, max_parallelism: int) -> int:
    """The key group of a key with this murmur3 hash, a signed 32-bit number."""
    return key_hash % max_parallelism


def partition_of(key_group: int, parallelism: int, max_parallelism: int) -> int:
    """The partition, of `parallelism` many, that owns the key group."""
    return key_group * parallelism // max_parallelism


def range_of(partition: int, parallelism: int, max_parallelism: int) -> KeyGroupRange:
    """The key groups that the partition owns; with more partitions than groups some own none."""
    first = _ceil_div(partition * max_parallelism, parallelism)
    last = _ceil_div((partition + 1) * max_parallelism, parallelism) - 1
    return KeyGroupRange(first, last)


def _ceil_div(dividend: int, divisor: int) -> int:
    return -(-dividend // divisor)
