"""The child process of the recovery benchmark: a driver whose executors, or itself, are killed.

`kills` fills the state, kills executors, and in the end kills its own JVM, as a crash would. `cold`
is a new driver that continues the checkpoint. The executors of a local-cluster are children of the
driver's JVM, by which they are found.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median

from pyspark.sql import SparkSession

from benchmarks.contestants import CONTESTANTS, start_session
from benchmarks.results import write_json
from benchmarks.run import (
    UnexpectedRunError,
    batch_reports,
    checksum_of,
    start_query,
    state_of,
    stop_jvm,
    timed_batch,
    verify,
)
from benchmarks.workload import InputFiles, publish

EXECUTORS = 2
EXECUTOR_CLASS = "CoarseGrainedExecutorBackend"
WAIT_SECONDS = 300
POLL_SECONDS = 0.002


@dataclass(frozen=True)
class RecoveryJob:
    """All that a child process needs to know."""

    contestant: str
    keys: int
    changes: int
    input: str
    directory: str
    memory: str
    maintenance_seconds: float
    rounds: int

    @staticmethod
    def read(path: Path) -> "RecoveryJob":
        return RecoveryJob(**json.loads(path.read_text()))


@dataclass(frozen=True)
class Kills:
    """By round: the ordinary batch before the kill, and from the kill to the batch's commit."""

    ordinary_seconds: list[float]
    recovery_seconds: list[float]
    load_seconds: list[float]
    """What the stores say that loading took, summed over them; empty if they do not say it."""
    checksums: list[int]


@dataclass(frozen=True)
class ColdStart:
    """From start() of a new driver to its first committed batch."""

    seconds: float
    checksum: int


def main(arguments: Sequence[str]) -> None:
    mode, job_path, result_path = arguments
    job = RecoveryJob.read(Path(job_path))
    session = start_session(
        CONTESTANTS[job.contestant],
        job.memory,
        f"{round(job.maintenance_seconds * 1000)}ms",
        f"{job.directory}/tmp-{mode}",
        master=f"local-cluster[{EXECUTORS},1,{_mebibytes(job.memory)}]",
        extra={"spark.executor.memory": job.memory},
    )
    wait_for_executors(session)
    if mode == "kills":
        write_json(kills(session, job), Path(result_path))
        kill_driver(session)
    else:
        write_json(cold(session, job), Path(result_path))
        stop_jvm(session)


def kills(session: SparkSession, job: RecoveryJob) -> Kills:
    files = InputFiles.in_directory(Path(job.input))
    directory = Path(job.directory)
    steady = len(files.measured) // job.rounds - 1
    publish(files.fill + files.warmup, directory / "in")
    query = start_query(session, directory / "in", directory / "checkpoint")
    query.processAllAvailable()
    load_metric = CONTESTANTS[job.contestant].load_metric
    ordinary, recovery, loads, checksums = [], [], [], []
    remaining = iter(files.measured)
    for number in range(job.rounds):
        publish([next(remaining) for _ in range(steady)], directory / "in")
        query.processAllAvailable()
        reports = batch_reports(query)[-steady:]
        for report in reports:
            verify(report, CONTESTANTS[job.contestant], job.keys, job.changes)
        ordinary.append(median(r["durationMs"]["triggerExecution"] for r in reports) / 1000)
        checksums.append(checksum_of(reports[-1]))
        wait_for_executors(session)
        victims = executors_of(session)
        recovery.append(kill_in_batch(victims[number % len(victims)], next(remaining), directory))
        query.processAllAvailable()
        if load_metric:
            struck = state_of(batch_reports(query)[-1])
            loads.append(struck["customMetrics"][load_metric] / 1000)
    return Kills(ordinary, recovery, loads, checksums)


def kill_in_batch(victim: int, file: Path, directory: Path) -> float:
    """Lets a batch begin, kills an executor, and waits for the commit; the seconds that took."""
    offsets, commits = directory / "checkpoint" / "offsets", directory / "checkpoint" / "commits"
    batch = str(1 + max(int(path.name) for path in offsets.iterdir() if path.name.isdigit()))
    publish([file], directory / "in")
    wait_until((offsets / batch).exists)
    os.kill(victim, signal.SIGKILL)
    begin = time.perf_counter()
    if (commits / batch).exists():
        raise UnexpectedRunError(f"Batch {batch} was over before the kill: it needs more changes")
    wait_until((commits / batch).exists)
    return time.perf_counter() - begin


def cold(session: SparkSession, job: RecoveryJob) -> ColdStart:
    directory = Path(job.directory)
    publish([InputFiles.in_directory(Path(job.input)).restart], directory / "in")
    seconds, report = timed_batch(session, directory)
    verify(report, CONTESTANTS[job.contestant], job.keys, job.changes)
    return ColdStart(seconds, checksum_of(report))


def wait_for_executors(session: SparkSession) -> None:
    """Until all are registered; those that were killed have been replaced by then."""
    context = session.sparkContext._jsc.sc()
    alive = f"{EXECUTORS} executors and the driver"

    def complete() -> bool:
        registered = context.getExecutorMemoryStatus().size() == EXECUTORS + 1
        return registered and len(executors_of(session)) == EXECUTORS

    wait_until(complete, alive, poll_seconds=0.1)


def executors_of(session: SparkSession) -> list[int]:
    """The process ids of the executors, the oldest first."""
    listed = subprocess.run(
        ["ps", "-A", "-o", "pid=,ppid=,command="], capture_output=True, text=True, check=True
    )
    parent = str(driver_of(session))
    processes = (line.split(None, 2) for line in listed.stdout.splitlines())
    return sorted(
        int(pid)
        for pid, parent_pid, command in processes
        if parent_pid == parent and EXECUTOR_CLASS in command
    )


def driver_of(session: SparkSession) -> int:
    gateway = session.sparkContext._gateway
    assert gateway is not None
    return int(gateway.jvm.java.lang.ProcessHandle.current().pid())


def kill_driver(session: SparkSession) -> None:
    """A crash: nothing is stopped, closed or flushed. Executors end once they miss the driver."""
    driver, executors = driver_of(session), executors_of(session)
    os.kill(driver, signal.SIGKILL)
    for executor in executors:
        try:
            wait_until(partial(_has_ended, executor), "its executors to end")
        except UnexpectedRunError:
            os.kill(executor, signal.SIGKILL)
    # Without its JVM the session cannot be closed: nothing of it may run at the interpreter's end.
    os._exit(0)


def _has_ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def wait_until(
    condition: Callable[[], bool], what: str = "a batch", poll_seconds: float = POLL_SECONDS
) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise UnexpectedRunError(f"Waited {WAIT_SECONDS} s for {what} in vain")
        time.sleep(poll_seconds)


def _mebibytes(memory: str) -> int:
    units = {"m": 1, "g": 1024}
    return int(memory[:-1]) * units[memory[-1].lower()]


if __name__ == "__main__":
    main(sys.argv[1:])
