"""Measures the checkpoint coordinator on synthetic acknowledgements: no Spark, no JVM.

    python -m benchmarks.coordinator --partitions 1000 --stores 4 --files 16 --batches 5

A query with so many stores runs batches; each store's handle names so many files, of which one is
new with every batch. The acknowledgements are made beforehand, as the bytes that the driver sends.
Measured is what the coordinator does with them: reading and taking in the acknowledgements (acked),
and from Spark's commit to the completed checkpoint in storage (finalized), with the CPU time of the
whole process for both. Deleting old files is not part of it. Once on the local disk, and once on
storage in which every call takes a while, 30 ms by default.
"""

import json
import statistics
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click
from fsspec.implementations.memory import MemoryFileSystem

from benchmarks import output
from benchmarks.children import command_line
from benchmarks.findings import Findings, Grid
from benchmarks.machine import Machine
from sparkckpt.coordinator import (
    Ack,
    CheckpointCoordinator,
    CheckpointFailureReason,
    CompletedCheckpoint,
    CoordinatorSettings,
    QueryRun,
)
from sparkckpt.format import FamilyFiles, StateFileRef, StateHandle
from sparkckpt.format.handle import read_description, write_description, write_handle
from sparkckpt.keygroups import DEFAULT_MAX_PARALLELISM, range_of
from sparkckpt.storage import Storage

RUN = QueryRun("run", "query", "benchmark")
TIMEOUT_SECONDS = 300


class SlowMemory(MemoryFileSystem):  # type: ignore[misc]
    """Storage in memory; each call takes a while, as those to an object store do."""

    cachable = False

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.store: dict[str, Any] = {}
        self.pseudo_dirs = [""]
        self.seconds = seconds
        self.calls = 0

    def _wait(self) -> None:
        self.calls += 1
        time.sleep(self.seconds)

    def cat_file(self, *arguments: Any, **options: Any) -> Any:
        self._wait()
        return super().cat_file(*arguments, **options)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        self._wait()
        super().pipe_file(path, value, mode=mode, **options)

    def ls(self, *arguments: Any, **options: Any) -> Any:
        self._wait()
        return super().ls(*arguments, **options)

    def rm(self, *arguments: Any, **options: Any) -> None:
        self._wait()
        super().rm(*arguments, **options)


@dataclass(frozen=True)
class Size:
    """How large a checkpoint is."""

    partitions: int
    stores: int
    files: int

    @property
    def references(self) -> int:
        return self.partitions * self.stores * self.files


@dataclass(frozen=True)
class Measured:
    """One checkpoint: seconds, and bytes of its metadata."""

    acked: float
    finalized: float
    cpu: float
    metadata_bytes: int
    calls: int


