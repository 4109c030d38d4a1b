"""The child process: runs the streaming job of one contestant and writes down what it saw.

`measure` fills the state, warms up and measures; `restart` is a new process that continues the
checkpoint which `measure` has left. Neither compares anything. Both refuse to report a run in which
another backend than the contestant's was at work, or in which a batch changed other than the
expected number of keys.
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.contestants import CONTESTANTS, Contestant, start_session
from benchmarks.jvm import GarbageMeter
from benchmarks.results import Batch, Job, Measured, Restart, write_json
from benchmarks.statedir import StateDirWatch, written_between
from benchmarks.workload import SCHEMA, InputFiles, publish

OBSERVATION = "output"


class UnexpectedRunError(Exception):
    """The run was not the one that was to be measured."""


def main(arguments: Sequence[str]) -> None:
    mode, job_path, result_path = arguments
    job = Job.read(Path(job_path))
    contestant = CONTESTANTS[job.contestant]
    session = start_session(
        contestant, job.memory, f"{round(job.maintenance_seconds * 1000)}ms", f"{job.directory}/tmp"
    )
    result = {"measure": measure, "restart": restart}[mode](session, contestant, job)
    write_json(result, Path(result_path))
    stop_jvm(session)


def measure(session: SparkSession, contestant: Contestant, job: Job) -> Measured:
    """Fill and warm-up batches, then the measured ones, each part followed by silence."""
    files = InputFiles.in_directory(Path(job.input))
    directory = Path(job.directory)
    quiet_seconds = 2 * job.maintenance_seconds + 1
    publish(files.fill + files.warmup, directory / "in")
    with StateDirWatch(directory / "checkpoint" / "state") as watch:
        query = start_query(session, directory / "in", directory / "checkpoint")
        query.processAllAvailable()
        before = watch.settle(quiet_seconds)
        with GarbageMeter(session.sparkContext._gateway) as meter:
            publish(files.measured, directory / "in")
            query.processAllAvailable()
        after = watch.settle(quiet_seconds)
    reports = batch_reports(query)[-len(files.measured) :]
    query.stop()
    for report in reports:
        verify(report, contestant, job.keys, job.changes)
    return Measured(
        [batch_of(report) for report in reports],
        written_between(before, after),
        meter.garbage,
        checksum_of(reports[-1]),
        session.version,
        java_version(session),
    )


def restart(session: SparkSession, contestant: Contestant, job: Job) -> Restart:
    """Times the restart on the filled checkpoint, and for comparison on one that holds one key.

    The small one is restarted like the other, after a first round that warms the JVM up: the
    difference of the two times is what the state itself costs, without loading classes and
    compiling plans.
    """
    files = InputFiles.in_directory(Path(job.input))
    directory = Path(job.directory)
    restart_of_small(session, files, directory / "warm-up")
    empty_seconds = restart_of_small(session, files, directory / "small")
    publish([files.restart], directory / "in")
    full_seconds, report = timed_batch(session, directory)
    verify(report, contestant, job.keys, job.changes)
    load = contestant.load_metric
    return Restart(
        full_seconds,
        empty_seconds,
        state_of(report)["customMetrics"][load] if load else None,
        checksum_of(report),
    )


def restart_of_small(session: SparkSession, files: InputFiles, directory: Path) -> float:
    publish([files.single_row], directory / "in")
    timed_batch(session, directory)
    publish([files.restart], directory / "in")
    seconds, _ = timed_batch(session, directory)
    return seconds


def timed_batch(session: SparkSession, directory: Path) -> tuple[float, Any]:
    """Seconds from start() until the one batch that waits is committed, and its report."""
    begin = time.perf_counter()
    query = start_query(session, directory / "in", directory / "checkpoint")
    query.processAllAvailable()
    seconds = time.perf_counter() - begin
    reports = batch_reports(query)
    query.stop()
    if len(reports) != 1:
        raise UnexpectedRunError(f"The restart on {directory} ran {len(reports)} batches, not 1")
    return seconds, reports[0]


def start_query(session: SparkSession, source: Path, checkpoint: Path) -> StreamingQuery:
    """The job: count and sum per key, changed keys put out into nothing, batch after batch."""
    rows = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(source))
    totals = rows.groupBy("k").agg(F.count("*").alias("c"), F.sum("v").alias("s"))
    checksum = F.bit_xor(F.xxhash64("k", "c", "s")).alias("checksum")
    return (
        totals.observe(OBSERVATION, checksum)
        .writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", str(checkpoint))
        .start()
    )


def java_version(session: SparkSession) -> str:
    assert session._jvm is not None
    return str(session._jvm.java.lang.System.getProperty("java.version"))


def stop_jvm(session: SparkSession) -> None:
    """Ends the session and waits for its JVM, which would disturb the next run and its clean-up."""
    gateway = session.sparkContext._gateway
    assert gateway is not None
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()


def batch_reports(query: StreamingQuery) -> list[Any]:
    """Progress reports of batches with input; an idle stream reports now and then, too."""
    return [report for report in query.recentProgress if report["numInputRows"] > 0]


def batch_of(report: Any) -> Batch:
    state = state_of(report)
    return Batch(
        report["durationMs"]["triggerExecution"],
        report["durationMs"]["addBatch"],
        state["allUpdatesTimeMs"],
        state["commitTimeMs"],
        {
            name: value
            for name, value in state["customMetrics"].items()
            if name.startswith("sparkckpt")
        },
    )


def verify(report: Any, contestant: Contestant, keys: int, changes: int) -> None:
    state = state_of(report)
    found = state["numRowsTotal"], state["numRowsUpdated"]
    if found != (keys, changes):
        raise UnexpectedRunError(
            f"Batch {report['batchId']} has (keys, changed keys) {found}, not {(keys, changes)}"
        )
    is_sparkckpt = CONTESTANTS["sparkckpt"].signature_metric in state["customMetrics"]
    if (
        contestant.signature_metric not in state["customMetrics"]
        or is_sparkckpt != contestant.is_sparkckpt
    ):
        raise UnexpectedRunError(f"The state store was not that of {contestant.title}")


def checksum_of(report: Any) -> int:
    return int(report["observedMetrics"][OBSERVATION]["checksum"])


def state_of(report: Any) -> Any:
    (state,) = report["stateOperators"]
    return state


if __name__ == "__main__":
    main(sys.argv[1:])
