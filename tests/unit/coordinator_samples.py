"""A query as the coordinator sees it: Spark's logs, handles and data files in memory.

Writes what tasks and Spark write, in the same order, but runs nothing. Storage can be told to fail.
"""

import json
import random
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fsspec.implementations.memory import MemoryFileSystem

from sparkckpt.coordinator import (
    Ack,
    CheckpointCoordinator,
    CheckpointFailureReason,
    CompletedCheckpoint,
    CompletedCheckpointStore,
    CoordinatorSettings,
    QueryRun,
)
from sparkckpt.format import (
    FamilyFiles,
    OperatorStateHandle,
    StateFileRef,
    StateHandle,
    write_handle,
)
from sparkckpt.keygroups import range_of
from sparkckpt.storage import Storage

MAX_PARALLELISM = 64
ROOT = "/checkpoint"
QUERY_ID = "a-query"


class Memory(MemoryFileSystem):  # type: ignore[misc]
    """A file system of its own, which fails and counts as it is told."""

    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.store: dict[str, Any] = {}
        self.pseudo_dirs = [""]
        self.calls = 0
        self.before: Callable[[str, str], None] = lambda operation, path: None
        self.after: Callable[[str, str], None] = lambda operation, path: None

    def _call(self, operation: str, path: str) -> None:
        self.calls += 1
        self.before(operation, path)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        self._call("write", path)
        super().pipe_file(path, value, mode=mode, **options)
        self.after("write", path)

    def cat_file(self, path: str, *arguments: Any, **options: Any) -> Any:
        self._call("read", path)
        return super().cat_file(path, *arguments, **options)

    def ls(self, path: str, *arguments: Any, **options: Any) -> Any:
        self._call("list", path)
        return super().ls(path, *arguments, **options)

    def find(self, path: str, *arguments: Any, **options: Any) -> Any:
        self._call("find", path)
        return super().find(path, *arguments, **options)

    def rm_file(self, path: str) -> None:
        self._call("delete", path)
        super().rm_file(path)


def memory_storage() -> Storage:
    return Storage(Memory(), ROOT)


@dataclass(frozen=True, order=True)
class Store:
    operator_id: int
    partition: int
    name: str


STATE_SUFFIXES = (".arrow", ".handle", ".operator-state", ".tmp")
OPERATORS: Mapping[int, tuple[str, tuple[str, ...]]] = {
    0: ("stateStoreSave", ("default",)),
    1: ("symmetricHashJoin", ("left", "right")),
}


