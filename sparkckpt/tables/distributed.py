"""State as a DataFrame: tasks read its files, each some key groups of it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa

from sparkckpt.keygroups import KeyGroupRange

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from sparkckpt.tables.table import StateTable

_LEAST_TASKS = 2


def data_frame(table: "StateTable", spark: "SparkSession") -> "DataFrame":
    from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

    parts = split(table.ranges, max(table.operator.parallelism, _LEAST_TASKS))
    schema = from_arrow_schema(_signed(table.schema))
    wanted = to_arrow_schema(schema, timezone="UTC")

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch["id"].to_pylist():
                for rows in table.key_groups(parts[number]).to_reader():
                    yield from pa.table(rows).cast(wanted).to_batches()

    return spark.range(0, len(parts), 1, len(parts)).mapInArrow(read, schema)


def split(ranges: tuple[KeyGroupRange, ...], parts: int) -> list[list[KeyGroupRange]]:
    """The key groups in so many parts of nearly the same number, or fewer."""
    total = sum(map(len, ranges))
    size = max(1, -(-total // parts))
    split_up: list[list[KeyGroupRange]] = [[]]
    room = size
    for one in ranges:
        first = one.first
        while first <= one.last:
            last = min(one.last, first + room - 1)
            split_up[-1].append(KeyGroupRange(first, last))
            room -= last - first + 1
            first = last + 1
            if room == 0:
                split_up.append([])
                room = size
    return [part for part in split_up if part]


def _signed(schema: pa.Schema) -> pa.Schema:
    """Spark has no unsigned numbers."""
    return pa.schema(
        [pa.field(f.name, pa.int32() if f.type == pa.uint16() else f.type) for f in schema]
    )
