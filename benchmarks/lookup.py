"""Measures how state is read as tables: one key, and all of it.

    python -m benchmarks.lookup --keys 1m,5m

A checkpoint of random 64-bit keys, each with two numbers, is written without Spark: in each of four
partitions a base with all keys and some deltas that change one key in fifty. Measured are the time
to open it, the time to look up one key after that, as the median and the slowest of many random
keys, and the rows a second of reading it all, beside a plain Feather file of the same rows. Every
value that is found is checked.
"""

import json
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
import pyarrow as pa
import pyarrow.feather

import sparkckpt
from benchmarks import output
from benchmarks.children import command_line, parse_counts
from benchmarks.findings import Findings, Grid
from benchmarks.machine import Machine
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
    metadata_path,
    write_handle,
    write_metadata,
    write_state_file,
)
from sparkckpt.keygroups import DEFAULT_MAX_PARALLELISM, range_of
from sparkckpt.murmur3 import hash_columns
from sparkckpt.sparklog import commits_path, offsets_path
from sparkckpt.storage import Storage

PARTITIONS = 4
SEED = 20240301
CHANGED = 50
"""One key in so many is changed by a delta."""
OPERATOR, NAME = 0, "stateStoreSave"


@dataclass(frozen=True)
class Result:
    """Of one checkpoint; milliseconds, and rows a second."""

    keys: int
    deltas: int
    open_ms: float
    first_lookup_ms: float
    median_lookup_ms: float
    slowest_lookup_ms: float
    rows_per_second: float
    feather_rows_per_second: float


def rows_of(keys: np.ndarray, version: int) -> pa.Table:
    """Puts of these keys in ascending key groups, with values that depend on the version."""
    groups = hash_columns([pa.array(keys)], len(keys)).astype(np.int64) % DEFAULT_MAX_PARALLELISM
    order = np.argsort(groups, kind="stable")
    keys = keys[order]
    values = [pa.array(keys % 1000), pa.array(np.full(len(keys), version))]
    columns = [
        pa.array(groups[order].astype(np.uint16)),
        pa.array(np.zeros(len(keys), np.int8)),
        pa.StructArray.from_arrays([pa.array(keys)], names=["k"]),
        pa.StructArray.from_arrays(values, names=["count", "sum"]),
    ]
    return pa.table(columns, ["kg", "op", "key", "value"])


def write_checkpoint(directory: Path, keys: np.ndarray, deltas: int) -> None:
    """A checkpointLocation whose last batch is a checkpoint with this state."""
    storage = Storage.at(directory)
    version = deltas + 1
    files: dict[int, list[StateFileRef]] = {partition: [] for partition in range(PARTITIONS)}
    for at in range(1, version + 1):
        changed = keys if at == 1 else keys[at::CHANGED]
        for partition, ref in _write_files(storage, rows_of(changed, at), at):
            files[partition].append(ref)
    handles = [_handle(partition, refs, version) for partition, refs in files.items()]
    for handle in handles:
        storage.write_atomic(f"state/{handle.path}", write_handle(handle))
    states = _logs(storage, version - 1, handles)
    operator = OperatorState(
        OPERATOR,
        NAME,
        PARTITIONS,
        DEFAULT_MAX_PARALLELISM,
        True,
        tuple(OperatorSubtaskState(handle.partition, (handle,)) for handle in handles),
    )
    metadata = CheckpointMetadata(
        1, version - 1, str(uuid.UUID(int=0)), 0, (operator,), states, CheckpointStatistics()
    )
    storage.write_atomic(metadata_path(1), write_metadata(metadata))


def _write_files(
    storage: Storage, rows: pa.Table, version: int
) -> Iterator[tuple[int, StateFileRef]]:
    schema = json.dumps({"type": "struct", "fields": []})
    family = StateFamily(
        OPERATOR,
        "default",
        "default",
        False,
        DEFAULT_MAX_PARALLELISM,
        schema,
        schema,
        *["struct"] * 2,
    )
    groups = rows["kg"].to_numpy()
    for partition in range(PARTITIONS):
        owned = range_of(partition, PARTITIONS, DEFAULT_MAX_PARALLELISM)
        first, end = np.searchsorted(groups, [owned.first, owned.last + 1])
        kind = "merge" if version == 1 else "delta"
        data, ref = write_state_file(
            rows.slice(first, end - first),
            family,
            f"{OPERATOR}/{partition}/{version}_{uuid.uuid4()}.{kind}.arrow",
            first_version=version,
            last_version=version,
            level=int(version == 1),
            base=version == 1,
        )
        storage.write_atomic(f"state/{ref.path}", data)
        yield partition, ref