@dataclass
class FakeQuery:
    """Spark's side of one checkpoint directory."""

    storage: Storage = field(default_factory=memory_storage)
    operators: tuple[int, ...] = (0,)
    parallelism: int = 2
    min_batches: int = 100
    merge_after: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self.committed: dict[int, dict[Store, StateHandle]] = {}
        self.write("metadata", json.dumps({"id": QUERY_ID}).encode())
        self.write("_sparkckpt/backend.json", b'{"formatVersion": 1, "maxParallelism": 64}')
        for operator_id in self.operators:
            name, stores = OPERATORS[operator_id]
            entry = {
                "operatorInfo": {"operatorId": operator_id, "operatorName": name},
                "stateStoreInfo": [
                    {"storeName": store, "numColsPrefixKey": 0, "numPartitions": self.parallelism}
                    for store in stores
                ],
            }
            directory = f"state/{operator_id}"
            self.write(f"{directory}/_metadata/metadata", f"v1\n{json.dumps(entry)}".encode())
            for store in stores:
                below = "" if store == "default" else f"{store}/"
                self.write(f"{directory}/0/{below}_metadata/schema", b"a schema")

    def write(self, path: str, data: bytes) -> None:
        self.storage.write_atomic(path, data, overwrite=True)

    @property
    def stores(self) -> list[Store]:
        return [
            Store(operator_id, partition, name)
            for operator_id in self.operators
            for partition in range(self.parallelism)
            for name in OPERATORS[operator_id][1]
        ]

    @property
    def latest(self) -> int:
        return max(self.committed, default=-1)

    def plan(self, batch_id: int) -> None:
        conf = {"spark.sql.shuffle.partitions": str(self.parallelism)}
        entry = {"batchWatermarkMs": 0, "batchTimestampMs": 1, "conf": conf}
        self.write(f"offsets/{batch_id}", f"v1\n{json.dumps(entry)}\n{batch_id}".encode())

    def new_id(self) -> str:
        return str(uuid.UUID(int=self._random.getrandbits(128)))

    def attempt(self, batch_id: int, store: Store, digest: str = "0" * 16) -> StateHandle:
        """What a task leaves behind: its data file and its handle."""
        base = self.committed.get(batch_id - 1, {}).get(store)
        version, own_id = batch_id + 1, self.new_id()
        files = base.files_of() if base else ()
        if len(files) >= self.merge_after:
            files = (self._merge(store, batch_id, files),)
        stem = f"{_directory(store)}/{version}_{own_id}"
        delta, inlined = self._delta(store, version, stem)
        state, blob = self._operator_state(base, store, version, stem, len(inlined))
        owned = range_of(store.partition, self.parallelism, MAX_PARALLELISM)
        handle = StateHandle(
            operator_id=store.operator_id,
            operator_name=OPERATORS[store.operator_id][0],
            store_name=store.name,
            partition=store.partition,
            version=version,
            id=own_id,
            base_id=base.id if base else None,
            keyed=True,
            parallelism=self.parallelism,
            max_parallelism=MAX_PARALLELISM,
            first_key_group=owned.first,
            last_key_group=owned.last,
            changed_rows=delta.rows,
            change_digest=digest,
            families=(FamilyFiles("default", False, (*files, delta)),),
            operator_state=state,
        )
        self.write(f"state/{handle.path}", write_handle(handle, inlined + blob))
        return handle

    def _operator_state(
        self, base: StateHandle | None, store: Store, version: int, stem: str, before: int
    ) -> tuple[OperatorStateHandle | None, bytes]:
        """The version's, and what of it is inlined in the handle after so many other bytes."""
        return None, b""

    def _delta(self, store: Store, version: int, stem: str) -> tuple[StateFileRef, bytes]:
        """The changes of a batch, written; or bytes to be inlined in the handle of this stem."""
        delta = _ref(f"{stem}.delta.arrow", version, version, 0)
        self.write(f"state/{delta.path}", b"delta")
        return delta, b""

    def _merge(self, store: Store, version: int, files: tuple[StateFileRef, ...]) -> StateFileRef:
        path = f"{_directory(store)}/{version}_{self.new_id()}.merge.arrow"
        self.write(f"state/{path}", b"merge")
        return _ref(path, files[0].first_version, files[-1].last_version, 1)

    def commit(self, batch_id: int, handles: Iterable[StateHandle]) -> None:
        """Spark commits the batch with these handles, and purges its logs."""
        winners = {Store(h.operator_id, h.partition, h.store_name): h for h in handles}
        assert set(winners) == set(self.stores)
        self.committed[batch_id] = winners
        ids = {
            str(operator_id): [
                [
                    winners[Store(operator_id, partition, name)].id
                    for name in OPERATORS[operator_id][1]
                ]
                for partition in range(self.parallelism)
            ]
            for operator_id in self.operators
        }
        entry = {"nextBatchWatermarkMs": 0, "stateUniqueIds": ids}
        self.write(f"commits/{batch_id}", f"v2\n{json.dumps(entry)}".encode())
        for old in [b for b in self.committed if b < batch_id - self.min_batches]:
            del self.committed[old]
            self.storage.delete([f"commits/{old}", f"offsets/{old}"])

    def run_batch(self, batch_id: int) -> list[StateHandle]:
        """A batch in which every task succeeds at once; not committed yet."""
        self.plan(batch_id)
        return [self.attempt(batch_id, store) for store in self.stores]

    def state_files(self) -> set[str]:
        """The files of ours below the state root."""
        found = self.storage.below("state").find("")
        return {path for path in found if path.endswith(STATE_SUFFIXES)}

    def live_files(self) -> set[str]:
        """What the versions that Spark can still load consist of."""
        return {
            path
            for handles in self.committed.values()
            for handle in handles.values()
            for path in needed_by(handle)
        }


