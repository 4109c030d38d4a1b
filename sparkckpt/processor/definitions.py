"""Definitions of stateful operators of our own API: one state per key, functions of other shapes.

They are defined through Spark's applyInPandasWithState, whose plan and state they share; only the
function is never called as that would.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from sparkckpt.errors.processing import NotInBandError, UnsupportedTypeError
from sparkckpt.processor.accelerate import register, require_plugin
from sparkckpt.processor.closure import InBandFunction
from sparkckpt.processor.schemas import keys_of, parsed, why_not, why_not_keyed
from sparkckpt.processor.shipping import ship_to_executors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.group import GroupedData
    from pyspark.sql.types import StructType

    from sparkckpt.processor.folds import Derived, Fold
    from sparkckpt.processor.rows import Row, RowState
    from sparkckpt.processor.vectorized import VectorizedProcessor


class OnlyInBand:
    """What Spark's own operator calls if the plan has not become one of ours."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __call__(self, *args: Any) -> Any:
        raise NotInBandError(self._what)


def define_groups(
    grouped: "GroupedData",
    what: str,
    name: str,
    run: Any,
    output: "StructType",
    state: "StructType",
    output_mode: str,
    timeout: str,
    operator_state: bool = False,
    columns: list[str] | None = None,
) -> "DataFrame":
    session = grouped.session
    require_plugin(session, what)
    why = why_not_keyed(grouped) or why_not(input=grouped._df.schema, output=output, state=state)
    if why is not None:
        raise UnsupportedTypeError(what, why)
    ship_to_executors(session)
    spec: dict[str, Any] = {"host": "groups"}
    if operator_state:
        spec["operatorState"] = True
    if columns is not None:
        spec["columns"] = columns
    function = InBandFunction(run, OnlyInBand(what), name, register(session, spec))
    return _original(grouped)(grouped, function, output, state, output_mode, timeout)


def apply_rows(
    grouped: "GroupedData",
    fn: "Callable[[Row, Iterator[Row], RowState], Iterable[Row]]",
    output_schema: "StructType | str",
    state_schema: "StructType | str",
    output_mode: str = "update",
    timeout: str = "NoTimeout",
) -> "DataFrame":
    """Apply `fn(key, rows, state)` to the rows of each key, and keep a state per key.

    `key` is a tuple; `rows` iterates over tuples of all columns; `state` has `exists`, `get()`,
    `update(tuple)`, `remove()` and timeouts; what `fn` returns or yields are tuples of the output.

    >>> def total(key, rows, state):
    ...     total = (state.get() or (0,))[0] + sum(value for _, value in rows)
    ...     state.update((total,))
    ...     return [(key[0], total)]
    >>> sparkckpt.apply_rows(df.groupBy("id"), total, "id long, total long", "total long")
    """
    from sparkckpt.processor.rows import RowGroups

    session = grouped.session
    output, state = parsed(output_schema, session), parsed(state_schema, session)
    name = getattr(fn, "__name__", type(fn).__name__)
    run = RowGroups(fn, output, state)
    return define_groups(
        grouped, "sparkckpt.apply_rows", name, run, output, state, output_mode, timeout
    )


def apply_vectorized(
    grouped: "GroupedData",
    processor: "VectorizedProcessor",
    output_schema: "StructType | str",
    state_schema: "StructType | str",
    output_mode: str = "update",
    timeout: str = "NoTimeout",
) -> "DataFrame":
    """Apply `processor.process` to Arrow tables of rows and state, many keys at a time.

    >>> class Totals(sparkckpt.VectorizedProcessor):
    ...     def process(self, touched):
    ...         sums = np.add.reduceat(touched.rows["v"].to_numpy(), touched.starts)
    ...         total = pc.add(touched.state["total"].fill_null(0), pa.array(sums))
    ...         output = touched.keys.append_column("total", total)
    ...         return sparkckpt.Changes(output, pa.table({"total": total}))
    >>> sparkckpt.apply_vectorized(df.groupBy("id"), Totals(), "id long, total long", "total long")
    """
    from sparkckpt.processor.lifecycle import keeps_operator_state
    from sparkckpt.processor.vectorized import VectorizedGroups

    session = grouped.session
    output, state = parsed(output_schema, session), parsed(state_schema, session)
    what = "sparkckpt.apply_vectorized"
    name = type(processor).__name__
    run = VectorizedGroups(processor, output, state)
    return define_groups(
        grouped,
        what,
        name,
        run,
        output,
        state,
        output_mode,
        timeout,
        operator_state=keeps_operator_state(processor),
    )


def fold(
    grouped: "GroupedData", output_mode: str = "update", **columns: "Fold | Derived"
) -> "DataFrame":
    """Fold the rows of each key into columns; a row is put out for each key that has new ones.

    >>> sparkckpt.fold(df.groupBy("id"), total=sparkckpt.sum_("v"), n=sparkckpt.count_())
    """
    from pyspark.sql import types as T

    from sparkckpt.errors.processing import FoldError
    from sparkckpt.processor.folds import Derived, Fold, FoldProcessor
    from sparkckpt.processor.pruning import needed_columns
    from sparkckpt.processor.vectorized import VectorizedGroups

    session = grouped.session
    require_plugin(session, "sparkckpt.fold")
    keys = keys_of(grouped).fields
    known = {field.name: field.dataType for field in grouped._df.schema.fields}
    folds: dict[str, Fold] = {}
    functions: dict[str, Any] = {}
    output, state = T.StructType(list(keys)), T.StructType()
    for name, column in columns.items():
        if name in output.names:
            raise FoldError(name, "the key has a column of that name")
        if isinstance(column, Derived):
            kind = column.schema
            kind = parsed(f"x {kind}", session)[0].dataType if isinstance(kind, str) else kind
            functions[name] = column.function
        elif isinstance(column, Fold):
            if column.column is not None and column.column not in known:
                raise FoldError(name, f"there is no column {column.column!r} in {list(known)}")
            kind = column.state_type(known.get(column.column or ""))
            folds[name] = column
            state = state.add(name, kind)
        else:
            raise FoldError(name, f"{column!r} is no fold: use sum_, count_, min_, max_, ...")
        output = output.add(name, kind)
    if not folds:
        raise FoldError("nothing", "no fold is given")
    processor = FoldProcessor(folds, functions, tuple(output.names))
    run = VectorizedGroups(processor, output, state)
    needed = needed_columns(folds.values(), [key.name for key in keys], list(known))
    return define_groups(
        grouped,
        "sparkckpt.fold",
        "fold",
        run,
        output,
        state,
        output_mode,
        "NoTimeout",
        columns=needed,
    )


def _original(grouped: "GroupedData") -> "Callable[..., DataFrame]":
    """Spark's own method, whether or not the session is accelerated."""
    from pyspark.sql.pandas.group_ops import PandasGroupedOpsMixin

    return PandasGroupedOpsMixin.applyInPandasWithState
