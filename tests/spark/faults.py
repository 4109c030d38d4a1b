"""Faults at chosen places of a query: in a given batch and partition, before or after the commit.

The attempt that is going to fail also poisons its state: it writes sums that are off by a thousand.
An attempt's files with the right values could be replayed by mistake and nobody would notice; with
poison in them the sums tell. A marker file says that a fault has struck, so that it strikes once,
whichever executor, process or attempt comes next.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import pandas as pd
from pyspark import TaskContext, cloudpickle
from pyspark.sql import DataFrame, Row
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from tests.spark.jobs import KEYS
from tests.spark.streams import Job

cloudpickle.register_pickle_by_value(sys.modules[__name__])

POISON = 1000
LIMIT_SECONDS = 200


class Fault(Enum):
    FAIL_BEFORE_COMMIT = "fail before commit"
    FAIL_AFTER_COMMIT = "fail after commit"
    KILL_BEFORE_COMMIT = "kill before commit"
    KILL_AFTER_COMMIT = "kill after commit"
    OUTRUN_AFTER_COMMIT = "outrun after commit"
    """Stays until a speculative copy of the task has finished."""

    @property
    def before_commit(self) -> bool:
        return self in (Fault.FAIL_BEFORE_COMMIT, Fault.KILL_BEFORE_COMMIT)


class InjectedError(Exception):
    """What a fault raises."""


@dataclass(frozen=True)
class Faults:
    """Which fault strikes in which (batch, partition), and a directory for the markers."""

    directory: str
    planned: Mapping[tuple[int, int], Fault] = field(default_factory=dict)

    def here(self) -> Fault | None:
        """The fault that is about to strike in this task."""
        fault = self.planned.get(self._place())
        if fault is Fault.OUTRUN_AFTER_COMMIT and not self._is_first_attempt():
            return None
        return None if fault is None or self._marker("struck").exists() else fault

    def strike(self, fault: Fault) -> None:
        self._marker("struck").touch()
        if fault in (Fault.KILL_BEFORE_COMMIT, Fault.KILL_AFTER_COMMIT):
            os.kill(executor_pid(), signal.SIGKILL)
        if fault is Fault.OUTRUN_AFTER_COMMIT:
            wait_until(self._marker("outrun").exists)
        raise InjectedError(f"{fault.value} in {self._place()}")

    def after_commit(self, rows: Iterable[Row]) -> Iterator[Row]:
        """For mapPartitions above the query: when the last row has come, the state is committed."""
        everything = list(rows)
        fault = self.here()
        if fault is not None:
            self.strike(fault)
        if self.planned.get(self._place()) is Fault.OUTRUN_AFTER_COMMIT:
            # A copy that has started early must not win before there is anything to outrun.
            wait_until(self._marker("struck").exists)
            self._marker("outrun").touch()
        return iter(everything)

    def struck(self) -> int:
        return len(list(Path(self.directory).glob("struck-*")))

    def _is_first_attempt(self) -> bool:
        task = TaskContext.get()
        assert task is not None
        return task.attemptNumber() == 0

    def _place(self) -> tuple[int, int]:
        task = TaskContext.get()
        assert task is not None
        return int(task.getLocalProperty("streaming.sql.batchId") or -1), task.partitionId()

    def _marker(self, event: str) -> Path:
        batch, partition = self._place()
        return Path(self.directory) / f"{event}-{batch}-{partition}"


def executor_pid() -> int:
    """The JVM above this Python worker: worker, daemon, JVM."""
    status = Path(f"/proc/{os.getppid()}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("PPid:")))


def wait_until(condition: Callable[[], bool], limit: float = LIMIT_SECONDS) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {limit} s in vain")
        time.sleep(0.02)


def running_sums(faults: Faults | None = None, batches: int = 5) -> Job:
    """A running sum per key that is poisoned where a fault is about to strike."""

    def add(
        key: tuple[str], frames: Iterator[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        (total,) = state.get if state.exists else (0,)
        total += sum(int(frame["v"].sum()) for frame in frames)
        fault = faults.here() if faults else None
        state.update((total + POISON if fault else total,))
        if faults and fault and fault.before_commit:
            faults.strike(fault)
        yield pd.DataFrame({"k": [key[0]], "total": [total]})

    def transform(df: DataFrame) -> DataFrame:
        return df.groupBy("k").applyInPandasWithState(
            add, "k string, total long", "total long", "update", GroupStateTimeout.NoTimeout
        )

    # Every key in every batch: then each partition has something to poison.
    rows = [[{"k": k, "v": i + 10 * batch} for i, k in enumerate(KEYS)] for batch in range(batches)]
    return Job.of("k string, v long", rows, transform, "update")