def needed_by(handle: StateHandle) -> set[str]:
    return {handle.path, *(data.path for data in handle.data)}


def _directory(store: Store) -> str:
    below = "" if store.name == "default" else f"/{store.name}"
    return f"{store.operator_id}/{store.partition}{below}"


def _ref(path: str, first_version: int, last_version: int, level: int) -> StateFileRef:
    return StateFileRef(
        path=path,
        offset=0,
        length=100,
        tail_length=10,
        tail_crc32=1,
        rows=1,
        first_key_group=0,
        last_key_group=0,
        first_version=first_version,
        last_version=last_version,
        level=level,
        base=level > 0,
    )


def ack_of(handle: StateHandle, run_id: str = "run", received_ms: int = 0, **times: int) -> Ack:
    defaults = {"sync_ms": 1, "write_ms": 2, "bytes_written": 100, "task_attempt": 0}
    return Ack(run_id=run_id, handle=handle, received_ms=received_ms, **{**defaults, **times})


class ManualWorker:
    """Does its jobs when it is told to."""

    def __init__(self) -> None:
        self.jobs: deque[Callable[[], None]] = deque()

    def submit(self, job: Callable[[], None]) -> None:
        if job not in self.jobs:
            self.jobs.append(job)

    def join(self, timeout_s: float) -> bool:
        while self.jobs:
            self.jobs.popleft()()
        return True

    def close(self) -> None:
        self.jobs.clear()


@dataclass
class Recorder:
    """Keeps what a coordinator tells."""

    completed: list[CompletedCheckpoint] = field(default_factory=list)
    aborted: list[tuple[int, CheckpointFailureReason]] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)

    def on_completed(self, checkpoint: CompletedCheckpoint) -> None:
        self.completed.append(checkpoint)

    def on_aborted(self, batch_id: int, reason: CheckpointFailureReason, message: str) -> None:
        self.aborted.append((batch_id, reason))
        self.messages.append(message)

    def on_stop_query(self, message: str) -> None:
        self.stopped.append(message)


class Run:
    """A run of the query with a coordinator whose workers and clock stand still by themselves."""

    def __init__(
        self,
        query: FakeQuery,
        run_id: str = "run",
        now_ms: int = 0,
        recorder: Recorder | None = None,
        store: CompletedCheckpointStore | None = None,
        resumed: bool = False,
        **settings: Any,
    ) -> None:
        self.query = query
        self.run_id = run_id
        self.now_ms = now_ms
        self.worker, self.janitor, self.renewer = ManualWorker(), ManualWorker(), ManualWorker()
        self.recorder = recorder or Recorder()
        defaults = CoordinatorSettings(min_batches_to_retain=query.min_batches)
        self.coordinator = CheckpointCoordinator(
            query.storage,
            QueryRun(run_id, QUERY_ID),
            replace(defaults, **settings),
            self.recorder,
            resumed=resumed,
            store=store,
            worker=self.worker,
            janitor_worker=self.janitor,
            lease_worker=self.renewer,
            clock=lambda: self.now_ms,
        )
        self.coordinator.query_started()

    def work(self) -> None:
        """Does all that is to be done at this moment."""
        workers = (self.renewer, self.worker, self.janitor)
        while any(worker.jobs for worker in workers):
            for worker in workers:
                worker.join(0)

    def ack(self, handle: StateHandle) -> Any:
        return self.coordinator.acknowledge(ack_of(handle, self.run_id, self.now_ms))

    def batch(self, batch_id: int, progress: bool = True) -> list[StateHandle]:
        """A whole batch: run, acknowledged and committed."""
        handles = self.query.run_batch(batch_id)
        for handle in handles:
            self.ack(handle)
        self.query.commit(batch_id, handles)
        if progress:
            self.coordinator.batch_committed(batch_id)
        return handles

    def pass_time(self, milliseconds: int) -> None:
        self.now_ms += milliseconds
        self.coordinator.tick()
        self.work()
