"""The rows of many keys as one pandas frame each, converted together and cut apart.

A frame must be what Spark's own conversion of just that key's rows gives. Where the dtype depends
on whether there are nulls among them, the columns are converted in both ways, and each key's frame
is cut out of the frame that has the right ones. What cannot be told in advance (numbers with nulls
inside arrays, maps and structs) is left to Spark's conversion, key by key.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
from pyspark.errors import PySparkRuntimeError, PySparkTypeError
from pyspark.sql.conversion import ArrowBatchTransformer, PandasToArrowConversion
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructField, StructType

if TYPE_CHECKING:
    from pandas import DataFrame

_MAX_TWOFOLD = 4
_RANGES: dict[int, pd.RangeIndex] = {}


class PandasConfs:
    """How the session wants data to be converted."""

    def __init__(self, confs: dict[str, str], timezone: str) -> None:
        def is_set(key: str, default: str = "false") -> bool:
            return confs.get(key, default).lower() == "true"

        self.timezone = confs.get("spark.sql.session.timeZone", timezone)
        self.by_name = is_set(
            "spark.sql.legacy.execution.pandas.groupedMap.assignColumnsByName", "true"
        )
        self.safe = is_set("spark.sql.execution.pandas.convertToArrowArraySafely")
        self.int_extension = is_set("spark.sql.execution.pythonUDF.pandas.preferIntExtensionDtype")
        self.int_to_decimal = is_set(
            "spark.sql.execution.pythonUDF.pandas.intToDecimalCoercionEnabled"
        )

    def to_series(self, columns: pa.RecordBatch) -> list[pd.Series]:
        """As Spark does it."""
        return ArrowBatchTransformer.to_pandas(  # type: ignore[return-value]
            columns, timezone=self.timezone, prefer_int_ext_dtype=self.int_extension
        )


class Frames:
    """The frames of the keys of a record batch, by row numbers."""

    def __init__(self, columns: pa.RecordBatch, confs: PandasConfs) -> None:
        self._columns, self._confs = columns, confs
        self._twofold = [i for i, c in enumerate(columns.columns) if _depends_on_nulls(c, confs)]
        self._one_by_one = columns.num_columns == 0 or len(self._twofold) > _MAX_TWOFOLD
        self._one_by_one |= any(_is_unpredictable(c) for c in columns.columns)
        self._whole: dict[tuple[bool, ...], Any] = {}
        self._nulls = [_null_counts(columns.column(i)) for i in self._twofold]
        self._series: list[Any] = []

    def cut(self, start: int, end: int) -> "DataFrame":
        if self._one_by_one:
            return self._converted(start, end)
        nulls = tuple(bool(n[end] - n[start]) for n in self._nulls)
        manager = self._whole.get(nulls)
        if manager is None:
            manager = self._whole[nulls] = self._frame(nulls)._mgr
        part = manager.get_slice(slice(start, end), axis=1)
        # Objects of the frame's own: naming the index of one frame must not name those of others.
        part.axes = [part.axes[0].view(), _range(end - start).view()]
        from_manager: Any = pd.DataFrame._from_mgr  # type: ignore[attr-defined]
        frame: DataFrame = from_manager(part, part.axes)
        return frame

    def none(self) -> "DataFrame":
        """What a function gets when its key has timed out."""
        return pd.DataFrame(columns=self._columns.schema.names)

    def _converted(self, start: int, end: int) -> "DataFrame":
        series = self._confs.to_series(self._columns.slice(start, end - start))
        frame: DataFrame = pd.concat(series, axis=1)
        return frame

    def _frame(self, nulls: tuple[bool, ...]) -> Any:
        if not self._series:
            self._series = self._confs.to_series(self._columns)
        series = list(self._series)
        for i, has_nulls in zip(self._twofold, nulls, strict=True):
            if not has_nulls:
                filled = _without_nulls(self._columns.column(i))
                name = self._columns.schema.field(i).name
                series[i] = self._confs.to_series(pa.RecordBatch.from_arrays([filled], [name]))[0]
        return pd.concat(series, axis=1)


def _range(length: int) -> pd.RangeIndex:
    index = _RANGES.get(length)
    if index is None:
        index = pd.RangeIndex(length)
        if length < 1000:
            _RANGES[length] = index
    return index


def _depends_on_nulls(column: pa.Array, confs: PandasConfs) -> bool:
    if column.null_count == 0:
        return False
    kind = column.type
    if pa.types.is_boolean(kind):
        return True
    return pa.types.is_integer(kind) and not confs.int_extension


def _is_unpredictable(column: pa.Array) -> bool:
    """Whether nulls of one row can change how those of another are converted."""
    kind = column.type
    if pa.types.is_struct(kind):
        return any(map(_has_null_numbers, column.flatten()))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _has_null_numbers(column.values)
    if pa.types.is_map(kind):
        return _has_null_numbers(column.items) or _has_null_numbers(column.keys)
    return False


def _has_null_numbers(column: pa.Array) -> bool:
    kind = column.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return bool(column.null_count)
    return _is_unpredictable(column)


def _null_counts(column: pa.Array) -> Any:
    """How many nulls there are before each row."""
    is_null = column.is_null().to_numpy(zero_copy_only=False)
    return np.concatenate([[0], np.cumsum(is_null)])


def _without_nulls(column: pa.Array) -> pa.Array:
    return column.fill_null(pa.scalar(0, pa.int8()).cast(column.type))


def keys_of(columns: list[pa.Array], confs: PandasConfs, count: int) -> list[tuple[Any, ...]]:
    """Each key as the tuple of the first values in its series."""
    if not columns:
        return [()] * count
    return list(zip(*(_scalars(column, confs) for column in columns), strict=True))


def _scalars(column: pa.Array, confs: PandasConfs) -> list[Any]:
    def series_of(part: pa.Array) -> Any:
        return confs.to_series(pa.RecordBatch.from_arrays([part], ["key"]))[0]

    if _is_unpredictable(column):
        return [series_of(column.slice(i, 1))[0] for i in range(len(column))]
    if not _depends_on_nulls(column, confs):
        return _boxed(series_of(column))
    null = series_of(column.filter(column.is_null()).slice(0, 1))[0]
    scalars = _boxed(series_of(_without_nulls(column)))
    valid = column.is_valid().to_pylist()
    return [s if ok else null for s, ok in zip(scalars, valid, strict=True)]


def _boxed(series: Any) -> list[Any]:
    """Its elements as indexing gives them."""
    if isinstance(series.dtype, np.dtype) and series.dtype.kind in "iufb":
        return list(series.to_numpy())
    if isinstance(series.dtype, np.dtype):
        return list(series)
    return [series[i] for i in range(len(series))]


def _all_nullable(kind: pa.StructType) -> pa.StructType:
    """As a converted frame has it, whatever the schema says."""
    return pa.struct([kind.field(i).with_nullable(True) for i in range(kind.num_fields)])


class FrameOutput:
    """Checks the frames that a function returns, and turns many into one struct column."""

    def __init__(self, schema: "StructType", confs: PandasConfs, max_rows: int) -> None:
        self._schema = StructType([StructField("_0", schema)])
        self._width = len(schema.fields)
        self._confs = confs
        self._max_rows = max_rows if max_rows > 0 else 2**31 - 1
        self.arrow = _all_nullable(to_arrow_type(schema, timezone=confs.timezone))
        self._frames: list[DataFrame] = []
        self._rows = 0

    def add(self, frame: Any) -> bool:
        """Whether so much has come together that it should be sent."""
        self._check(frame)
        if len(frame) == 0:
            return False
        self._frames.append(frame)
        self._rows += len(frame)
        return self._rows > self._max_rows

    def take(self) -> pa.StructArray | None:
        if not self._frames:
            return None
        frames, self._frames, self._rows = self._frames, [], 0
        return PandasToArrowConversion.convert(
            [pd.concat(frames, ignore_index=True)],
            self._schema,
            timezone=self._confs.timezone,
            safecheck=self._confs.safe,
            arrow_cast=True,
            assign_cols_by_name=self._confs.by_name,
            int_to_decimal_coercion_enabled=self._confs.int_to_decimal,
        ).column(0)

    def _check(self, frame: Any) -> None:
        if not isinstance(frame, pd.DataFrame):
            raise PySparkTypeError(
                errorClass="UDF_RETURN_TYPE",
                messageParameters={
                    "expected": "iterator of pandas.DataFrame",
                    "actual": f"iterator of {type(frame).__name__}",
                },
            )
        width = len(frame.columns)
        if width != self._width and not (width == 0 and frame.empty):
            raise PySparkRuntimeError(
                errorClass="RESULT_COLUMN_SCHEMA_MISMATCH",
                messageParameters={"expected": str(self._width), "actual": str(width)},
            )


class SeparateFrames:
    """As FrameOutput, for frames that Spark converts one by one: unlike ones stay separate."""

    def __init__(self, schema: "StructType", confs: PandasConfs, max_rows: int) -> None:
        self._schema = StructType([StructField("_0", schema)])
        self._confs = confs
        self._max_rows = max_rows if max_rows > 0 else 2**31 - 1
        self.arrow = _all_nullable(to_arrow_type(schema, timezone=confs.timezone))
        self._runs: list[list[DataFrame]] = []
        self._shape: Any = None
        self._rows = 0

    def add(self, frame: "DataFrame") -> bool:
        """Whether so much has come together that it should be sent."""
        shape = (frame.columns.tolist(), frame.dtypes.tolist())
        if shape != self._shape:
            self._shape = shape
            self._runs.append([])
        # It may be changed and yielded again, and the data of another.
        self._runs[-1].append(frame.copy())
        self._rows += len(frame)
        return self._rows > self._max_rows

    def take(self) -> pa.StructArray | None:
        if not self._runs:
            return None
        runs, self._runs, self._shape, self._rows = self._runs, [], None, 0
        columns = [
            self._converted(run[0] if len(run) == 1 else pd.concat(run, ignore_index=True))
            for run in runs
        ]
        return columns[0] if len(columns) == 1 else pa.concat_arrays(columns)

    def _converted(self, frame: "DataFrame") -> pa.StructArray:
        return PandasToArrowConversion.convert(
            [frame],
            self._schema,
            timezone=self._confs.timezone,
            safecheck=self._confs.safe,
            arrow_cast=True,
            assign_cols_by_name=self._confs.by_name,
            int_to_decimal_coercion_enabled=self._confs.int_to_decimal,
        ).column(0)
