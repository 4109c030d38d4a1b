"""Has Spark move the state: hands the JVM's transfer job what to do and watches it.

A session is used if one is there, and made if not. What the job says comes back as values, and what
goes wrong in it as an error of ours.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sparkckpt.errors import ClassicSessionNeededError, PluginNotActiveError, TransferFailedError
from sparkckpt.session import PLUGIN, configure
from sparkckpt.sparklog.edits import StateIds
from sparkckpt.transfer.report import MovedOperator
from sparkckpt.transfer.target import Transfer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Progress = Callable[[int, int], None]
"""Told, again and again, how many tasks are done, and how many there are."""

_JOB_CLASS = "org.apache.spark.sql.sparkckpt.transfer.TransferJob"
_QUIET = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
_POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Side:
    """How one side of a transfer keeps its state; without key groups, as Spark does by itself."""

    parallelism: int
    confs: Mapping[str, str]
    format_version: int
    max_parallelism: int | None = None


@dataclass(frozen=True)
class Moved:
    """What has arrived in the target."""

    operators: tuple[MovedOperator, ...]
    state_ids: StateIds


@contextmanager
def transfer_session(
    given: "SparkSession | None", confs: Mapping[str, str]
) -> "Iterator[SparkSession]":
    """The session given, or the running one, or else one that ends with this."""
    from pyspark.sql import SparkSession

    running = given or SparkSession.getActiveSession()
    if running is not None:
        yield _with_job(running)
        return
    builder = SparkSession.builder.appName("sparkckpt-transfer")
    for key, value in {**_QUIET, **confs}.items():
        builder.config(key, value)
    made = configure(builder).getOrCreate()
    try:
        yield made
    finally:
        made.stop()


def _with_job(session: "SparkSession") -> "SparkSession":
    what = "Moving a checkpoint"
    if not hasattr(session, "_jsparkSession"):
        raise ClassicSessionNeededError(what)
    jvm = session.sparkContext._jvm
    assert jvm is not None
    if not jvm.org.apache.spark.util.Utils.classIsLoadable(_JOB_CLASS):
        raise PluginNotActiveError(what, PLUGIN)
    return session


def move_state(
    session: "SparkSession", transfer: Transfer, source: Side, target: Side, progress: Progress
) -> Moved:
    """Reads all state of the source, and writes it below the target."""
    if transfer.source.batch_id is None:
        return Moved((), {})
    request = {
        "batchId": transfer.source.batch_id,
        "source": _side(transfer.source_url, source),
        "target": _side(transfer.target_url, target),
        "operators": [
            {
                "operatorId": operator.operator_id,
                "metadata": operator.metadata.path,
                "schemas": operator.schemas,
                "ids": operator.ids,
            }
            for operator in transfer.source.operators
        ],
    }
    jvm = session.sparkContext._jvm
    assert jvm is not None
    job = jvm.org.apache.spark.sql.sparkckpt.transfer.TransferJob(
        session._jsparkSession, json.dumps(request)
    )
    _watch(job, progress)
    failure = job.failure()
    if failure is not None:
        raise TransferFailedError(transfer.source_url, transfer.target_url, str(failure))
    return _moved(json.loads(job.result()))


def _side(url: str, side: Side) -> dict[str, object]:
    fields: dict[str, object] = {
        "checkpoint": url,
        "parallelism": side.parallelism,
        "confs": dict(side.confs),
        "formatVersion": side.format_version,
    }
    if side.max_parallelism is not None:
        fields["maxParallelism"] = side.max_parallelism
    return fields


def _watch(job: Any, progress: Progress) -> None:
    job.start()
    try:
        while not job.isDone():
            if job.tasksTotal():
                progress(job.tasksDone(), job.tasksTotal())
            time.sleep(_POLL_SECONDS)
    except BaseException:
        job.cancel()
        raise
    progress(job.tasksDone(), job.tasksTotal())


def _moved(operators: list[dict[str, Any]]) -> Moved:
    return Moved(
        tuple(
            MovedOperator(
                operator["operatorId"],
                operator["operatorName"],
                tuple(operator["stores"]),
                operator["parallelism"],
                operator["rows"],
            )
            for operator in operators
        ),
        {operator["operatorId"]: operator["ids"] for operator in operators},
    )