class SyntheticQuery:
    """What Spark and its tasks would write for a query of this size, batch by batch."""

    def __init__(self, storage: Storage, size: Size) -> None:
        self._storage = storage
        self._size = size
        self._conf = {"spark.sql.shuffle.partitions": str(size.partitions)}
        self._handles = [
            self._first(partition, f"store-{store}")
            for partition in range(size.partitions)
            for store in range(size.stores)
        ]
        self._write("metadata", json.dumps({"id": RUN.query_id}))
        backend = {"formatVersion": 1, "maxParallelism": DEFAULT_MAX_PARALLELISM}
        self._write("_sparkckpt/backend.json", json.dumps(backend))
        stores = [
            {"storeName": f"store-{store}", "numColsPrefixKey": 0, "numPartitions": size.partitions}
            for store in range(size.stores)
        ]
        operator = {
            "operatorInfo": {"operatorId": 0, "operatorName": "symmetricHashJoin"},
            "stateStoreInfo": stores,
        }
        self._write("state/0/_metadata/metadata", f"v1\n{json.dumps(operator)}")
        for store in stores:
            self._write(f"state/0/0/{store['storeName']}/_metadata/schema", "a schema")

    def _write(self, path: str, text: str) -> None:
        self._storage.write_atomic(path, text.encode())

    def _first(self, partition: int, store: str) -> StateHandle:
        owned = range_of(partition, self._size.partitions, DEFAULT_MAX_PARALLELISM)
        handle = StateHandle(
            operator_id=0,
            operator_name="symmetricHashJoin",
            store_name=store,
            partition=partition,
            version=0,
            id=str(uuid.uuid4()),
            base_id=None,
            keyed=True,
            parallelism=self._size.partitions,
            max_parallelism=DEFAULT_MAX_PARALLELISM,
            first_key_group=owned.first,
            last_key_group=owned.last,
            changed_rows=1000,
            change_digest="0123456789abcdef",
            families=(FamilyFiles("default", False, ()),),
        )
        for _ in range(self._size.files - 1):
            handle = replace(self._next(handle), version=0)
        return handle

    def _next(self, handle: StateHandle) -> StateHandle:
        """The store's next version: one file more, and one less if there are enough."""
        version, own_id = handle.version + 1, str(uuid.uuid4())
        directory = handle.path.rpartition("/")[0]
        delta = StateFileRef(
            path=f"{directory}/{version}_{own_id}.delta.arrow",
            offset=0,
            length=40_000 + uuid.uuid4().int % 10_000,
            tail_length=2_000 + uuid.uuid4().int % 100,
            tail_crc32=uuid.uuid4().int % 2**32,
            rows=1_000 + uuid.uuid4().int % 100,
            first_key_group=handle.first_key_group,
            last_key_group=handle.last_key_group,
            first_version=version,
            last_version=version,
            level=0,
            base=False,
        )
        files = (*handle.families[0].files, delta)[-self._size.files :]
        family = FamilyFiles("default", False, files)
        return replace(handle, version=version, id=own_id, base_id=handle.id, families=(family,))

    def next_batch(self) -> tuple[int, list[bytes]]:
        """The number of the next batch and its acknowledgements, as the driver sends them."""
        self._handles = [self._next(handle) for handle in self._handles]
        batch_id = self._handles[0].version - 1
        entry = {"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": self._conf}
        self._write(f"offsets/{batch_id}", f"v1\n{json.dumps(entry)}\n0")
        return batch_id, [write_description(handle) for handle in self._handles]

    def write_handles(self) -> None:
        """The handles of the last batch, which its acknowledgements repeat."""
        for handle in self._handles:
            self._storage.write_atomic(f"state/{handle.path}", write_handle(handle))

    def commit(self, batch_id: int) -> None:
        count = self._size.stores
        ids = [
            [handle.id for handle in self._handles[first : first + count]]
            for first in range(0, len(self._handles), count)
        ]
        entry = {"nextBatchWatermarkMs": 0, "stateUniqueIds": {"0": ids}}
        self._write(f"commits/{batch_id}", f"v2\n{json.dumps(entry)}")


class Completion:
    """Waits for checkpoints."""

    def __init__(self) -> None:
        self._done = threading.Event()
        self._last: CompletedCheckpoint | None = None
        self._failure = f"No checkpoint was complete after {TIMEOUT_SECONDS} s."

    def on_completed(self, checkpoint: CompletedCheckpoint) -> None:
        self._last = checkpoint
        self._done.set()

    def on_aborted(self, batch_id: int, reason: CheckpointFailureReason, message: str) -> None:
        self.on_stop_query(message)

    def on_stop_query(self, message: str) -> None:
        self._failure = message
        self._done.set()

    def wait(self) -> CompletedCheckpoint:
        self._done.wait(TIMEOUT_SECONDS)
        self._done.clear()
        completed, self._last = self._last, None
        if completed is None:
            raise click.ClickException(self._failure)
        return completed