def _handle(partition: int, refs: list[StateFileRef], version: int) -> StateHandle:
    owned = range_of(partition, PARTITIONS, DEFAULT_MAX_PARALLELISM)
    return StateHandle(
        operator_id=OPERATOR,
        operator_name=NAME,
        store_name="default",
        partition=partition,
        version=version,
        id=str(uuid.uuid4()),
        base_id=None,
        keyed=True,
        parallelism=PARTITIONS,
        max_parallelism=DEFAULT_MAX_PARALLELISM,
        first_key_group=owned.first,
        last_key_group=owned.last,
        changed_rows=refs[-1].rows if version > 1 else 0,
        change_digest="0" * 16,
        families=(FamilyFiles("default", False, tuple(refs)),),
    )


def _logs(storage: Storage, batch: int, handles: list[StateHandle]) -> tuple[MasterState, ...]:
    """Spark's own files, as far as they are read."""
    conf = {"spark.sql.shuffle.partitions": str(PARTITIONS)}
    offsets = {"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": conf}
    commit = {"nextBatchWatermarkMs": 0, "stateUniqueIds": {"0": [[h.id] for h in handles]}}
    contents = {
        "metadata": json.dumps({"id": str(uuid.UUID(int=0))}),
        offsets_path(batch): f"v1\n{json.dumps(offsets)}\n0",
        commits_path(batch): f"v2\n{json.dumps(commit)}",
    }
    for path, text in contents.items():
        storage.write_atomic(path, text.encode())
    return tuple(MasterState(path, contents[path].encode()) for path in sorted(contents))


def measure(directory: Path, keys: np.ndarray, deltas: int, lookups: int) -> Result:
    started = time.perf_counter()
    table = sparkckpt.state(directory).operator(OPERATOR).table()
    _ = table.schema
    opened = time.perf_counter()
    times = []
    for key in np.random.default_rng(SEED).choice(keys, lookups).tolist():
        begun = time.perf_counter()
        found = table.lookup({"k": key})
        times.append(1000 * (time.perf_counter() - begun))
        assert found["count"].to_pylist() == [key % 1000], f"the key {key} was not found"
    begun = time.perf_counter()
    rows = sum(batch.num_rows for batch in table.to_reader())
    read = time.perf_counter() - begun
    assert rows == len(keys), f"{rows} rows of {len(keys)}"
    plain = directory.parent / "plain.feather"
    pyarrow.feather.write_feather(table.to_arrow(), plain, compression="zstd")
    begun = time.perf_counter()
    assert pyarrow.feather.read_table(plain, memory_map=False).num_rows == rows
    feather = time.perf_counter() - begun
    return Result(
        keys=len(keys),
        deltas=deltas,
        open_ms=round(1000 * (opened - started), 1),
        first_lookup_ms=round(times[0], 1),
        median_lookup_ms=round(float(np.median(times)), 1),
        slowest_lookup_ms=round(max(times), 1),
        rows_per_second=round(rows / read),
        feather_rows_per_second=round(rows / feather),
    )


def findings_of(results: Sequence[Result]) -> Findings:
    rows = tuple(
        (
            f"{count_label(result.keys)}, {result.deltas}",
            f"{result.open_ms:.1f} ms",
            f"{result.first_lookup_ms:.1f} ms",
            f"{result.median_lookup_ms:.1f} ms",
            f"{result.slowest_lookup_ms:.1f} ms",
            f"{result.rows_per_second:,}",
            f"{result.feather_rows_per_second:,}",
        )
        for result in results
    )
    columns = ("keys, deltas", "open", "first lookup", "median", "slowest", "rows/s", "of Feather")
    return Findings((Grid("state as a table", columns, rows),))


@click.command(help=__doc__)
@click.option("--keys", "counts", default="1m,5m", show_default=True, callback=parse_counts)
@click.option("--deltas", default="0,8", show_default=True, callback=parse_counts)
@click.option("--lookups", default=200, show_default=True)
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write all to a file.")
def main(counts: list[int], deltas: list[int], lookups: int, json_path: Path | None) -> None:
    console, machine = output.console(), Machine.here()
    command = command_line("benchmarks.lookup", sys.argv[1:])
    output.show_start(console, command, machine)
    results: list[Result] = []
    for count in counts:
        keys = np.unique(np.random.default_rng(SEED).integers(-(2**63), 2**63 - 1, count))
        for number in deltas:
            with tempfile.TemporaryDirectory(prefix="lookup-") as work:
                directory = Path(work) / "checkpoint"
                write_checkpoint(directory, keys, number)
                results.append(measure(directory, keys, number, lookups))
    findings = findings_of(results)
    output.show(console, findings)
    if json_path is not None:
        values = {"runs": [asdict(result) for result in results]}
        output.write(json_path, command, machine, findings, values)


if __name__ == "__main__":
    main()
