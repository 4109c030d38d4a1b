"""Folds: sums, counts and the like per key, as one vectorized processor.

Each fold reduces the rows of every key of an exchange at once, and merges what comes out with what
it has in the state. The state is one struct with the fields of all folds. Output is one row for
each touched key, with the key's columns first.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T

from sparkckpt.errors.processing import FoldError
from sparkckpt.processor.vectorized import Changes, Touched, VectorizedProcessor

_MAX_DECIMAL256 = 76
_NUMBERS = (T.ByteType, T.ShortType, T.IntegerType, T.LongType)


class Fold(ABC):
    """What is kept of the rows of a key; subclass it for folds of your own."""

    column: str | None
    """The column that is folded; None: rows are."""

    @abstractmethod
    def state_type(self, column: T.DataType | None) -> T.DataType:
        """Of the folded value, for a column of this type."""

    @abstractmethod
    def reduce(self, touched: Touched, column: pa.Array | None) -> pa.Array:
        """The value of each key over the rows of this exchange; every key has at least one."""

    @abstractmethod
    def merge(self, before: pa.Array, now: pa.Array, exists: pa.Array) -> pa.Array:
        """The value of each key over all its rows; `before` is null where there was no state."""


@dataclass(frozen=True)
class Sum(Fold):
    """Ignores null; null if all is. What overflows its type is an error."""

    column: str

    def state_type(self, column: T.DataType | None) -> T.DataType:
        if isinstance(column, _NUMBERS):
            return T.LongType()
        if isinstance(column, (T.FloatType, T.DoubleType)):
            return T.DoubleType()
        if isinstance(column, T.DecimalType):
            return T.DecimalType(min(38, column.precision + 10), column.scale)
        raise FoldError(self.column, f"there is no sum of {_name(column)}")

    def reduce(self, touched: Touched, column: pa.Array | None) -> pa.Array:
        assert column is not None
        if pa.types.is_decimal(column.type):
            # Arrow's sums have the width of what they add up, and wrap around.
            wide = column.cast(pa.decimal256(_MAX_DECIMAL256, column.type.scale))
            return _grouped(touched, wide, "sum")
        wide = column.cast(pa.int64() if pa.types.is_integer(column.type) else pa.float64())
        values = _numpy(wide.fill_null(0) if wide.null_count else wide)
        sums = _exact_sums(values, touched.starts)
        return pa.array(sums, wide.type, mask=_all_null(touched, column))

    def merge(self, before: pa.Array, now: pa.Array, exists: pa.Array) -> pa.Array:
        kind = before.type
        if pa.types.is_decimal(kind):
            # One digit is left for the sum of two.
            kind = pa.decimal256(_MAX_DECIMAL256 - 1, kind.scale)
        before, now, stored = before.cast(kind), now.cast(kind), before.type
        return pc.coalesce(pc.add_checked(before, now), before, now).cast(stored)


@dataclass(frozen=True)
class Count(Fold):
    """Of rows, or of the values of a column that are not null."""

    column: str | None = None

    def state_type(self, column: T.DataType | None) -> T.DataType:
        return T.LongType()

    def reduce(self, touched: Touched, column: pa.Array | None) -> pa.Array:
        if column is None or not column.null_count:
            return pa.array(np.diff(np.append(touched.starts, touched.rows.num_rows)))
        valid = _numpy(column.is_valid()).astype(np.int64)
        return pa.array(np.add.reduceat(valid, touched.starts))

    def merge(self, before: pa.Array, now: pa.Array, exists: pa.Array) -> pa.Array:
        return pc.add(before.fill_null(0), now)


@dataclass(frozen=True)
class Extreme(Fold):
    """The smallest or largest value; ignores null. NaN is larger than all, as in Spark."""

    column: str
    largest: bool

    def state_type(self, column: T.DataType | None) -> T.DataType:
        if column is None or isinstance(column, (T.ArrayType, T.MapType, T.StructType)):
            raise FoldError(self.column, f"there is no order of {_name(column)}")
        return column

    def reduce(self, touched: Touched, column: pa.Array | None) -> pa.Array:
        assert column is not None
        if pa.types.is_floating(column.type) or pa.types.is_integer(column.type):
            filled = column.fill_null(self._neutral(column.type)) if column.null_count else column
            values = self._of_two.reduceat(_numpy(filled), touched.starts)
            return pa.array(values, column.type, mask=_all_null(touched, column))
        storage = _as_number(column.type)
        if storage is not None:
            return self.reduce(touched, column.cast(storage)).cast(column.type)
        return _grouped(touched, column, "max" if self.largest else "min")

    def merge(self, before: pa.Array, now: pa.Array, exists: pa.Array) -> pa.Array:
        if pa.types.is_floating(before.type):
            one, other = before.fill_null(self._neutral(before.type)), now
            other = now.fill_null(self._neutral(before.type))
            nulls = _numpy(pc.and_(before.is_null(), now.is_null()))
            return pa.array(self._of_two(_numpy(one), _numpy(other)), before.type, mask=nulls)
        better = pc.greater(now, before) if self.largest else pc.less(now, before)
        return pc.if_else(better.fill_null(False), now, pc.coalesce(before, now))

    @property
    def _of_two(self) -> Any:
        return np.maximum if self.largest else np.fmin

    def _neutral(self, kind: pa.DataType) -> pa.Scalar:
        if pa.types.is_floating(kind):
            # fmin takes the other of NaN and a number; what is all null is masked.
            return pa.scalar(-np.inf if self.largest else np.nan, kind)
        limits = np.iinfo(kind.to_pandas_dtype())
        return pa.scalar(limits.min if self.largest else limits.max, kind)


@dataclass(frozen=True)
class Edge(Fold):
    """The value of the first or last row, in the order in which rows have come; may be null."""

    column: str
    last: bool

    def state_type(self, column: T.DataType | None) -> T.DataType:
        assert column is not None
        return column

    def reduce(self, touched: Touched, column: pa.Array | None) -> pa.Array:
        assert column is not None
        starts = touched.starts
        where = np.append(starts[1:], touched.rows.num_rows) - 1 if self.last else starts
        return column.take(pa.array(where))

    def merge(self, before: pa.Array, now: pa.Array, exists: pa.Array) -> pa.Array:
        if self.last:
            return now
        places = np.arange(len(now))
        return pa.concat_arrays([before, now]).take(
            pa.array(np.where(_numpy(exists), places, len(now) + places))
        )


@dataclass(frozen=True)
class Derived:
    """A column of the output that is computed of the others, and not kept."""

    function: Callable[[pa.Table], Any]
    schema: T.DataType | str


def sum_(column: str) -> Fold:
    return Sum(column)


def count_(column: str | None = None) -> Fold:
    return Count(column)


def min_(column: str) -> Fold:
    return Extreme(column, largest=False)


def max_(column: str) -> Fold:
    return Extreme(column, largest=True)


def first_(column: str) -> Fold:
    return Edge(column, last=False)


def last_(column: str) -> Fold:
    return Edge(column, last=True)


def derived(function: Callable[[pa.Table], Any], type: T.DataType | str) -> Derived:  # noqa: A002
    """`function` gets the folded columns and those of the key, and returns an Arrow array.

    >>> mean = derived(lambda t: pc.divide(t["total"].cast("double"), t["n"]), "double")
    """
    return Derived(function, type)


@dataclass(frozen=True)
class FoldProcessor(VectorizedProcessor):
    """Runs folds under the names that they have in the output."""

    folds: Mapping[str, Fold]
    derived: Mapping[str, Callable[[pa.Table], Any]]
    columns: Sequence[str]
    """The names of the output's columns, the key's first."""

    def process(self, touched: Touched) -> Changes:
        names = list(self.folds)
        values = [self._folded(name, fold, touched) for name, fold in self.folds.items()]
        state = pa.Table.from_arrays(values, names=names)
        keys = len(self.columns) - len(names) - len(self.derived)
        whole = pa.Table.from_arrays(
            [*touched.keys.columns, *values], names=[*self.columns[:keys], *names]
        )
        for name, function in self.derived.items():
            whole = whole.append_column(name, function(whole))
        output = whole.select(list(self.columns))
        # A key that goes on is put out with the last of its rows.
        return Changes(output.slice(0, output.num_rows - touched.goes_on), state)

    def _folded(self, name: str, fold: Fold, touched: Touched) -> pa.Array:
        column = None if fold.column is None else _whole(touched.rows.column(fold.column))
        now = fold.reduce(touched, column)
        return fold.merge(_whole(touched.state.column(name)), now, touched.exists)


def _grouped(touched: Touched, column: pa.Array, function: str) -> pa.Array:
    """For the types that numpy does not have; groups come in the order of the keys."""
    table = pa.table({"key": touched.key_index, "value": column})
    result = table.group_by("key", use_threads=False).aggregate([("value", function)])
    return _whole(result.column(f"value_{function}"))


def _exact_sums(values: Any, starts: Any) -> Any:
    if values.dtype == np.int64 and len(values):
        largest = max(abs(int(values.min())), abs(int(values.max())))
        if largest * len(values) >= 2**63:
            sums: list[int] = np.add.reduceat(values.astype(object), starts).tolist()
            return sums
    return np.add.reduceat(values, starts)


def _all_null(touched: Touched, column: pa.Array) -> Any:
    if not column.null_count:
        return None
    return ~np.logical_or.reduceat(_numpy(column.is_valid()), touched.starts)


def _as_number(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return pa.int64()
    if pa.types.is_date32(kind):
        return pa.int32()
    return pa.int8() if pa.types.is_boolean(kind) else None


def _numpy(array: pa.Array) -> Any:
    return array.to_numpy(zero_copy_only=False)


def _whole(column: Any) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _name(kind: T.DataType | None) -> str:
    return "nothing" if kind is None else kind.simpleString()
