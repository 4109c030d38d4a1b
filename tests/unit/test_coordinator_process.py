"""The coordinator as a process of its own, with a stand-in for the driver at the other end."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

import pytest

from sparkckpt.coordinator.lease import OWNERS, Lease
from sparkckpt.coordinator.wire import Frame
from sparkckpt.format.handle import StateHandle, write_description
from sparkckpt.format.metadata import read_metadata
from sparkckpt.processes import ProcessId
from sparkckpt.restoration.exclusive import wall_clock
from sparkckpt.storage import Storage
from tests.unit.coordinator_samples import QUERY_ID, FakeQuery
from tests.unit.fake_driver import FakeDriver

ROOT = Path(__file__).resolve().parents[2]
PATIENT = """
from sparkckpt.coordinator import process
from sparkckpt.coordinator.__main__ import main
process.SUCCESSION_SECONDS = 60.0
main()
"""
"""The process with time enough, on a machine with other things to do, to finish a former run."""


@dataclass
class Coordinator:
    """The process, what it has said, and a query for it to look after."""

    process: subprocess.Popen[bytes]
    driver: FakeDriver
    checkpoint: Path
    log: Path
    query: FakeQuery = field(init=False)

    def __post_init__(self) -> None:
        self.query = FakeQuery(Storage.at(self.checkpoint))

    @property
    def location(self) -> str:
        return f"file:{self.checkpoint}"

    def start_query(self, run_id: str, below: str = "", **conf: str) -> None:
        fields = {
            "runId": run_id,
            "queryId": QUERY_ID,
            "name": "",
            "checkpointLocation": self.location + below,
            "conf": conf,
            "minBatchesToRetain": 100,
        }
        self.driver.writer.write(Frame("query_started", fields))

    def ask_for_restore(self, target: str, source: str) -> None:
        fields = {
            "id": 1,
            "runId": "restored",
            "checkpointLocation": target,
            "source": source,
            "sourceIsIdle": True,
            "conf": {},
        }
        self.driver.writer.write(Frame("restore", fields))

    def end_query(self, run_id: str) -> None:
        self.driver.writer.write(Frame("query_ended", {"runId": run_id}))

    def frames_until(self, kind: str) -> list[Frame]:
        """What it says up to the next frame of this kind."""
        frames = [self.driver.frames.get(timeout=60)]
        while frames[-1].kind != kind:
            frames.append(self.driver.frames.get(timeout=60))
        return frames

    def acknowledge(self, run_id: str, handle: StateHandle) -> None:
        numbers = ("receivedMs", "syncMs", "writeMs", "bytesWritten", "taskAttempt")
        fields = {"runId": run_id, **dict.fromkeys(numbers, 1)}
        self.driver.writer.write(Frame("ack", fields, write_description(handle)))

    def run_batch(self, run_id: str, batch_id: int, acks: bool = True) -> None:
        handles = self.query.run_batch(batch_id)
        for handle in handles if acks else ():
            self.acknowledge(run_id, handle)
        self.query.commit(batch_id, handles)
        self.driver.writer.write(Frame("progress", {"runId": run_id, "batchId": batch_id}))

    def completed_batches(self) -> list[int]:
        files = (self.checkpoint / "_sparkckpt").glob("chk-*/_metadata")
        return sorted(read_metadata(f.read_bytes(), str(f)).batch_id for f in files)

    def end_input(self) -> None:
        self._input.close()

    @property
    def _input(self) -> IO[bytes]:
        assert self.process.stdin is not None
        return self.process.stdin


@contextmanager
def launched(tmp_path: Path, patient: bool = False) -> Iterator[Coordinator]:
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, *(("-c", PATIENT) if patient else ("-m", "sparkckpt.coordinator"))],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
        )
    assert process.stdin is not None and process.stdout is not None
    checkpoint = tmp_path / "checkpoint"
    try:
        yield Coordinator(process, FakeDriver(process.stdin, process.stdout), checkpoint, log)
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    with launched(tmp_path) as process:
        yield process


@pytest.fixture
def patient_coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    with launched(tmp_path, patient=True) as process:
        yield process


def test_it_ends_when_its_parent_does(coordinator: Coordinator) -> None:
    coordinator.start_query("r")
    coordinator.end_input()
    assert coordinator.process.wait(60) == 0


def test_it_ends_though_storage_does_not_answer(coordinator: Coordinator) -> None:
    coordinator.driver.hold.clear()
    coordinator.start_query("r")
    while not coordinator.driver.requests:
        assert coordinator.process.poll() is None
        time.sleep(0.01)
    coordinator.end_input()
    assert coordinator.process.wait(60) == 0


def test_batches_become_checkpoints_with_acks_or_without(coordinator: Coordinator) -> None:
    coordinator.start_query("r")
    for batch, acks in enumerate((True, False)):
        coordinator.run_batch("r", batch, acks)
        frame = coordinator.driver.next_frame("checkpoint_completed")
        assert (frame.text("runId"), frame.text("queryId")) == ("r", QUERY_ID)
        assert frame.number("batchId") == batch
        assert frame.number("stateBytes") > 0
        path = Path(frame.text("path").removeprefix("file:"))
        metadata = read_metadata(path.read_bytes(), str(path))
        assert metadata.checkpoint_id == frame.number("checkpointId")
    assert coordinator.completed_batches() == [0, 1]


def test_a_run_that_has_ended_is_finished_and_closed(coordinator: Coordinator) -> None:
    coordinator.start_query("r", **{"checkpoint.interval": "100"})
    coordinator.run_batch("r", 0)
    coordinator.end_query("r")
    assert coordinator.driver.next_frame("closed").text("runId") == "r"
    assert coordinator.completed_batches() == [0]


def test_the_next_run_takes_over_from_the_former(patient_coordinator: Coordinator) -> None:
    coordinator = patient_coordinator
    coordinator.start_query("first")
    coordinator.run_batch("first", 0)
    coordinator.start_query("second")
    assert coordinator.driver.next_frame("closed").text("runId") == "first"
    coordinator.run_batch("second", 1)
    while coordinator.driver.next_frame("checkpoint_completed").number("batchId") != 1:
        pass
    assert coordinator.completed_batches() == [0, 1]


def test_a_run_that_was_overtaken_begins_again_when_the_other_has_ended(
    coordinator: Coordinator,
) -> None:
    coordinator.start_query("r")
    coordinator.run_batch("r", 0)
    coordinator.frames_until("checkpoint_completed")
    storage = coordinator.query.storage
    other = Lease.claim(storage, "of another driver", wall_clock())
    elsewhere = replace(other.owner, process=ProcessId("elsewhere", 1))
    path = f"{OWNERS}/{other.epoch}"
    storage.write_atomic(path, elsewhere.to_bytes(), overwrite=True)
    coordinator.run_batch("r", 1)
    while "is owned by another coordinator" not in coordinator.log.read_text():
        assert coordinator.process.poll() is None
        time.sleep(0.01)
    coordinator.run_batch("r", 2)
    assert storage.read_all(path) == elsewhere.to_bytes()
    storage.write_atomic(path, replace(elsewhere, expires_ms=0).to_bytes(), overwrite=True)
    while coordinator.frames_until("checkpoint_completed")[-1].number("batchId") < 2:
        pass
    assert coordinator.completed_batches() == [0, 1, 2]


def test_a_query_in_a_directory_within_another_leaves_the_other_alone(
    coordinator: Coordinator,
) -> None:
    coordinator.start_query("outer")
    coordinator.start_query("inner", "/q2")
    coordinator.ask_for_restore(f"{coordinator.location}/q3", "file:/nowhere")
    frames = coordinator.frames_until("answer")
    coordinator.ask_for_restore("file:/nowhere", f"{coordinator.location}/q4")
    frames += coordinator.frames_until("answer")
    coordinator.run_batch("outer", 0)
    frames += coordinator.frames_until("checkpoint_completed")
    assert "closed" not in [frame.kind for frame in frames]
    assert frames[-1].text("runId") == "outer"


@pytest.mark.parametrize("below", ["", "/_sparkckpt/chk-1"])
def test_a_restore_waits_for_the_end_of_its_source_and_for_its_last_checkpoint(
    patient_coordinator: Coordinator, below: str
) -> None:
    coordinator = patient_coordinator
    coordinator.start_query("source", **{"checkpoint.interval": "100"})
    coordinator.run_batch("source", 0)
    coordinator.ask_for_restore("file:/nowhere", coordinator.location + below)
    coordinator.end_query("source")
    frames = coordinator.frames_until("answer")
    assert [f.kind for f in frames] == ["checkpoint_completed", "closed", "answer"]


def test_a_source_that_runs_is_left_alone(coordinator: Coordinator) -> None:
    coordinator.start_query("source")
    coordinator.ask_for_restore("file:/nowhere", coordinator.location)
    frames = coordinator.frames_until("answer")
    coordinator.run_batch("source", 0)
    frames += coordinator.frames_until("checkpoint_completed")
    assert [f.kind for f in frames] == ["answer", "checkpoint_completed"]


def test_before_the_end_it_completes_what_was_committed(coordinator: Coordinator) -> None:
    coordinator.start_query("r", **{"checkpoint.interval": "100"})
    coordinator.run_batch("r", 0, acks=False)
    coordinator.driver.writer.write(Frame("shutdown", {"timeoutMs": 60_000}))
    coordinator.driver.next_frame("drained")
    assert coordinator.process.wait(60) == 0
    assert coordinator.completed_batches() == [0]


def test_it_can_be_terminated(coordinator: Coordinator) -> None:
    coordinator.start_query("r")
    coordinator.run_batch("r", 0)
    coordinator.driver.next_frame("checkpoint_completed")
    coordinator.process.send_signal(signal.SIGINT)
    coordinator.process.send_signal(signal.SIGTERM)
    coordinator.driver.next_frame("drained")
    assert coordinator.process.wait(60) == 0


def test_what_makes_no_sense_is_logged_and_left_aside(coordinator: Coordinator) -> None:
    coordinator.start_query("r")
    write = coordinator.driver.writer.write
    write(Frame("ack", {"runId": "never started"}, b"nonsense"))
    write(Frame("ack", {"runId": "r"}, b"nonsense"))
    write(Frame("levitate", {"runId": "r"}))
    write(Frame("progress", {"runId": "r"}))
    coordinator.run_batch("r", 0)
    coordinator.driver.next_frame("checkpoint_completed")
    log = coordinator.log.read_text()
    assert "an acknowledgement of query a-query is corrupt" in log
    assert "the unknown type 'levitate'" in log
    assert "'batchId' of a 'progress' frame is None" in log
