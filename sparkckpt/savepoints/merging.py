"""Merges base and deltas of a checkpoint into the full files of a savepoint, in parts.

A part is a store of a partition, or some of its key groups where it is large: parts are independent
of each other, and are merged by threads, or by the tasks of a Spark job. A part is described by
values alone, so that it can be sent anywhere where the storage can be reached.
"""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from sparkckpt.format import OperatorState, StateHandle, StateStream
from sparkckpt.format.operatorstate import load_operator_state
from sparkckpt.keygroups import KeyGroupRange
from sparkckpt.savepoints.writer import FamilyRows, StorePart, WrittenStore, write_store
from sparkckpt.storage import Storage

ROWS_PER_PART = 4_000_000
"""A part has some more rows at most, before its changes are merged: so its file fits memory."""

Progress = Callable[[int, int], None]
"""Told, again and again, how many parts are done, and how many there are."""


@dataclass(frozen=True)
class MergePart:
    """One part: the key groups of a handle that are merged together."""

    handle: StateHandle
    key_groups: KeyGroupRange

    @property
    def part(self) -> StorePart:
        return StorePart.of(self.handle, self.key_groups)

    def merge(self, source: Storage, target: Storage) -> WrittenStore:
        """Reads the part below one state root and writes it below the other."""
        part = self.part
        streams = (
            StateStream.open(source, self.handle, family.family, self.key_groups)
            for family in self.handle.families
        )
        families = (FamilyRows(stream.family, stream.schema, stream) for stream in streams)
        kept = self.handle.operator_state
        if kept is None or self.key_groups.first != self.handle.first_key_group:
            return write_store(target, part, families)
        return write_store(target, part, families, load_operator_state(source, kept))


def parts_of(operators: Sequence[OperatorState]) -> list[MergePart]:
    """All state of these operators, in the order in which a savepoint lists it."""
    return [
        MergePart(handle, key_groups)
        for operator in operators
        for handle in operator.handles
        for key_groups in _ranges(handle)
    ]


def _ranges(handle: StateHandle) -> Iterator[KeyGroupRange]:
    """The handle's key groups, cut so that no part has many more than ROWS_PER_PART rows."""
    owned = handle.key_groups
    rows = [sum(file.rows for file in family.files) for family in handle.families]
    count = max(1, min(math.ceil(max(rows, default=0) / ROWS_PER_PART), len(owned)))
    borders = [owned.first + len(owned) * number // count for number in range(count + 1)]
    for number in range(count):
        yield KeyGroupRange(borders[number], borders[number + 1] - 1)


def merge_in_threads(
    parts: Sequence[MergePart],
    source: Storage,
    target: Storage,
    progress: Progress,
    threads: int | None = None,
) -> list[WrittenStore]:
    """Merges the parts in this process, between two state roots; in the order of the parts."""
    return write_in_threads(parts, lambda part: part.merge(source, target), progress, threads)


def write_in_threads(
    parts: Sequence[MergePart],
    write: Callable[[MergePart], WrittenStore],
    progress: Progress,
    threads: int | None = None,
) -> list[WrittenStore]:
    """Writes the parts in this process; in the order of the parts."""
    written: list[WrittenStore] = []
    progress(0, len(parts))
    with ThreadPoolExecutor(threads or os.cpu_count() or 1, "sparkckpt-merge") as pool:
        results = [pool.submit(write, part) for part in parts]
        try:
            for number, result in enumerate(results, 1):
                written.append(result.result())
                progress(number, len(parts))
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    return written
