"""The state of an operator as a table that is read when it is asked for.

A `StateTable` only describes: which state, which key groups, which columns. Each way of reading it
goes through its files anew and holds no more than a part of them, except where all rows are wanted
at once. Rows come in no particular order; those of one key's list are in theirs.
"""

import itertools
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkckpt.errors import InvalidKeyGroupsError, ReaderNotInstalledError, SparkckptError
from sparkckpt.format.metadata import OperatorState
from sparkckpt.format.resolve import PUT
from sparkckpt.keygroups import KeyGroupRange
from sparkckpt.tables.keys import Key, key_from_json, key_groups_of, key_row, rows_with
from sparkckpt.tables.scan import SIDES, FamilyState
from sparkckpt.tables.shapes import INDEX, Column, Shape, StateName
from sparkckpt.tables.snapshot import StateSnapshot

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow.dataset as ds
    from pyspark.sql import DataFrame, SparkSession

EXISTS = "exists"
KEY_GROUP = "key_group"
SQL_NAME = "state"
"""What SQL calls the table."""

KeyGroups = str | int | KeyGroupRange | Sequence[KeyGroupRange] | None
"""Key groups as `"0-99,200"`, one, a range or several; None: all."""


def parse_key_groups(wanted: KeyGroups, max_parallelism: int) -> tuple[KeyGroupRange, ...]:
    """The ranges, which must exist, in ascending order and each group once."""
    if wanted is None:
        return (KeyGroupRange(0, max_parallelism - 1),)
    if isinstance(wanted, KeyGroupRange):
        wanted = [wanted]
    elif isinstance(wanted, str | int):
        wanted = [_range_in(part, str(wanted), max_parallelism) for part in str(wanted).split(",")]
    merged: list[KeyGroupRange] = []
    for one in sorted(wanted):
        if not 0 <= one.first <= one.last < max_parallelism:
            raise InvalidKeyGroupsError(f"{one.first}-{one.last}", max_parallelism)
        if merged and one.first <= merged[-1].last + 1:
            one = KeyGroupRange(merged[-1].first, max(merged[-1].last, one.last))
            merged.pop()
        merged.append(one)
    return tuple(merged)


def _range_in(part: str, text: str, max_parallelism: int) -> KeyGroupRange:
    first, dash, last = (word.strip() for word in part.partition("-"))
    words = (first, last) if dash else (first, first)
    if not all(word.isascii() and word.isdecimal() for word in words):
        raise InvalidKeyGroupsError(text, max_parallelism)
    return KeyGroupRange(int(words[0]), int(words[1]))


