"""Runs a session's stateful Python on sparkckpt's operators, with the user's code unchanged.

The methods of GroupedData are wrapped once in a process; for a session that is accelerated they
define the same query with a function that also knows how to work in-band. Whether it does is
decided by the JVM, batch by batch. What cannot work in-band is defined as Spark does it, with one
line in the log that says why.
"""

import json
import logging
from collections.abc import Callable
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from sparkckpt.errors import ClassicSessionNeededError, PluginNotActiveError
from sparkckpt.launch import PLUGINS_KEY
from sparkckpt.session import PLUGIN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.group import GroupedData

    from sparkckpt.processor.stateful import Flavour

_log = logging.getLogger("sparkckpt")
_accelerated: set[str] = set()
_originals: dict[str, Callable[..., Any]] = {}


def accelerate(spark: "SparkSession", enabled: bool = True) -> None:
    """From here on the session's stateful Python functions and processors run in-band.

    That is `applyInPandasWithState`, `transformWithState` and `transformWithStateInPandas`, with
    the same results. Queries that have been defined before stay as they are.

    >>> sparkckpt.accelerate(spark)
    """
    require_plugin(spark, "sparkckpt.accelerate")
    session = _id_of(spark)
    if not enabled:
        _accelerated.discard(session)
        return
    from sparkckpt.processor.shipping import ship_to_executors

    ship_to_executors(spark)
    _wrap_methods()
    _accelerated.add(session)


def require_plugin(spark: "SparkSession", what: str) -> None:
    if not hasattr(spark, "_jsparkSession"):
        raise ClassicSessionNeededError(what)
    plugins = spark.sparkContext.getConf().get(PLUGINS_KEY) or ""
    if PLUGIN not in plugins.split(","):
        raise PluginNotActiveError(what, PLUGIN)


def register(spark: "SparkSession", spec: dict[str, Any]) -> int:
    """Tells the driver's JVM about a processor; the number is for the function's name."""
    jvm: Any = spark._jvm
    number: int = jvm.org.apache.spark.sql.sparkckpt.inband.ProcessorSpecs.register(
        json.dumps({"version": 1, **spec})
    )
    return number


def _id_of(spark: "SparkSession") -> str:
    session: Any = spark._jsparkSession
    return str(session.sessionUUID())


def _wrap_methods() -> None:
    from pyspark.sql.group import GroupedData

    for name, define in _DEFINITIONS.items():
        if name not in _originals:
            original = getattr(GroupedData, name)
            _originals[name] = original
            setattr(GroupedData, name, _dispatching(original, define))


def _dispatching(original: Callable[..., Any], define: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def method(self: "GroupedData", *args: Any, **kwargs: Any) -> Any:
        if _id_of(self.session) in _accelerated:
            return define(original, self, *args, **kwargs)
        return original(self, *args, **kwargs)

    return method


def falls_back(what: str, why: str | None) -> bool:
    if why is not None:
        _log.warning("%s runs on Spark's own operator: %s.", what, why)
    return why is not None


def why_not_in(session: "SparkSession") -> str | None:
    """Why nothing of this session can run in-band."""
    key = "spark.sql.execution.pyspark.binaryAsBytes"
    if str(session.conf.get(key, "true")).lower() == "false":
        return f"{key} is false, and state that travels in-band gives bytes"
    return None


def _apply_in_pandas_with_state(
    original: Callable[..., "DataFrame"],
    grouped: "GroupedData",
    func: Callable[..., Any],
    outputStructType: Any,
    stateStructType: Any,
    outputMode: str,
    timeoutConf: str,
) -> "DataFrame":
    from sparkckpt.processor.closure import InBandFunction
    from sparkckpt.processor.frames import PandasGroups
    from sparkckpt.processor.schemas import parsed, why_not

    session = grouped.session
    output, state = parsed(outputStructType, session), parsed(stateStructType, session)
    name = getattr(func, "__name__", type(func).__name__)
    what = f"applyInPandasWithState({name})"
    why = why_not_in(session) or why_not(input=grouped._df.schema, output=output, state=state)
    if not falls_back(what, why):
        number = register(session, {"host": "groups"})
        func = InBandFunction(PandasGroups(func, output, state), func, name, number)
    return original(grouped, func, output, state, outputMode, timeoutConf)


def _transform_with_state(
    flavour: "Flavour",
    original: Callable[..., "DataFrame"],
    grouped: "GroupedData",
    statefulProcessor: Any,
    outputStructType: Any,
    outputMode: str,
    timeMode: str,
    initialState: "GroupedData | None" = None,
    eventTimeColumnName: str = "",
) -> "DataFrame":
    from sparkckpt.processor.processors import define_processor

    output = define_processor(
        flavour,
        grouped,
        statefulProcessor,
        outputStructType,
        outputMode,
        timeMode,
        initialState,
        eventTimeColumnName,
    )
    if output is not None:
        return output
    return original(
        grouped,
        statefulProcessor,
        outputStructType,
        outputMode,
        timeMode,
        initialState,
        eventTimeColumnName,
    )


_DEFINITIONS: dict[str, Callable[..., Any]] = {
    "applyInPandasWithState": _apply_in_pandas_with_state,
    "transformWithState": partial(_transform_with_state, "rows"),
    "transformWithStateInPandas": partial(_transform_with_state, "pandas"),
}
