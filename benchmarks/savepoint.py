"""Measures taking and reading savepoints against plain Feather files of the same table.

    python -m benchmarks.savepoint --keys 1m,5m

A checkpoint is made up, without Spark: so many keys, each a 64-bit number with a count and a sum,
in partitions that have a base and some deltas, each of changes to a part of the keys. Measured are
the savepoint of it (base and deltas read, verified, merged and written, as the command does) and
reading all state of the savepoint back, verified. Feather writes and reads one table of the same
rows in the same run, with the same codec, and merges and verifies nothing. All files are in the
page cache, and both sides may use every processor. A ratio is Feather's time over ours, of the time
on the clock and of the processors' time: 1.00 is as fast.
"""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import median

import click
import numpy as np
import pyarrow as pa
from pyarrow import feather
from rich.console import Console
from rich.table import Table

import sparkckpt
from benchmarks.children import parse_counts
from benchmarks.workload import count_label
from sparkckpt.format import (
    CheckpointMetadata,
    CheckpointStatistics,
    FamilyFiles,
    MasterState,
    OperatorState,
    OperatorSubtaskState,
    StateFamily,
    StateFileRef,
    StateHandle,
    StateStream,
    metadata_path,
    read_metadata,
    write_metadata,
    write_state_file,
)
from sparkckpt.keygroups import DEFAULT_MAX_PARALLELISM, range_of
from sparkckpt.storage import Storage

FAMILY = StateFamily(
    operator_id=0,
    store_name="default",
    family="default",
    multi_valued=False,
    max_parallelism=DEFAULT_MAX_PARALLELISM,
    key_schema='{"type":"struct","fields":[]}',
    value_schema='{"type":"struct","fields":[]}',
    key_encoding="struct",
    value_encoding="struct",
)


@dataclass(frozen=True)
class Shape:
    """What the state is made of."""

    keys: int
    partitions: int
    deltas: int
    changed: float
    """The part of the keys that each delta changes."""


