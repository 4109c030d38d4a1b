"""Operators that a restored query has and its checkpoint does not: what Spark must find of them.

Spark goes on from a checkpoint only if its metadata lists every operator of the plan. What that
metadata has to say depends on the kind of operator, and here is what Spark 4.2 and 4.3 expect.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sparkckpt.errors import OperatorMappingError

JOIN = "symmetricHashJoin"
JOIN_FORMAT = "spark.sql.streaming.join.stateFormatVersion"
_JOIN_STORES = tuple(
    f"{side}-{kind}"
    for side in ("left", "right")
    for kind in ("keyToNumValues", "keyWithIndexToValue")
)
_ONE_STORE = ("default",)
_PROCESSORS = (
    "transformWithStateExec",
    "transformWithStateInPandasExec",
    "transformWithStateInPySparkExec",
)
_AGGREGATIONS = ("stateStoreSave", "StatefulStreamlineAggregate")
_LIMIT = "globalLimit"
_GLOBAL = "global"
"""The mode of an aggregation without keys: like a limit it is in one partition."""
_OTHERS = (
    *_AGGREGATIONS,
    "sessionWindowStateStoreSaveExec",
    "dedupe",
    "dedupeWithinWatermark",
    "flatMapGroupsWithState",
    "applyInPandasWithState",
    _LIMIT,
)
_TIME_MODES = ("NoTime", "ProcessingTime", "EventTime")
_OUTPUT_MODES = ("Append", "Update", "Complete")


@dataclass(frozen=True)
class NewOperator:
    """An operator that starts empty; with properties Spark keeps its metadata in version 2."""

    name: str
    stores: tuple[str, ...]
    properties: Mapping[str, object] | None = None
    keyed: bool = True
    modes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """What it was described with."""
        return ":".join((self.name, *self.modes))


def new_operator(operator_id: int, text: str, confs: Mapping[str, str]) -> NewOperator:
    """The operator that `NAME` describes; of transformWithState `NAME:TIMEMODE:OUTPUTMODE`, and of
    an aggregation without keys `NAME:global`.

    `confs` are the query's settings, which decide on the stores of a join.
    """
    name, *modes = text.split(":")
    if operator_id < 0:
        raise OperatorMappingError.addition(operator_id, text, "ids begin at 0")
    if name in _PROCESSORS:
        properties = _processor_properties(operator_id, text, modes)
        return NewOperator(name, _ONE_STORE, properties, modes=tuple(modes))
    if name in _AGGREGATIONS and modes == [_GLOBAL]:
        return NewOperator(name, _ONE_STORE, keyed=False, modes=(_GLOBAL,))
    if name != JOIN and name not in _OTHERS:
        known = ", ".join((*_OTHERS, JOIN, *_PROCESSORS))
        raise OperatorMappingError.addition(operator_id, text, f"the operators are {known}")
    if modes:
        raise OperatorMappingError.addition(operator_id, text, f"{name} takes no {':'.join(modes)}")
    if name == JOIN:
        if int(confs.get(JOIN_FORMAT, "1")) < 3:
            return NewOperator(name, _JOIN_STORES)
        return NewOperator(name, _ONE_STORE, {"useVirtualColumnFamilies": True})
    return NewOperator(name, _ONE_STORE, keyed=name != _LIMIT)


def _processor_properties(operator_id: int, text: str, modes: list[str]) -> dict[str, object]:
    """Spark refuses a processor whose modes differ from those in its metadata."""
    match modes:
        case [time_mode, output_mode] if time_mode in _TIME_MODES and output_mode in _OUTPUT_MODES:
            return {"timeMode": time_mode, "outputMode": output_mode, "stateVariables": []}
    raise OperatorMappingError.addition(
        operator_id,
        text,
        "the modes of a processor must be given too, as NAME:TIMEMODE:OUTPUTMODE, with one of "
        f"{', '.join(_TIME_MODES)} and one of {', '.join(_OUTPUT_MODES)}",
    )