def measure(storage: Storage, size: Size, batches: int) -> list[Measured]:
    """Checkpoints in a row; the first, which also reads what never changes, is left out."""
    query = SyntheticQuery(storage, size)
    completion = Completion()
    coordinator = CheckpointCoordinator(storage, RUN, CoordinatorSettings(), completion)
    coordinator.query_started()
    measured = []
    for _ in range(batches + 1):
        batch_id, descriptions = query.next_batch()
        calls, cpu, begin = _calls(storage), time.process_time(), time.perf_counter()
        for description in descriptions:
            handle = read_description(description, "an acknowledgement")
            coordinator.acknowledge(Ack(RUN.run_id, handle, 0, 1, 5, 42_000, 0))
        acked = time.perf_counter()
        acking_cpu = time.process_time() - cpu
        query.commit(batch_id)
        cpu, committed = time.process_time(), time.perf_counter()
        coordinator.batch_committed(batch_id)
        checkpoint = completion.wait()
        measured.append(
            Measured(
                acked=acked - begin,
                finalized=time.perf_counter() - committed,
                cpu=acking_cpu + time.process_time() - cpu,
                metadata_bytes=checkpoint.metadata_bytes,
                calls=_calls(storage) - calls,
            )
        )
    coordinator.drain(TIMEOUT_SECONDS)
    coordinator.close()
    return measured[1:]


def _calls(storage: Storage) -> int:
    return getattr(storage.filesystem, "calls", 0)


@contextmanager
def storages(latency_ms: int) -> Iterator[dict[str, Storage]]:
    with tempfile.TemporaryDirectory(prefix="sparkckpt-bench-") as directory:
        yield {
            "local disk": Storage.at(directory),
            f"{latency_ms} ms a call": Storage(SlowMemory(latency_ms / 1000), "/checkpoint"),
        }


def report_of(measured: list[Measured], size: Size) -> dict[str, float]:
    """The median of each figure."""
    medians = {
        name: statistics.median(asdict(one)[name] for one in measured)
        for name in ("acked", "finalized", "cpu", "metadata_bytes", "calls")
    }
    return {
        "acked_seconds": medians["acked"],
        "finalized_seconds": medians["finalized"],
        "total_seconds": medians["acked"] + medians["finalized"],
        "cpu_seconds": medians["cpu"],
        "metadata_bytes": medians["metadata_bytes"],
        "bytes_per_reference": medians["metadata_bytes"] / size.references,
        "storage_calls": medians["calls"],
    }


def findings_of(reports: dict[str, dict[str, float]], size: Size) -> Findings:
    rows = tuple(
        (
            name,
            f"{report['acked_seconds']:.2f} s",
            f"{report['finalized_seconds']:.2f} s",
            f"{report['total_seconds']:.2f} s",
            f"{report['cpu_seconds']:.2f} s",
            f"{report['metadata_bytes'] / 1e6:.2f} MB",
            f"{report['bytes_per_reference']:.1f} bytes",
        )
        for name, report in reports.items()
    )
    grid = Grid(
        f"{size.partitions} partitions x {size.stores} stores x {size.files} files, medians",
        ("storage", "acked", "finalized", "total", "CPU", "_metadata", "per file"),
        rows,
    )
    return Findings((grid,))


@click.command(context_settings={"show_default": True})
@click.option("--partitions", type=click.IntRange(1), default=1000, help="Partitions of a query.")
@click.option("--stores", type=click.IntRange(1), default=4, help="State stores of a partition.")
@click.option("--files", type=click.IntRange(1), default=16, help="Files of a store.")
@click.option("--batches", type=click.IntRange(1), default=5, help="Measured checkpoints.")
@click.option("--latency", type=click.IntRange(0), default=30, help="Milliseconds of a slow call.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write all to a file.")
def main(
    partitions: int, stores: int, files: int, batches: int, latency: int, json_path: Path | None
) -> None:
    """Measure the coordinator: acknowledgements in, completed checkpoints out."""
    size = Size(partitions, stores, files)
    console, machine = output.console(), Machine.here()
    command = command_line("benchmarks.coordinator", sys.argv[1:])
    output.show_start(console, command, machine)
    results: dict[str, list[Measured]] = {}
    with storages(latency) as places:
        for name, storage in places.items():
            results[name] = measure(storage, size, batches)
            console.print(f"{name}: {batches} checkpoints done", highlight=False)
    reports = {name: report_of(measured, size) for name, measured in results.items()}
    findings = findings_of(reports, size)
    output.show(console, findings)
    if json_path is not None:
        everything = {
            "size": asdict(size),
            "medians": reports,
            "checkpoints": {n: [asdict(one) for one in m] for n, m in results.items()},
        }
        output.write(json_path, command, machine, findings, everything)


if __name__ == "__main__":
    main()