@dataclass(frozen=True)
class Taken:
    """Seconds on the clock, and of the processors."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Measured:
    """One repeat."""

    feather_write: Taken
    savepoint: Taken
    feather_read: Taken
    savepoint_read: Taken


class SyntheticState:
    """The state in a checkpoint directory, and the table that it comes to."""

    def __init__(self, directory: Path, shape: Shape) -> None:
        self.checkpoint = directory / "checkpoint"
        self.shape = shape
        self._storage = Storage.at(self.checkpoint)
        self._draw = np.random.default_rng(shape.keys)
        keys = self._draw.choice(np.iinfo(np.int64).max, shape.keys)
        groups = self._draw.integers(0, DEFAULT_MAX_PARALLELISM, shape.keys, np.uint16)
        order = np.argsort(groups, kind="stable")
        self._keys, self._groups = keys[order], groups[order]
        self._numbers = np.zeros(shape.keys, np.int64)
        self._write()

    def _rows(self, selected: np.ndarray) -> pa.Table:
        keys = pa.StructArray.from_arrays([pa.array(self._keys[selected])], ["k"])
        counts = pa.array(self._numbers[selected])
        sums = pa.array(self._numbers[selected] * (self._keys[selected] % 1000))
        values = pa.StructArray.from_arrays([counts, sums], ["count", "sum"])
        ops = pa.array(np.zeros(len(selected), np.int8))
        columns = [pa.array(self._groups[selected]), ops, keys, values]
        return pa.table(columns, ["kg", "op", "key", "value"])

    def table(self) -> pa.Table:
        """All rows as they are now."""
        return self._rows(np.arange(self.shape.keys))

    def _write(self) -> None:
        files: list[list[StateFileRef]] = [[] for _ in range(self.shape.partitions)]
        for version in range(1, self.shape.deltas + 2):
            changed = np.arange(self.shape.keys)
            if version > 1:
                count = int(self.shape.keys * self.shape.changed)
                changed = np.sort(self._draw.choice(self.shape.keys, count, replace=False))
            self._numbers[changed] += 1
            for partition, refs in enumerate(files):
                refs.append(self._write_file(partition, version, changed))
        version = self.shape.deltas + 1
        metadata = self._metadata(version, files)
        self._storage.write_atomic(metadata_path(1), write_metadata(metadata))
        for state in metadata.master_states:
            self._storage.write_atomic(state.path, state.content)

    def _write_file(self, partition: int, version: int, changed: np.ndarray) -> StateFileRef:
        owned = range_of(partition, self.shape.partitions, DEFAULT_MAX_PARALLELISM)
        first, end = np.searchsorted(self._groups[changed], [owned.first, owned.last + 1])
        data, ref = write_state_file(
            self._rows(changed[first:end]),
            FAMILY,
            f"0/{partition}/{version}_a{version}.delta.arrow",
            first_version=version,
            last_version=version,
            base=version == 1,
        )
        self._storage.write_atomic(f"state/{ref.path}", data)
        return ref

    def _metadata(
        self, version: int, files: Sequence[Sequence[StateFileRef]]
    ) -> CheckpointMetadata:
        batch_id = version - 1
        count = self.shape.partitions
        handles = [self._handle(partition, version, refs) for partition, refs in enumerate(files)]
        conf = {"spark.sql.shuffle.partitions": str(count)}
        offsets = {"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": conf}
        ids = {"0": [[handle.id] for handle in handles]}
        commit = {"nextBatchWatermarkMs": 0, "stateUniqueIds": ids}
        return CheckpointMetadata(
            checkpoint_id=1,
            batch_id=batch_id,
            query_id="benchmark",
            timestamp_ms=0,
            operator_states=(
                OperatorState(
                    operator_id=0,
                    operator_name="stateStoreSave",
                    parallelism=count,
                    max_parallelism=DEFAULT_MAX_PARALLELISM,
                    keyed=True,
                    subtasks=tuple(OperatorSubtaskState(h.partition, (h,)) for h in handles),
                ),
            ),
            master_states=(
                _master(f"commits/{batch_id}", f"v2\n{json.dumps(commit)}"),
                _master("metadata", json.dumps({"id": "benchmark"})),
                _master(f"offsets/{batch_id}", f"v1\n{json.dumps(offsets)}\n{batch_id}"),
            ),
            statistics=CheckpointStatistics(),
        )

    def _handle(self, partition: int, version: int, files: Sequence[StateFileRef]) -> StateHandle:
        owned = range_of(partition, self.shape.partitions, DEFAULT_MAX_PARALLELISM)
        return StateHandle(
            operator_id=0,
            operator_name="stateStoreSave",
            store_name="default",
            partition=partition,
            version=version,
            id=f"a{version}",
            base_id=f"a{version - 1}",
            keyed=True,
            parallelism=self.shape.partitions,
            max_parallelism=DEFAULT_MAX_PARALLELISM,
            first_key_group=owned.first,
            last_key_group=owned.last,
            changed_rows=sum(file.rows for file in files if file.last_version == version),
            change_digest="0" * 16,
            families=(FamilyFiles("default", False, tuple(files)),),
        )


def _master(path: str, text: str) -> MasterState:
    return MasterState(path, text.encode())


def read_all(savepoint: Path) -> int:
    """Reads all state of a savepoint, one thread a partition; the number of rows."""
    (path,) = savepoint.glob("_sparkckpt/chk-*/_metadata")
    metadata = read_metadata(path.read_bytes(), str(path))
    state = Storage.at(savepoint / "state")

    def read(handle: StateHandle) -> int:
        return sum(table.num_rows for table in list(StateStream.open(state, handle)))

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return sum(threads.map(read, metadata.handles))


def measure(directory: Path, state: SyntheticState, table: pa.Table) -> Measured:
    file, savepoint = directory / "table.feather", directory / "savepoint"
    rows = table.num_rows
    wrote = timed(lambda: feather.write_feather(table, file, compression="zstd"))
    took = timed(lambda: sparkckpt.savepoint(state.checkpoint, savepoint))
    read = timed(lambda: _require(feather.read_table(file, memory_map=False).num_rows == rows))
    ours = timed(lambda: _require(read_all(savepoint) == rows))
    file.unlink()
    shutil.rmtree(savepoint)
    return Measured(wrote, took, read, ours)


def _require(holds: bool) -> None:
    if not holds:
        raise click.ClickException("The rows that were read are not those that were written.")


def timed(work: Callable[[], object]) -> Taken:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return Taken(time.perf_counter() - wall, time.process_time() - cpu)


@contextmanager
def workdir(given: Path | None) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="sparkckpt-benchmark-", dir=given) as name:
        yield Path(name)


COMPARED = {"write": ("savepoint", "feather_write"), "read": ("savepoint_read", "feather_read")}


def report_of(repeats: Sequence[Measured], name: str, kind: str) -> dict[str, float]:
    """Medians of the times, and of the ratios of the same repeat."""
    ours, theirs = ([getattr(getattr(r, n), kind) for r in repeats] for n in COMPARED[name])
    ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
    return {
        "savepoint": median(ours),
        "feather": median(theirs),
        "ratio": median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
    }


def table_of(results: dict[int, list[Measured]]) -> Table:
    table = Table(title="Savepoints against Feather, medians")
    for column in ("keys", "", "time", "savepoint", "Feather", "ratio"):
        table.add_column(column, justify="right")
    for keys, repeats in results.items():
        for name, kind in product(COMPARED, ("wall", "cpu")):
            report = report_of(repeats, name, kind)
            table.add_row(
                count_label(keys),
                name,
                kind,
                f"{report['savepoint']:.2f} s",
                f"{report['feather']:.2f} s",
                f"{report['ratio']:.2f} [{report['lowest']:.2f}-{report['highest']:.2f}]",
            )
    return table


@click.command(context_settings={"show_default": True})
@click.option("--keys", "keys", default="1m,5m", callback=parse_counts, help="Numbers of keys.")
@click.option("--partitions", type=click.IntRange(1), default=4, help="State partitions.")
@click.option("--deltas", type=click.IntRange(0), default=8, help="Deltas on top of each base.")
@click.option("--changed", type=float, default=0.02, help="Part of the keys in each delta.")
@click.option("--repeat", type=click.IntRange(1), default=5, help="Repeats; medians are shown.")
@click.option("--workdir", "directory", type=click.Path(path_type=Path), help="Where files go.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write all to a file.")
def main(
    keys: list[int],
    partitions: int,
    deltas: int,
    changed: float,
    repeat: int,
    directory: Path | None,
    json_path: Path | None,
) -> None:
    """Measure taking and reading savepoints against plain Feather files."""
    console = Console()
    results: dict[int, list[Measured]] = {}
    for count in keys:
        with workdir(directory) as place:
            state = SyntheticState(place, Shape(count, partitions, deltas, changed))
            table = state.table().combine_chunks()
            measure(place, state, table)
            results[count] = [measure(place, state, table) for _ in range(repeat)]
    console.print(table_of(results))
    if json_path is not None:
        repeats = {count: [asdict(one) for one in found] for count, found in results.items()}
        json_path.write_text(json.dumps(repeats, indent=2))
        console.print(f"Everything as JSON: {json_path}", highlight=False)


if __name__ == "__main__":
    main()