@dataclass(frozen=True)
class StateTable:
    """One state of an operator, all of it or some key groups; see the ways of reading it."""

    snapshot: StateSnapshot
    operator: OperatorState
    name: StateName
    family: FamilyState
    shape: Shape
    ranges: tuple[KeyGroupRange, ...]
    with_key_group: bool = False

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns: those of the key first."""
        types = self.family.types
        empty = pa.table(
            [
                pa.array([], pa.uint16()),
                pa.array([], pa.int8()),
                pa.array([], types["key"]),
                pa.array([], types["value"]),
            ],
            ["kg", "op", *SIDES],
        )
        return self.project(empty).schema

    @property
    def key_schema(self) -> pa.Schema:
        """The columns of the grouping key, by which `lookup` finds rows."""
        if not self.operator.keyed:
            return pa.schema([])
        return pa.schema([self.schema.field(column.name) for column in self.shape.grouping])

    def key_groups(self, wanted: KeyGroups) -> "StateTable":
        """The same table with the rows of some key groups only; other files are not read."""
        return replace(self, ranges=parse_key_groups(wanted, self.operator.max_parallelism))

    def with_key_groups(self) -> "StateTable":
        """The same table with a first column `key_group`."""
        return replace(self, with_key_group=True)

    def lookup(self, key: Key | str) -> pa.Table:
        """The rows of one grouping key, given by its columns, or as JSON; reads its key group."""
        if not self.family.handles:
            return self.schema.empty_table()
        columns = self.key_schema
        row = key_row(key_from_json(key, columns) if isinstance(key, str) else key, columns)
        (group,) = key_groups_of(row.columns, 1, self.operator.max_parallelism)
        only = replace(self, ranges=(KeyGroupRange(int(group), int(group)),))
        found = [
            batch.filter(rows_with(row, [batch[name] for name in columns.names], batch.num_rows))
            for batch in only._batches(pin=False)
        ]
        return pa.Table.from_batches(found, self.schema)

    def head(self, rows: int) -> pa.Table:
        """So many rows, whichever come first."""
        taken: list[pa.RecordBatch] = []
        batches = self._batches()
        while rows > 0 and (batch := next(batches, None)) is not None:
            taken.append(batch.slice(0, rows))
            rows -= batch.num_rows
        batches.close()
        return pa.Table.from_batches(taken, self.schema)

    def to_arrow(self) -> pa.Table:
        """All rows at once."""
        return self.to_reader().read_all()

    def to_pandas(self) -> "pd.DataFrame":
        frame: pd.DataFrame = self.to_arrow().to_pandas()
        return frame

    def to_reader(self) -> pa.RecordBatchReader:
        """The rows as a stream, for state that does not fit memory."""
        return pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def scanner(self, columns: Sequence[str] | None = None, filter: Any = None) -> "ds.Scanner":  # noqa: A002
        """A dataset scanner of Arrow's, lazy and to be used once: some columns, of some rows, as
        batches, a table or a count."""
        import pyarrow.dataset as ds  # It brings pandas with it.

        return ds.Scanner.from_batches(self.to_reader(), columns=columns, filter=filter)

    def sql(self, query: str) -> pa.Table:
        """The result of a query in DuckDB, in which the table is called `state`."""
        try:
            import duckdb
        except ImportError as error:
            raise ReaderNotInstalledError("SQL on state", "duckdb", "duckdb") from error
        failures: list[SparkckptError] = []
        stream = pa.RecordBatchReader.from_batches(self.schema, self._batches_noting(failures))
        with duckdb.connect() as connection:
            # A stream can be read once, but a query may name the table twice.
            connection.register("stream", stream)
            try:
                connection.execute(f"create temp table {SQL_NAME} as from stream")
            except duckdb.Error:
                # DuckDB makes an error of its own of whatever happens in a stream.
                if failures:
                    raise failures[0] from None
                raise
            connection.unregister("stream")
            return connection.sql(query).to_arrow_table()

    def to_spark(self, spark: "SparkSession") -> "DataFrame":
        """A DataFrame whose tasks read the files: sparkckpt must be installed where they run.

        While a query runs, use it within `with sparkckpt.state(path) as state:`.
        """
        from sparkckpt.tables.distributed import data_frame

        return data_frame(self, spark)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Lets Polars, pandas, DuckDB and others take the rows as a stream."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def __str__(self) -> str:
        return f"{self.name.name!r} of operator {self.operator.operator_id} in {self.snapshot}"

    def _repr_html_(self) -> str:
        from sparkckpt.pages.notebook import html_of_table

        return html_of_table(self)

    def _batches(self, pin: bool = True) -> Generator[pa.RecordBatch, None, None]:
        """Without a pin for what takes no longer than to lay one."""
        with self.snapshot.kept(pin):
            for rows in self.family.tables(self.ranges, self._sides):
                yield from self.project(rows).to_batches()

    def _batches_noting(
        self, failures: list[SparkckptError]
    ) -> Generator[pa.RecordBatch, None, None]:
        try:
            yield from self._batches()
        except SparkckptError as error:
            failures.append(error)
            raise

    @property
    def _sides(self) -> tuple[str, ...]:
        """The sides that any column is of; of the value also whether there is one."""
        used = {str(column.path[0]) for column in self.shape.columns}
        return tuple(s for s in SIDES if s in used or (self.shape.numbered and s == "value"))

    def project(self, rows: pa.Table) -> pa.Table:
        """The columns of the table, of rows in those of a state file."""
        rows = rows.combine_chunks()
        columns: dict[str, pa.ChunkedArray] = {}
        grouping = len(self.shape.grouping)
        numbers = _places(rows) if self.shape.numbered else None
        for position, column in enumerate(self.shape.columns):
            if position == grouping and numbers is not None:
                columns[INDEX] = numbers
            columns[column.name] = _extract(rows, column)
        if self.shape.presence is not None:
            columns[_free(EXISTS, columns)] = _at(rows, self.shape.presence).is_valid()
        if self.with_key_group:
            columns = {_free(KEY_GROUP, columns): rows["kg"], **columns}
        table = pa.table(list(columns.values()), list(columns))
        if self.shape.numbered:
            # A list that is there but has no item is no row.
            table = table.filter(rows["value"].is_valid())
        return table


def _free(name: str, taken: dict[str, Any]) -> str:
    return next(
        n
        for n in itertools.chain([name], (f"{name}_{i}" for i in itertools.count()))
        if n not in taken
    )


def _at(rows: pa.Table, path: Sequence[str | int]) -> pa.ChunkedArray:
    side, *indices = path
    values = rows[str(side)]
    return pc.struct_field(values, indices) if indices else values


def _extract(rows: pa.Table, column: Column) -> pa.ChunkedArray:
    values = _at(rows, column.path)
    if column.time is None:
        return values
    if column.unset is not None:
        values = pc.if_else(pc.equal(values, column.unset), None, values)
    return (
        values.cast(pa.int64())
        .cast(pa.timestamp(column.time))
        .cast(pa.timestamp(column.time, "UTC"))
    )


def _places(rows: pa.Table) -> pa.Array:
    """The place of each row in the list of its key: a put begins one."""
    position = np.arange(rows.num_rows)
    begins = np.where(rows["op"].to_numpy() == PUT, position, 0)
    return pa.array(position - np.maximum.accumulate(begins), pa.int64())
