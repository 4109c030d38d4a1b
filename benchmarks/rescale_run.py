"""The child process of the rescale benchmark: fills a checkpoint, or continues a rescaled one.

`fill` is a run at the first parallelism. `first` is a new process that runs the first batch at the
other one; where the contestant is Spark's own store, it also rescales, since Spark does that with a
job of a running session. Before anything is timed, the same is done with a checkpoint of one key,
so that neither side pays for loading classes.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

import sparkckpt
from benchmarks.contestants import CONTESTANTS, Contestant, start_session
from benchmarks.results import Job, write_json
from benchmarks.run import (
    UnexpectedRunError,
    checksum_of,
    java_version,
    start_query,
    stop_jvm,
    timed_batch,
    verify,
)
from benchmarks.workload import InputFiles, publish


@dataclass(frozen=True)
class Filled:
    """What the first run has left."""

    spark_version: str
    java_version: str


@dataclass(frozen=True)
class First:
    """The first batch after the rescaling; `rescale_seconds` only where this process rescales."""

    rescale_seconds: float
    batch_seconds: float
    checksum: int


def main(arguments: Sequence[str]) -> None:
    mode, job_path, result_path = arguments
    job = Job.read(Path(job_path))
    contestant = CONTESTANTS[job.contestant]
    session = start_session(
        contestant, job.memory, f"{round(job.maintenance_seconds * 1000)}ms", f"{job.directory}/tmp"
    )
    result = fill(session, job) if mode == "fill" else first(session, contestant, job)
    write_json(result, Path(result_path))
    stop_jvm(session)


def fill(session: SparkSession, job: Job) -> Filled:
    files = InputFiles.in_directory(Path(job.input))
    directory = Path(job.directory)
    publish(files.fill + files.warmup, directory / "in")
    run_all(session, directory)
    publish([files.single_row], directory / "small" / "in")
    run_all(session, directory / "small")
    return Filled(session.version, java_version(session))


def run_all(session: SparkSession, directory: Path) -> None:
    query = start_query(session, directory / "in", directory / "checkpoint")
    query.processAllAvailable()
    query.stop()


def first(session: SparkSession, contestant: Contestant, job: Job) -> First:
    files = InputFiles.in_directory(Path(job.input))
    directory = Path(job.directory)
    small = directory / "small"
    rescale(session, contestant, small / "checkpoint", job.target_parallelism)
    publish([files.restart], small / "in")
    timed_batch(session, small)
    seconds = 0.0
    if not contestant.is_sparkckpt:
        begin = time.perf_counter()
        rescale(session, contestant, directory / "checkpoint", job.target_parallelism)
        seconds = time.perf_counter() - begin
    publish([files.restart], directory / "in")
    batch_seconds, report = timed_batch(session, directory)
    verify(report, contestant, job.keys, job.changes)
    partitions = report["stateOperators"][0]["numStateStoreInstances"]
    if partitions != job.target_parallelism:
        raise UnexpectedRunError(
            f"The batch ran in {partitions} partitions, not {job.target_parallelism}"
        )
    return First(seconds, batch_seconds, checksum_of(report))


def rescale(
    session: SparkSession, contestant: Contestant, checkpoint: Path, parallelism: int
) -> None:
    if contestant.is_sparkckpt:
        sparkckpt.rescale(checkpoint, parallelism)
    else:
        session._streamingCheckpointManager.repartition(str(checkpoint), parallelism)


if __name__ == "__main__":
    main(sys.argv[1:])
