"""Kills coordinators and drivers of a real job with -9, and looks at what they leave behind."""

import contextlib
import json
import os
import random
import re
import signal
import time
from collections.abc import Iterable
from enum import Enum
from pathlib import Path

import sparkckpt
from sparkckpt.coordinator.committed import CommittedState
from sparkckpt.format import StateHandle
from sparkckpt.format.metadata import metadata_path, read_metadata
from sparkckpt.storage import Storage
from tests.spark.fault_driver import Program, output_of, read_batches, windows
from tests.spark.fault_runs import finish, kill, launch, log_of, wait_for_batch
from tests.spark.faults import running_sums, wait_until
from tests.spark.jobs import KEYS
from tests.spark.streams import STATE_STORE, checkpoint_of, feed

RETAINED = 3
MIN_BATCHES = 2
MERGE_WINDOW = 2
"""So many versions a merged file may wait for a handle that names it."""
QUERIES = ("sums", "windows")
COORDINATOR = b"\0-m\0sparkckpt.coordinator\0"
"""In the command line of the process, as /proc shows it; the driver's has options of that name."""
CONFS = {
    "spark.sql.streaming.minBatchesToRetain": str(MIN_BATCHES),
    STATE_STORE + "sparkckpt.checkpoint.retained": str(RETAINED),
    STATE_STORE + "sparkckpt.inlineThreshold": "2k",
}


class Victim(Enum):
    COORDINATOR = "the coordinator"
    DRIVER = "the driver, which its coordinator outlives for a moment"
    BOTH = "both at once"
    STARTING_DRIVER = "both, and their successors while they start"


class KilledJob:
    """Two queries in one driver, fed batch by batch."""

    def __init__(self, workdir: Path, rng: random.Random, batches: int) -> None:
        self._rng = rng
        self._program = Program(workdir, "local[2]", confs=CONFS, until_told=True)
        self._inputs = {"sums": running_sums(batches=batches), "windows": windows(batches)}
        self._outputs = [output_of(workdir, name) for name in QUERIES]
        self._workdir = workdir
        self._batch = 0
        for name in QUERIES:
            (workdir / name).mkdir(parents=True)
        self._driver = launch(self._program)

    def close(self) -> None:
        kill(self._driver)

    def checkpoint(self, query: str) -> Path:
        return checkpoint_of(self._workdir / query)

    @property
    def last_batch(self) -> int:
        return self._batch - 1

    def process_batch(self, victim: Victim | None = None) -> None:
        """One batch, in the midst of which the victim dies; it is processed nevertheless."""
        if victim is Victim.COORDINATOR:
            wait_until(lambda: bool(self._coordinators()))
        for name, job in self._inputs.items():
            feed(job, self._workdir / name, [self._batch])
        if victim is not None:
            time.sleep(self._rng.uniform(0, 1.5))  # The moment is the fault: nothing to wait for.
            self._kill(victim)
        wait_for_batch(self._driver, self._outputs, self._batch)
        assert self._driver.poll() is None, self._log()
        self._batch += 1

    def _kill(self, victim: Victim) -> None:
        if victim is Victim.COORDINATOR:
            _kill_all(self._coordinators())
            return
        if victim is Victim.DRIVER:
            _kill_all(self._processes() - self._coordinators())
            wait_until(lambda: not self._coordinators(), limit=60)
        kill(self._driver)
        self._driver = launch(self._program)
        if victim is Victim.STARTING_DRIVER:
            time.sleep(self._rng.uniform(0, 12))
            kill(self._driver)
            self._driver = launch(self._program)

    def finish(self) -> None:
        """Ends well, and starts once more without input: that start cleans up after all others."""
        self._program.told_to_stop.touch()
        finish(self._driver, self._program)
        self._driver = launch(self._program)
        finish(self._driver, self._program)

    def _processes(self) -> set[int]:
        """Everything that the driver has started, and itself."""
        return {pid for pid in _pids() if _group_of(pid) == self._driver.pid}

    def _coordinators(self) -> set[int]:
        return {pid for pid in self._processes() if COORDINATOR in _command_of(pid)}

    def _log(self) -> str:
        return log_of(self._program).read_text()[-4000:]

    # What must be true in the end.

    def check(self) -> None:
        self._check_output()
        for query in QUERIES:
            checkpoint = self.checkpoint(query)
            self._check_list(checkpoint)
            assert sparkckpt.verify(checkpoint).to_pylist() == []
            assert stale_files(checkpoint) == []
            assert sparkckpt.clean(checkpoint).to_pylist() == []

    def _check_output(self) -> None:
        sums = read_batches(output_of(self._workdir, "sums"))
        assert sums == {batch: expected_sums(batch) for batch in range(self._batch)}

    def _check_list(self, checkpoint: Path) -> None:
        rows = sparkckpt.list_checkpoints(checkpoint).to_pylist()
        assert {row["status"] for row in rows} == {"retained"}, rows
        assert 1 <= len(rows) <= RETAINED
        batches = [row["batch_id"] for row in rows]
        assert batches == sorted(set(batches)) and batches[-1] == self.last_batch
        ours = set(Storage.at(checkpoint).find("_sparkckpt")) - {"_sparkckpt/backend.json"}
        # A coordinator killed while it renews its lease leaves the file that it was writing.
        ours -= {path for path in ours if path.startswith("_sparkckpt/owner/.")}
        (lease,) = {path for path in ours if path.startswith("_sparkckpt/owner/")}
        assert ours - {lease} == {metadata_path(row["checkpoint_id"]) for row in rows}
        assert json.loads((checkpoint / lease).read_text())["expiresMs"] == 0


