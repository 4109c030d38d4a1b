"""What a StatefulProcessor gets and gives, for transformWithState and transformWithStateInPandas.

Both follow Spark's worker, oddities included: rows come with what Arrow's `as_py` gives, output
rows are taken by the names of their fields, and naive timestamps among them are in UTC. Frames come
with the widest type of a kind, since Spark makes them of Python objects.
"""

from collections import namedtuple
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkValueError
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import Row, StructType

from sparkckpt.processor.values import from_tuples, to_tuples
from sparkckpt.processor.wire import Control, Exchange, Reader


class RowFlavour:
    """pyspark.sql.Row in and out."""

    def __init__(self, output: StructType, control: Control) -> None:
        self._control = control
        self.arrow: pa.StructType = to_arrow_type(output, timezone="UTC")
        self._names = list(output.names)
        self._taken_whole = tuple(self._names) if _are_plain(output) else None
        self._rows: list[tuple[Any, ...]] = []
        self._limit = control.max_records if control.max_records > 0 else 2**31 - 1

    def keys(self, exchange: Exchange) -> list[Any]:
        return to_tuples(exchange.keys(self._control.key_offsets), len(exchange.firsts))

    def rows(self, batch: pa.RecordBatch) -> Callable[[int, int], Iterator[Any]]:
        width = batch.num_columns - 2
        if self._control.expired:
            return lambda start, end: iter(())
        tuples = to_tuples([batch.column(i) for i in range(width)], batch.num_rows)
        names = Row(*batch.schema.names[:width])

        def row_of(values: tuple[Any, ...]) -> Row:
            row: Row = tuple.__new__(Row, values)
            row.__fields__ = names
            return row

        return lambda start, end: map(row_of, tuples[start:end])

    def with_more(self, rows: Iterator[Any], reader: Reader) -> Iterator[Any]:
        further = (self.rows(batch)(0, batch.num_rows) for batch in reader.more())
        return chain(rows, chain.from_iterable(further))

    def add(self, row: Any) -> bool:
        """Whether so much has come together that it should be sent."""
        if type(row) is Row and tuple(getattr(row, "__fields__", ())) == self._taken_whole:
            self._rows.append(row)
        else:
            values = row.asDict(True)
            self._rows.append(tuple(map(values.get, self._names)))
        return len(self._rows) > self._limit

    def take(self) -> pa.StructArray | None:
        if not self._rows:
            return None
        rows, self._rows = self._rows, []
        return from_tuples(rows, self.arrow)


class PandasFlavour:
    """pandas.DataFrame in and out."""

    def __init__(self, output: StructType, control: Control) -> None:
        from sparkckpt.processor.pandasframes import PandasConfs, SeparateFrames

        self._control = control
        self._confs = PandasConfs(control.runner_conf, control.timezone)
        self._output = SeparateFrames(output, self._confs, control.max_records)
        self.arrow = self._output.arrow

    def keys(self, exchange: Exchange) -> list[Any]:
        from sparkckpt.processor.pandasframes import keys_of

        columns = [_widened(column) for column in exchange.keys(self._control.key_offsets)]
        return [
            tuple(v.item() if hasattr(v, "dtype") and hasattr(v, "item") else v for v in key)
            for key in keys_of(columns, self._confs, len(exchange.firsts))
        ]

    def rows(self, batch: pa.RecordBatch) -> Callable[[int, int], Iterator[Any]]:
        from sparkckpt.processor.pandasframes import Frames

        if self._control.expired:
            return lambda start, end: iter(())
        width = batch.num_columns - 2
        names = _renamed(batch.schema.names[:width])
        columns = [_widened(batch.column(i)) for i in self._control.value_offsets]
        frames = Frames(
            pa.RecordBatch.from_arrays(columns, [names[i] for i in self._control.value_offsets]),
            self._confs,
        )
        return lambda start, end: iter((frames.cut(start, end),))

    def with_more(self, frames: Iterator[Any], reader: Reader) -> Iterator[Any]:
        further = (self.rows(batch)(0, batch.num_rows) for batch in reader.more())
        return chain(frames, chain.from_iterable(further))

    def add(self, frame: Any) -> bool:
        import pandas as pd

        if not isinstance(frame, pd.DataFrame):
            raise PySparkValueError(
                "Invalid return type. Please make sure that the UDF returns a "
                "pandas.DataFrame when the specified return type is StructType."
            )
        return self._output.add(frame)

    def take(self) -> pa.StructArray | None:
        return self._output.take()


def _renamed(names: list[str]) -> Sequence[str]:
    """Names that Python cannot have become numbers, as Spark makes rows with named tuples."""
    row: Any = namedtuple("row", names, rename=True)  # type: ignore[misc]
    fields: Sequence[str] = row._fields
    return fields


def _are_plain(schema: StructType) -> bool:
    """Whether a row of these fields can be taken as it is: no rows in it, and no name twice."""
    from pyspark.sql.types import AtomicType

    fields = schema.fields
    return len(set(schema.names)) == len(fields) and all(
        isinstance(field.dataType, AtomicType) for field in fields
    )


def _widened(column: pa.Array) -> pa.Array:
    kind = column.type
    if pa.types.is_integer(kind):
        return column.cast(pa.int64())
    if pa.types.is_floating(kind):
        return column.cast(pa.float64())
    if pa.types.is_timestamp(kind):
        return column.cast(pa.timestamp("ns", kind.tz))
    return column
