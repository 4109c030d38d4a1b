"""The input: Parquet files made once, from a seed, and read by every contestant.

One file is one batch. First the key space is filled, then come warm-up batches, then the measured
ones; each of these holds the given number of distinct random keys, one row per key, so the number
of changed keys of a batch is known exactly. Files are the source with the least noise: a batch
costs one short scan, and no contestant pays for generating its rows.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SCHEMA = "k long, v long"
FILL_ROWS = 250_000
"""Most keys that one fill batch brings: a batch of a million rows would set the memory's peak."""

_FIRST_MODIFIED = 1_700_000_000


@dataclass(frozen=True)
class Workload:
    """What the streaming job is fed with."""

    keys: int
    changes: int
    batches: int
    warmup: int
    sparse: bool = False
    """Keys are spread over all 64-bit numbers instead of being 0 to `keys` - 1."""
    seed: int = 42

    def __post_init__(self) -> None:
        if self.changes > self.keys:
            raise ValueError(f"{self.changes} changes a batch are more than {self.keys} keys")

    @property
    def label(self) -> str:
        return f"{count_label(self.keys)} keys, {count_label(self.changes)} changed a batch"


@dataclass(frozen=True)
class InputFiles:
    """The files of a workload, each list in the order in which it is read."""

    single_row: Path
    fill: list[Path]
    warmup: list[Path]
    measured: list[Path]
    restart: Path

    @staticmethod
    def in_directory(directory: Path) -> "InputFiles":
        def named(kind: str) -> list[Path]:
            return sorted(directory.glob(f"*-{kind}.parquet"))

        return InputFiles(
            named("single")[0],
            named("fill"),
            named("warmup"),
            named("measured"),
            named("restart")[0],
        )


def generate(workload: Workload, directory: Path) -> None:
    """Writes the files of the workload; the same workload always gives the same rows."""
    directory.mkdir(parents=True)
    random = np.random.default_rng(workload.seed)
    if workload.sparse:
        drawn = random.integers(-(2**63), 2**63 - 1, workload.keys + workload.keys // 8 + 16)
        ids = random.permutation(np.unique(drawn))[: workload.keys]
    else:
        ids = np.arange(workload.keys, dtype=np.int64)
    shuffled = random.permutation(ids)
    fills = -(-workload.keys // FILL_ROWS)
    batches = [("single", shuffled[:1])]
    batches += [("fill", part) for part in np.array_split(shuffled, fills)]
    kinds = ["warmup"] * workload.warmup + ["measured"] * workload.batches + ["restart"]
    batches += [(kind, _sample(random, ids, workload.changes)) for kind in kinds]
    for number, (kind, keys) in enumerate(batches):
        rows = pa.table({"k": keys, "v": random.integers(0, 1000, len(keys))})
        path = directory / f"{number:06d}-{kind}.parquet"
        pq.write_table(rows, path)
        # Spark reads files in the order of their age, which must not be left to the clock.
        os.utime(path, (_FIRST_MODIFIED + number, _FIRST_MODIFIED + number))


def _sample(random: np.random.Generator, ids: np.ndarray, size: int) -> np.ndarray:
    return ids[random.choice(len(ids), size, replace=False)]


def publish(paths: list[Path], directory: Path) -> None:
    """Makes files appear in a directory that a stream watches, whole and with their age."""
    directory.mkdir(parents=True, exist_ok=True)
    for path in paths:
        (directory / path.name).hardlink_to(path)


def count_label(count: int) -> str:
    for unit, size in (("M", 1_000_000), ("k", 1_000)):
        if count >= size and count % (size // 10) == 0:
            return f"{count / size:g}{unit}"
    return str(count)