def expected_sums(batch: int) -> list[str]:
    return sorted(
        f"(k={key!r}, total={sum(i + 10 * b for b in range(batch + 1))})"
        for i, key in enumerate(KEYS)
    )


def stale_files(checkpoint: Path) -> list[str]:
    """Files older than all that can be restored or loaded, which none of that needs.

    Reckoned without the coordinator's own bookkeeping.
    """
    storage = Storage.at(checkpoint)
    committed = CommittedState(storage)
    handles = [
        *_handles_of_checkpoints(storage),
        *(handle for batch in committed.batches() for handle in committed.load_all(batch)),
    ]
    needed = {path for handle in handles for path in _files_of(handle)}
    found = storage.below("state").find("")
    assert needed <= set(found), f"missing: {sorted(needed - set(found))}"
    oldest = min(handle.version for handle in handles)
    return [path for path in found if path not in needed and _is_older(path, oldest)]


def _handles_of_checkpoints(storage: Storage) -> Iterable[StateHandle]:
    for row in sparkckpt.list_checkpoints(storage.root).to_pylist():
        path = metadata_path(row["checkpoint_id"])
        yield from read_metadata(storage.read_all(path), path).handles


def _files_of(handle: StateHandle) -> set[str]:
    return {handle.path, *(file.path for family in handle.families for file in family.files)}


def _is_older(path: str, version: int) -> bool:
    named = re.match(r"\.?(\d+)_", path.rpartition("/")[2])
    window = MERGE_WINDOW if ".merge." in path else 0
    return named is not None and int(named[1]) + window < version


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").glob("[0-9]*")]


def _group_of(pid: int) -> int | None:
    """The process group, None for a process that is gone or a zombie."""
    try:
        state, _, group = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:3]
    except OSError:
        return None
    return None if state == "Z" else int(group)


def _command_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _kill_all(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill_at_random(workdir: Path, rng: random.Random, rounds: int) -> None:
    """Every round kills; every second batch is left alone."""
    victims = [*Victim, *rng.choices(list(Victim), k=max(0, rounds - len(Victim)))][:rounds]
    rng.shuffle(victims)
    print([victim.name for victim in victims])
    job = KilledJob(workdir, rng, batches=2 * rounds + 4)
    try:
        job.process_batch()
        for victim in victims:
            job.process_batch(victim)
            job.process_batch()
        for _ in range(3):
            job.process_batch()
        job.finish()
        job.check()
    finally:
        job.close()
