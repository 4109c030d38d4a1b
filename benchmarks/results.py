"""What one run yields: plain values that travel from the child process to its parent as JSON."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.jvm import Garbage
from benchmarks.statedir import FileKind, Written


@dataclass(frozen=True)
class Job:
    """All that a child process needs to know."""

    contestant: str
    keys: int
    changes: int
    input: str
    directory: str
    memory: str
    maintenance_seconds: float
    target_parallelism: int = 0
    """What the checkpoint is rescaled to, if it is."""

    @staticmethod
    def read(path: Path) -> "Job":
        return Job(**json.loads(path.read_text()))


@dataclass(frozen=True)
class Batch:
    """One measured batch; times in ms, those of the state summed over the stores by Spark."""

    trigger_ms: int
    add_batch_ms: int
    updates_ms: int
    commit_ms: int
    metrics: dict[str, int]


@dataclass(frozen=True)
class Measured:
    """The measured part of a run."""

    batches: list[Batch]
    written: Written
    garbage: Garbage
    checksum: int
    """Over the rows which the last batch put out: equal for all contestants or one is wrong."""
    spark_version: str
    java_version: str

    @staticmethod
    def from_json(value: dict[str, Any]) -> "Measured":
        batches = [Batch(**batch) for batch in value["batches"]]
        typed = {
            "batches": batches,
            "written": Written(**value["written"]),
            "garbage": Garbage(**value["garbage"]),
        }
        return Measured(**{**value, **typed})

    def bytes_written(self, log_only: bool = False) -> int:
        return sum(
            size
            for kind, size in self.written.bytes.items()
            if FileKind(kind).is_log or not log_only
        )


@dataclass(frozen=True)
class Restart:
    """A new process continues the checkpoint: from start() to the first committed batch."""

    full_seconds: float
    empty_seconds: float
    load_ms: int | None
    checksum: int
    """Over the rows which that batch put out."""

    @property
    def net_seconds(self) -> float:
        return self.full_seconds - self.empty_seconds


@dataclass(frozen=True)
class Run:
    """One contestant's run of one workload."""

    contestant: str
    workload: str
    keys: int
    changes: int
    repeat: int
    measured: Measured
    restart: Restart | None
    """None if the call asks for no restarts."""

    @property
    def changed_keys(self) -> int:
        return self.changes * len(self.measured.batches)

    @property
    def checksums(self) -> tuple[int, int | None]:
        return self.measured.checksum, self.restart.checksum if self.restart else None


def write_json(value: Any, path: Path) -> None:
    path.write_text(json.dumps(asdict(value)))
