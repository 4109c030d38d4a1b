"""The child process of the benchmark of processors: one job in one API on one backend.

Batches wait as files and follow each other without pause. The first is left out, which starts
workers, and so are all that begin while the JVM is still warming up: a stream runs for days. A slow
contestant is stopped once its time is up, with fewer batches measured.
"""

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

import sparkckpt
from benchmarks.contestants import CONTESTANTS, start_session
from benchmarks.results import write_json
from benchmarks.run import OBSERVATION, UnexpectedRunError, batch_reports, java_version, stop_jvm

SCHEMA = "k long, v long, ts timestamp"
POLL_SECONDS = 0.2
MAINTENANCE = "2s"


@dataclass(frozen=True)
class ProcessorJob:
    """All that a child process needs to know."""

    contestant: str
    keys: int
    input: str
    directory: str
    memory: str
    batches: int
    """So many are measured."""
    warmup: float
    """Batches that begin in so many seconds after the first are not."""
    seconds: float
    """After which it is stopped, once it has measured anything."""

    @staticmethod
    def read(path: Path) -> "ProcessorJob":
        return ProcessorJob(**json.loads(path.read_text()))


@dataclass(frozen=True)
class Speed:
    """What a run has measured, batch by batch."""

    rows: list[int]
    milliseconds: list[int]
    checksum: int
    """Over what the second batch put out: the same for all APIs of a job."""
    spark_version: str
    java_version: str


def main(arguments: Sequence[str]) -> None:
    mode, job_path, result_path = arguments
    from benchmarks.processors import SUBJECTS, Subject

    job = ProcessorJob.read(Path(job_path))
    subject: Subject = SUBJECTS[job.contestant]
    session = start_session(
        CONTESTANTS[subject.backend], job.memory, MAINTENANCE, f"{job.directory}/tmp"
    )
    session.conf.set("spark.sql.shuffle.partitions", "2")
    if subject.accelerated:
        sparkckpt.accelerate(session)
    write_json(measure(session, job, subject, mode), Path(result_path))
    stop_jvm(session)


def measure(session: Any, job: ProcessorJob, subject: Any, mode: str) -> Speed:
    from benchmarks.processors_jobs import TRANSFORMS

    rows = session.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(job.input)
    result = TRANSFORMS[mode, subject.api](rows)
    checksum = F.bit_xor(F.xxhash64(*result.columns)).alias("checksum")
    query = (
        result.observe(OBSERVATION, checksum)
        .writeStream.outputMode("update")
        .format("noop")
        .option("checkpointLocation", f"{job.directory}/checkpoint")
        .start()
    )
    _wait(query, job)
    reports = batch_reports(query)
    query.stop()
    if len(reports) < 2:
        raise UnexpectedRunError(f"{subject.title} has not done two batches in its time")
    measured = _measured(reports, job) or reports[1:][-job.batches :]
    return Speed(
        [report["numInputRows"] for report in measured],
        [report["durationMs"]["triggerExecution"] for report in measured],
        reports[1]["observedMetrics"][OBSERVATION]["checksum"] or 0,
        session.version,
        java_version(session),
    )


def _measured(reports: Sequence[Any], job: ProcessorJob) -> Sequence[Any]:
    begun = [_time(report) for report in reports]
    warm = [
        report
        for report, at in zip(reports[1:], begun[1:], strict=True)
        if at - begun[0] >= job.warmup
    ]
    return warm[: job.batches]


def _time(report: Any) -> float:
    text = report["timestamp"].replace("Z", "+00:00")  # which Python 3.10 does not read
    return datetime.fromisoformat(text).timestamp()


def _wait(query: StreamingQuery, job: ProcessorJob) -> None:
    """Until enough is measured, no input is left, or the time is up."""
    waiting = len(list(Path(job.input).glob("*.parquet")))
    end = time.monotonic() + job.seconds
    while True:
        if (failure := query.exception()) is not None:
            raise failure
        reports = batch_reports(query)
        is_late = len(reports) >= 2 and time.monotonic() > end
        if is_late or len(reports) >= waiting or len(_measured(reports, job)) >= job.batches:
            return
        time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1:])
