"""Run a streaming job, stop it after any batch, restart it from its checkpoint, collect its output.

A `Job` is pure description: the rows of every batch, the transformation, the output mode. Batch i
is the i-th file of each input directory, and batches without data are switched off, so two runs of
a job have the same batches wherever they were stopped, and their outputs can be compared batch by
batch. A run that is restarted also drops every loaded state store: what it then knows, it has read
from the checkpoint's files.
"""

import itertools
import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming import StreamingQuery

Rows = Sequence[Mapping[str, Any]]
Sources = Mapping[str, DataFrame]
Output = dict[int, list[str]]
"""The canonical rows of each batch."""

STATE_STORE = "spark.sql.streaming.stateStore."
PARTITIONS = "spark.sql.shuffle.partitions"
ROCKSDB_PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
FIRST_MTIME = 1_700_000_000

RUN_CONFS = {
    PARTITIONS: "3",
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    STATE_STORE + "maintenanceInterval": "1s",
}


@dataclass(frozen=True)
class Backend:
    """A state backend: the confs that select it, and those that take turns at each restart."""

    name: str
    confs: Mapping[str, str] = field(default_factory=dict)
    segment_confs: Sequence[Mapping[str, str]] = ({},)

    def confs_of(self, segment: int) -> dict[str, str]:
        return {**self.confs, **self.segment_confs[segment % len(self.segment_confs)]}


ORACLE = Backend(
    "Spark's RocksDB",
    {
        STATE_STORE + "providerClass": ROCKSDB_PROVIDER,
        STATE_STORE + "checkpointFormatVersion": "1",
        STATE_STORE + "rocksdb.changelogCheckpointing.enabled": "true",
        PARTITIONS: "1",
    },
)
"""One partition: the result of a query does not depend on it, and it is the fastest."""

FULL = "SPARKCKPT_TEST_FULL" in os.environ
"""Whether every example runs: `make test-full`."""

SPARKCKPT = Backend(
    "sparkckpt",
    {STATE_STORE + "sparkckpt.merge.maxDeltas": "3"},
    segment_confs=(
        {STATE_STORE + "sparkckpt.memory.limit": "16k"},
        {STATE_STORE + "sparkckpt.inlineThreshold": "0"},
    ),
)
"""Before the first restart change sets stand in the handle, after it in files of their own; and
the state moves from memory to RocksDB in the middle of a batch, or stays in memory."""


@dataclass(frozen=True)
class Job:
    """A streaming query over one or more sources; `batches[i][source]` are the rows of batch i."""

    schemas: Mapping[str, str]
    batches: Sequence[Mapping[str, Rows]]
    transform: Callable[[Sources], DataFrame]
    output_mode: str = "append"
    confs: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def of(
        schema: str,
        batches: Sequence[Rows],
        transform: Callable[[DataFrame], DataFrame],
        output_mode: str = "append",
        confs: Mapping[str, str] | None = None,
    ) -> "Job":
        """A job over a single source."""
        return Job(
            {"in": schema},
            [{"in": rows} for rows in batches],
            lambda sources: transform(sources["in"]),
            output_mode,
            confs or {},
        )


def feed(job: Job, workdir: Path, batches: Collection[int]) -> None:
    """Put the input files of these batches in place. Modification times fix their order."""
    for batch in batches:
        for source in job.schemas:
            directory = workdir / "input" / source
            directory.mkdir(parents=True, exist_ok=True)
            hidden = directory / f".{batch:05d}"
            hidden.write_text(
                "".join(json.dumps(row) + "\n" for row in job.batches[batch].get(source, ()))
            )
            os.utime(hidden, (FIRST_MTIME + batch, FIRST_MTIME + batch))
            hidden.rename(directory / f"{batch:05d}.json")


def session_for(spark: SparkSession, confs: Mapping[str, str]) -> SparkSession:
    """A session of its own for these confs, on the same context."""
    session = spark.newSession()
    for key, value in {**RUN_CONFS, **confs}.items():
        session.conf.set(key, value)
    return session


def open_sources(session: SparkSession, job: Job, workdir: Path) -> Sources:
    def read(source: str, schema: str) -> DataFrame:
        directory = workdir / "input" / source
        directory.mkdir(parents=True, exist_ok=True)
        return (
            session.readStream.schema(schema).option("maxFilesPerTrigger", 1).json(str(directory))
        )

    return {source: read(source, schema) for source, schema in job.schemas.items()}


