"""Tells Python code of completed and aborted checkpoints: Flink's notifyCheckpointComplete.

The driver's JVM hears of a checkpoint from the coordinator and calls back through py4j, on a thread
that no query waits for. A callback may take its time, but the events behind it wait; what it raises
is logged by Spark and disturbs nothing. An event says that a checkpoint is complete; that none came
does not say the opposite, since a driver may die in between.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

from sparkckpt.errors import ClassicSessionNeededError, PluginNotActiveError
from sparkckpt.launch import PLUGINS_KEY
from sparkckpt.session import PLUGIN

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject
    from pyspark.sql import SparkSession

_INTERFACE = "org.apache.spark.sql.sparkckpt.coordinator.CheckpointListener"


@dataclass(frozen=True)
class CheckpointEvent:
    """A checkpoint that was completed or aborted.

    A completed one has an id, the path of its directory and figures; an aborted one has a reason,
    one of CheckpointFailureReason, and a message.
    """

    kind: Literal["completed", "aborted"]
    query_id: str
    run_id: str
    batch_id: int
    checkpoint_id: int | None = None
    path: str | None = None
    reason: str | None = None
    message: str | None = None
    timestamp_ms: int | None = None
    duration_ms: int | None = None
    ack_spread_ms: int | None = None
    sync_ms: int | None = None
    write_ms: int | None = None
    state_bytes: int | None = None
    delta_bytes: int | None = None
    files: int | None = None
    new_files: int | None = None
    slowest: str | None = None

    @classmethod
    def from_json(cls, kind: Literal["completed", "aborted"], text: str) -> "CheckpointEvent":
        """The event in a frame's header; fields that a newer release has added are ignored."""
        values: dict[str, Any] = json.loads(text)
        known: dict[str, Any] = {f.name: values.get(_camel_case(f.name)) for f in fields(cls)}
        known["kind"] = kind
        return cls(**known)


class CheckpointSubscription:
    """A registered callback; `remove` ends it."""

    def __init__(self, subscription: "JavaObject") -> None:
        self._subscription = subscription

    def remove(self) -> None:
        self._subscription.remove()


def on_checkpoint(
    spark: "SparkSession", callback: Callable[[CheckpointEvent], object]
) -> CheckpointSubscription:
    """Call `callback` for every checkpoint of every query of this application, in their order.

    >>> handle = sparkckpt.on_checkpoint(spark, lambda event: print(event.kind, event.path))
    >>> handle.remove()
    """
    if not hasattr(spark, "_jsparkSession"):
        raise ClassicSessionNeededError("sparkckpt.on_checkpoint")
    from pyspark.java_gateway import ensure_callback_server_started

    context = spark.sparkContext
    if PLUGIN not in (context.getConf().get(PLUGINS_KEY) or "").split(","):
        raise PluginNotActiveError("sparkckpt.on_checkpoint", PLUGIN)
    gateway: Any = context._gateway
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    package = gateway.jvm.org.apache.spark.sql.sparkckpt.coordinator
    return CheckpointSubscription(package.CheckpointListeners.add(_JavaListener(callback)))


class _JavaListener:
    """The callback as py4j shows it to the JVM."""

    def __init__(self, callback: Callable[[CheckpointEvent], object]) -> None:
        self._callback = callback

    def onCheckpointCompleted(self, event: "JavaObject") -> None:
        self._callback(CheckpointEvent.from_json("completed", event.json()))

    def onCheckpointAborted(self, event: "JavaObject") -> None:
        self._callback(CheckpointEvent.from_json("aborted", event.json()))

    class Java:
        implements = (_INTERFACE,)


def _camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
