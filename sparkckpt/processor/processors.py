"""Defines the operator of a StatefulProcessor, through Spark's own plan for it.

What init() asks for is found out on a copy of the processor, as Spark does in a worker of the
driver: the user's own is never touched.
"""

import pickle
from typing import TYPE_CHECKING, Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.streaming.stateful_processor_util import (
    TransformWithStateInPandasFuncMode,
    TransformWithStateInPandasUdfUtils,
)
from pyspark.sql.types import StructType
from pyspark.util import PythonEvalType

from sparkckpt.errors.processing import OperatorStateNotInBandError
from sparkckpt.processor.accelerate import falls_back, register, why_not_in
from sparkckpt.processor.closure import InBandFunction
from sparkckpt.processor.handles import RecordingHandle
from sparkckpt.processor.lifecycle import keeps_operator_state
from sparkckpt.processor.schemas import parsed, why_not, why_not_keyed
from sparkckpt.processor.stateful import Flavour, ProcessorGroups

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.group import GroupedData

_METHODS = {"rows": "transformWithState", "pandas": "transformWithStateInPandas"}
_EVAL_TYPES: dict[tuple[str, bool], int] = {
    ("rows", False): PythonEvalType.SQL_TRANSFORM_WITH_STATE_PYTHON_ROW_UDF,
    ("rows", True): PythonEvalType.SQL_TRANSFORM_WITH_STATE_PYTHON_ROW_INIT_STATE_UDF,
    ("pandas", False): PythonEvalType.SQL_TRANSFORM_WITH_STATE_PANDAS_UDF,
    ("pandas", True): PythonEvalType.SQL_TRANSFORM_WITH_STATE_PANDAS_INIT_STATE_UDF,
}


def define_processor(
    flavour: Flavour,
    grouped: "GroupedData",
    processor: StatefulProcessor,
    output_schema: StructType | str,
    output_mode: str,
    time_mode: str,
    initial_state: "GroupedData | None",
    event_time_column: str,
) -> DataFrame | None:
    """None if the processor has to run on Spark's own operator."""
    session = grouped.session
    output = parsed(output_schema, session)
    what = f"{_METHODS[flavour]}({type(processor).__name__})"
    handle, why = _recorded(processor, session)
    schemas = {f"state variable {v.name}": v.schema for v in handle.variables}
    schemas |= {f"map {v.name}": v.user_key for v in handle.variables if v.user_key is not None}
    why = why or why_not_in(session) or why_not_keyed(grouped)
    why = why or why_not(input=grouped._df.schema, output=output, **schemas)
    has_operator_state = keeps_operator_state(processor)
    if has_operator_state:
        if why is None and initial_state is not None:
            why = "its first batch, which reads the initial state, is Spark's own"
        if why is not None:
            raise OperatorStateNotInBandError(what, why)
    if falls_back(what, why):
        return None
    spec: dict[str, Any] = {
        "host": "processor",
        "variables": [variable.to_json() for variable in handle.variables],
        "deleted": handle.deleted,
        "operatorState": has_operator_state,
    }
    utils = TransformWithStateInPandasUdfUtils(processor, time_mode)
    fallback: Any = (
        utils.transformWithStateUDF
        if initial_state is None
        else utils.transformWithStateWithInitStateUDF
    )
    if has_operator_state:
        fallback = OnlyPreparation(what, fallback)
    function = InBandFunction(
        run=ProcessorGroups(processor, output, flavour, time_mode, tuple(handle.variables)),
        fallback=fallback,
        name=type(processor).__name__,
        number=register(session, spec),
    )
    df = grouped._df
    udf: Any = pandas_udf(
        function,  # type: ignore[call-overload]
        returnType=output,
        functionType=_EVAL_TYPES[flavour, initial_state is not None],
    )
    java: Any = grouped._jgd
    define = (
        java.transformWithStateInPySpark if flavour == "rows" else java.transformWithStateInPandas
    )
    java_session: Any = session._jsparkSession
    return DataFrame(
        define(
            udf(*[df[column] for column in df.columns])._jc,
            java_session.parseDataType(output.json()),
            output_mode,
            time_mode,
            None if initial_state is None else initial_state._jgd,
            event_time_column,
        ),
        session,
    )


class OnlyPreparation:
    """What Spark's own operator calls of a processor with operator state, and the driver before."""

    def __init__(self, what: str, function: Any) -> None:
        self._what, self._function = what, function

    def __call__(self, client: Any, mode: TransformWithStateInPandasFuncMode, *args: Any) -> Any:
        if mode == TransformWithStateInPandasFuncMode.PRE_INIT:
            return self._function(client, mode, *args)
        raise OperatorStateNotInBandError(
            self._what,
            "its checkpoint was begun with another state store, or it is not a streaming query",
        )


def _recorded(
    processor: StatefulProcessor, session: "SparkSession"
) -> tuple[RecordingHandle, str | None]:
    """What init() asks for; or why that cannot be told, which Spark will say better."""
    handle = RecordingHandle(lambda schema: parsed(schema, session))
    try:
        copy = pickle.loads(cloudpickle.dumps(processor))  # type: ignore[no-untyped-call]
        copy.init(handle)
        copy.close()
    except Exception as error:
        return handle, f"init() fails on the driver: {type(error).__name__}: {error}"
    return handle, None