BatchFunction = Callable[[DataFrame, int], None]


AVAILABLE_NOW: Mapping[str, Any] = {"availableNow": True}
CONTINUALLY: Mapping[str, Any] = {"processingTime": "0 seconds"}


def start(
    session: SparkSession,
    job: Job,
    workdir: Path,
    on_batch: BatchFunction,
    trigger: Mapping[str, Any] = AVAILABLE_NOW,
) -> StreamingQuery:
    """Start the job on the checkpoint in `workdir`; by default it ends with its input."""
    return (
        job.transform(open_sources(session, job, workdir))
        .writeStream.outputMode(job.output_mode)
        .option("checkpointLocation", str(checkpoint_of(workdir)))
        .trigger(**trigger)
        .foreachBatch(on_batch)
        .start()
    )


def checkpoint_of(workdir: Path) -> Path:
    return workdir / "checkpoint"


def run(
    spark: SparkSession,
    job: Job,
    workdir: Path,
    backend: Backend,
    restart_after: Collection[int] = (),
    at_restart: Callable[[int, Path, str], None] | None = None,
) -> Output:
    """Run the whole job; after each batch of `restart_after` stop it, unload its state, go on.

    `at_restart` is called with the number of the restart, from 0, the checkpoint, and the id of the
    run that has ended, whose coordinator may still be at work.
    """
    output: Output = {}
    run_id = ""

    def collect(rows: DataFrame, batch: int) -> None:
        output[batch] = canonical_rows(rows.collect())

    for segment, batches in enumerate(segments(len(job.batches), restart_after)):
        if segment and at_restart is not None:
            at_restart(segment - 1, checkpoint_of(workdir), run_id)
        feed(job, workdir, batches)
        session = session_for(spark, {**backend.confs_of(segment), **job.confs})
        query = start(session, job, workdir, collect)
        run_id = query.runId
        query.awaitTermination()
        unload_state(spark)
        assert sorted(output) == list(range(batches.stop)), (
            f"batches {sorted(output)} ran, expected {batches.stop}"
        )
    return output


def segments(count: int, restart_after: Collection[int]) -> list[range]:
    """The batches between restarts."""
    bounds = [0, *sorted(batch + 1 for batch in restart_after if batch + 1 < count), count]
    return [range(first, last) for first, last in itertools.pairwise(bounds)]


def unload_state(spark: SparkSession) -> None:
    """Close every state store of this JVM, so that the next batch loads its state from files."""
    companion = getattr(spark._jvm.org.apache.spark.sql.execution.streaming.state, "StateStore$")
    stores = getattr(companion, "MODULE$")
    # stop() waits for maintenance under the lock that a maintenance task may be waiting for.
    stores.stopMaintenanceTaskWithoutLock()
    stores.stop()


def assert_same_after_restart(
    spark: SparkSession,
    job: Job,
    workdir: Path,
    backend: Backend,
    restart_after: Collection[int] | None = None,
) -> Output:
    """The main shape: restarted in the middle, the rows of an unbroken run on Spark's RocksDB."""
    middle = {(len(job.batches) - 1) // 2} if restart_after is None else restart_after
    expected = run(spark, job, workdir / "oracle", ORACLE)
    actual = run(spark, job, workdir / "subject", backend, middle)
    assert actual == expected
    assert any(expected.values()), "the job has no output: it shows nothing"
    return expected


def canonical_rows(rows: Collection[Row]) -> list[str]:
    """Rows as sorted text: unlike ==, it tells 0.0 from -0.0 and 1 from 1.0, and NaN equals NaN."""
    return sorted(canonical(row) for row in rows)


def canonical(value: Any) -> str:
    match value:
        case Row():
            return (
                "("
                + ", ".join(f"{name}={canonical(value[name])}" for name in value.__fields__)
                + ")"
            )
        case dict():
            entries = sorted(f"{canonical(key)}: {canonical(item)}" for key, item in value.items())
            return "{" + ", ".join(entries) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(canonical, value)) + "]"
        case datetime() | date():
            return value.isoformat()
        case bytes() | bytearray():
            return "x" + bytes(value).hex()
        case str() if len(value) > 256:
            return f"{value[:32]!r}...{len(value)} characters, hash {hash(value)}"
        case _:
            return repr(value)
