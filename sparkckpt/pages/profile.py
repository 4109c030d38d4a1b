"""What a state comes to when all of it is read: how its rows are spread, and which keys are large.

State is taken a part at a time, so that only counts and the largest keys so far are held.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparkckpt.cli.values import python_rows
from sparkckpt.keygroups import partition_of
from sparkckpt.tables.identity import grouped, sizes
from sparkckpt.tables.table import StateTable

LARGEST = 10
"""So many keys of a state are named."""


@dataclass(frozen=True)
class LargeKey:
    """A grouping key, how many rows it has in the state, and their bytes in memory."""

    key: dict[str, object]
    rows: int
    bytes: int


@dataclass
class StateProfile:
    """A state as it was read."""

    table: StateTable
    rows: int = 0
    bytes: int = 0
    keys: int = 0
    largest: list[LargeKey] = field(default_factory=list)
    rows_by_key_group: npt.NDArray[np.int64] = field(
        default_factory=lambda: np.zeros(0, np.int64), repr=False
    )

    @property
    def rows_by_partition(self) -> npt.NDArray[np.int64]:
        """How many rows each partition has."""
        operator = self.table.operator
        groups = np.arange(operator.max_parallelism)
        partitions = partition_of(groups, operator.parallelism, operator.max_parallelism)  # type: ignore[arg-type]
        return np.bincount(partitions, self.rows_by_key_group, operator.parallelism).astype(
            np.int64
        )

    @property
    def skew(self) -> float:
        """The rows of the fullest partition in terms of the mean one; 1 is even."""
        rows = self.rows_by_partition
        return float(rows.max() / rows.mean()) if self.rows else 1.0


def profile_of(table: StateTable) -> StateProfile:
    """Reads all of a state."""
    groups = table.operator.max_parallelism
    profile = StateProfile(table, rows_by_key_group=np.zeros(groups, np.int64))
    for batch in table.with_key_groups().to_reader():
        if batch.num_rows:
            _add(profile, batch)
    return profile


def _add(profile: StateProfile, batch: pa.RecordBatch) -> None:
    """Each batch has its key groups, and so its keys, whole."""
    key_groups, *columns = batch.columns
    counts = np.bincount(key_groups.to_numpy(), minlength=len(profile.rows_by_key_group))
    profile.rows_by_key_group += counts
    weights = sum(map(sizes, columns), np.zeros(batch.num_rows, np.int64))
    names = [column.name for column in profile.table.shape.grouping]
    rows, key_names = grouped([batch[name] for name in names], batch.num_rows)
    totals = (
        rows.append_column("bytes", pa.array(weights))
        .group_by(key_names, use_threads=False)
        .aggregate([("row", "min"), ("row", "count"), ("bytes", "sum")])
    )
    profile.rows += batch.num_rows
    profile.bytes += int(weights.sum())
    profile.keys += totals.num_rows
    found = _largest(batch.select(names), totals)
    profile.largest = sorted([*profile.largest, *found], key=lambda k: (-k.bytes, -k.rows))[
        :LARGEST
    ]


def _largest(keys: pa.RecordBatch, totals: pa.Table) -> Iterator[LargeKey]:
    weights = totals["bytes_sum"].to_numpy()
    first, counts = totals["row_min"].to_numpy(), totals["row_count"].to_numpy()
    for index in np.argsort(-weights, kind="stable")[:LARGEST].tolist():
        (key,) = python_rows(keys.slice(int(first[index]), 1)) or [{}]
        yield LargeKey(key, int(counts[index]), int(weights[index]))
