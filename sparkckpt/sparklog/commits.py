"""Spark's commit log: which batches are done, and with which version of each state store.

Versions 2 and 3 name the ids of the state stores. Version 3 adds what it knows of the sinks, which
is not read.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sparkckpt.fields import Fields
from sparkckpt.sparklog.lines import json_object, versioned_lines

NEWEST_VERSION = 3


@dataclass(frozen=True)
class CommitEntry:
    """`commits/<batch>`; `state_ids[operator][partition]` has one id for each store."""

    batch_id: int
    next_watermark_ms: int
    state_ids: Mapping[int, tuple[tuple[str, ...], ...]]


def parse_commit(data: bytes, where: str, batch_id: int) -> CommitEntry:
    """The entry of a batch in these bytes; `where` names them in messages."""
    version, lines = versioned_lines(data, where, NEWEST_VERSION)
    entry = json_object(lines[0] if lines else "", "its entry", where)
    return CommitEntry(
        batch_id=batch_id,
        next_watermark_ms=entry.integer("nextBatchWatermarkMs"),
        state_ids=_state_ids(entry) if version > 1 and entry.has("stateUniqueIds") else {},
    )


def _state_ids(entry: Fields) -> dict[int, tuple[tuple[str, ...], ...]]:
    operators = entry.object("stateUniqueIds", "its stateUniqueIds")
    state_ids = {}
    for operator in operators.names():
        operators.require(operator.isdecimal(), f"{operator!r} is no operator")
        partitions = operators.array(operator)
        operators.require(all(map(_are_ids, partitions)), f"operator {operator} has other than ids")
        state_ids[int(operator)] = tuple(map(tuple, partitions))
    return state_ids


def _are_ids(stores: Any) -> bool:
    return type(stores) is list and all(type(store) is str and store for store in stores)
