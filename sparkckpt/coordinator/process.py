"""The coordinator's process: one checkpoint coordinator per run, between two pipes.

Spark's driver launches it, tells it what happens to queries and serves its storage; it tells the
driver which checkpoints are complete. One thread reads the pipe, one handles events. It ends with
its parent: when the pipe ends, there is nobody left to work for, and nothing is lost that the next
start cannot find. It must never print to standard output, which is the pipe.
"""

import logging
import queue
import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from typing import BinaryIO

from sparkckpt.coordinator.acks import Ack
from sparkckpt.coordinator.bridge import BridgeFileSystem, StoragePipe
from sparkckpt.coordinator.completed import CompletedCheckpoint
from sparkckpt.coordinator.coordinator import CheckpointCoordinator
from sparkckpt.coordinator.failures import CheckpointFailureReason
from sparkckpt.coordinator.preparation import KINDS, Preparations
from sparkckpt.coordinator.reporter import QueryRun
from sparkckpt.coordinator.settings import CoordinatorSettings
from sparkckpt.coordinator.startup import prepare
from sparkckpt.coordinator.stopping import StopRequests
from sparkckpt.coordinator.stores import completed_store
from sparkckpt.coordinator.wire import Frame, FrameWriter, read_frame
from sparkckpt.coordinator.workers import WorkerThread
from sparkckpt.errors import BrokenPipeFrameError, SparkckptError
from sparkckpt.format.handle import camel_case, read_description
from sparkckpt.storage import Storage

logger = logging.getLogger(__name__)

TICK_SECONDS = 1.0
SUCCESSION_SECONDS = 5.0
"""So long a new run of a query waits for what the former one has not finished yet."""
MAX_WAITING_ACKS = 100_000
"""More are dropped: a handle can be read instead, and memory cannot be had back."""

_CHECKPOINT = re.compile(r"/_sparkckpt/chk-[0-9]+/?\Z")


class CoordinatorProcess:
    """Everything between the two pipes; `run` returns when the process is to end."""

    def __init__(self, from_driver: BinaryIO, to_driver: BinaryIO) -> None:
        self._from_driver = from_driver
        self._writer = FrameWriter(to_driver)
        self._pipe = StoragePipe(self._writer)
        self._filesystem = BridgeFileSystem(self._pipe)
        # Not a Queue: a signal handler may put into it while its own thread takes from it.
        self._events: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self._runs: dict[str, _Run] = {}
        self._preparations = Preparations(self._writer, partial(prepare, self._filesystem))
        self._waiting: list[tuple[Frame, float]] = []
        """Requests whose source has a run that is about to end, and until when they wait for it."""
        self._dropped_acks = 0

    def run(self) -> None:
        threading.Thread(target=self._read, name="sparkckpt-pipe", daemon=True).start()
        next_tick = time.monotonic() + TICK_SECONDS
        while True:
            wait = next_tick - time.monotonic()
            if wait <= 0:
                self._tick()
                next_tick = time.monotonic() + TICK_SECONDS
                continue
            try:
                frame = self._events.get(timeout=wait)
            except queue.Empty:
                continue
            if frame is None:
                return
            if frame.kind == "shutdown":
                self._drain(frame.number("timeoutMs") / 1000)
                return
            self._handle(frame)

    def finish(self, timeout_s: float) -> None:
        """Asks `run` to complete what it can and to return; safe in a signal handler."""
        self._events.put(Frame("shutdown", {"timeoutMs": int(timeout_s * 1000)}))

    def _read(self) -> None:
        """Answers go to those who wait for them, all else to the events."""
        try:
            while frame := read_frame(self._from_driver):
                if frame.kind == "storage_reply":
                    self._pipe.reply(frame)
                elif frame.kind == "ack" and self._events.qsize() >= MAX_WAITING_ACKS:
                    self._drop()
                else:
                    self._events.put(frame)
        except (BrokenPipeFrameError, OSError) as error:
            logger.error("%s", error)
        finally:
            self._pipe.close()
            self._events.put(None)

    def _drop(self) -> None:
        self._dropped_acks += 1
        if self._dropped_acks == 1:
            logger.warning("Acknowledgements come faster than they are handled; some are dropped.")

    def _handle(self, frame: Frame) -> None:
        if frame.kind in KINDS:
            self._waiting.append((frame, time.monotonic() + SUCCESSION_SECONDS))
        elif frame.kind == "query_started":
            self._guard(frame, self._start)
        else:
            self._guard(frame, self._pass_on)
        if self._waiting:
            self._begin_waiting()

    def _guard(self, frame: Frame, work: Callable[[Frame], None]) -> None:
        """What a frame leads to must never end the process."""
        try:
            work(frame)
        except SparkckptError as error:
            logger.warning("A %r frame is ignored. %s", frame.kind, error)
        except Exception:
            logger.exception("Handling a %r frame failed", frame.kind)

    def _pass_on(self, frame: Frame) -> None:
        if run := self._runs.get(frame.text("runId")):
            run.handle(frame)

    def _start(self, frame: Frame) -> None:
        location, run_id = frame.text("checkpointLocation"), frame.text("runId")
        self._finish_runs([run for run in self._runs.values() if run.location == location])
        run = _Run(frame, Storage(self._filesystem, location), self._writer)
        self._runs[run_id] = run
        run.start()

    def _begin_waiting(self) -> None:
        """Spark may tell late that the run on a request's source has ended. Whatever becomes of
        that, the request is answered."""
        now, waiting, self._waiting = time.monotonic(), self._waiting, []
        for frame, deadline in waiting:
            if now < deadline and not all(run.has_ended for run in self._runs_on_source(frame)):
                self._waiting.append((frame, deadline))
            else:
                self._guard(frame, self._prepare)

    def _prepare(self, frame: Frame) -> None:
        """Former runs, also on the source, may still be about to complete the checkpoint of their
        last batch and to give up their lease. Nobody asks about a target whose query runs, but a
        source may have been started again: only what has ended is closed there."""
        location = frame.fields.get("checkpointLocation")
        former = [run for run in self._runs.values() if run.location == location]
        former += [r for r in self._runs_on_source(frame) if r.has_ended and r not in former]
        try:
            self._finish_runs(former)
        finally:
            self._preparations.begin(frame)

    def _runs_on_source(self, frame: Frame) -> list["_Run"]:
        """Those on the directory that a request restores from, as a whole or by a checkpoint."""
        if not frame.fields.get("sourceIsIdle"):
            return []
        directory = _CHECKPOINT.sub("", str(frame.fields.get("source")))
        return [run for run in self._runs.values() if run.location == directory]

    def _finish_runs(self, runs: Iterable["_Run"]) -> None:
        for run in runs:
            self._wait_for(run, SUCCESSION_SECONDS)
            self._close(run)

    def _tick(self) -> None:
        self._begin_waiting()
        for run in list(self._runs.values()):
            try:
                run.tick()
                if run.is_suspended and not run.has_ended:
                    self._begin_again(run)
            except Exception:
                logger.exception("The coordinator of %s failed", run)
            if run.is_done:
                self._close(run)

    def _begin_again(self, run: "_Run") -> None:
        """What the lost one knew counts for nothing once the other has ended."""
        run.close()
        again = run.resumed()
        self._runs[run.run_id] = again
        again.start()

    def _drain(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        for run in self._runs.values():
            run.end()
        for run in self._runs.values():
            self._wait_for(run, max(0.0, deadline - time.monotonic()))
        self._writer.write(Frame("drained"))

    def _wait_for(self, run: "_Run", timeout_s: float) -> None:
        if not run.drain(timeout_s):
            logger.warning("%s is left unfinished; its next start will see to it", run)

    def _close(self, run: "_Run") -> None:
        run.close()
        del self._runs[run.run_id]
        self._writer.write(Frame("closed", {"runId": run.run_id}))


class _Run:
    """One run of a query: its frames are its coordinator's events, and the effects are frames."""

    def __init__(
        self, started: Frame, storage: Storage, writer: FrameWriter, *, resumed: bool = False
    ) -> None:
        self._started = started
        self.run_id = started.text("runId")
        self.location = started.text("checkpointLocation")
        self._query = QueryRun(self.run_id, started.text("queryId"), started.text("name"))
        self._storage = storage
        self._writer = writer
        options = {str(name): str(text) for name, text in started.fields["conf"].items()}
        settings = CoordinatorSettings.of(options, started.number("minBatchesToRetain"))
        store = completed_store(storage, self._query.query_id, settings)
        self._coordinator = CheckpointCoordinator(
            storage,
            self._query,
            settings,
            self,
            resumed=resumed or started.fields.get("isResumed") is True,
            store=store,
        )
        self._stopping = StopRequests(
            storage, self.run_id, self._tell, self._coordinator.complete_last, time.monotonic
        )
        self._stop_worker = WorkerThread("sparkckpt-stop")
        self._ended = False
        self.start: Callable[[], None] = self._coordinator.query_started

    def __str__(self) -> str:
        return str(self._query)

    def handle(self, frame: Frame) -> None:
        match frame.kind:
            case "ack":
                self._coordinator.acknowledge(self._ack_in(frame))
            case "progress":
                self._coordinator.batch_committed(frame.number("batchId"))
            case "query_held":
                self._stop_worker.submit(self._stopping.held)
            case "query_not_held":
                self._stop_worker.submit(self._stopping.lost)
            case "query_ended":
                error = frame.fields.get("error")
                self.end(None if error is None else str(error))
            case other:
                logger.warning("A frame of the unknown type %r is ignored", other)

    def _ack_in(self, frame: Frame) -> Ack:
        return Ack(
            self.run_id,
            read_description(frame.payload, f"an acknowledgement of {self._query}"),
            frame.number("receivedMs"),
            frame.number("syncMs"),
            frame.number("writeMs"),
            frame.number("bytesWritten"),
            frame.number("taskAttempt"),
        )

    def end(self, error: str | None = None) -> None:
        self._ended = True
        self._coordinator.query_ended(error)

    def tick(self) -> None:
        self._coordinator.tick()
        if self._coordinator.owns and not self._ended and self._stopping.is_due:
            self._stop_worker.submit(self._stopping.poll)

    def close(self) -> None:
        self._stop_worker.close()
        self._coordinator.close()

    def resumed(self) -> "_Run":
        """The same run, to begin again."""
        return _Run(self._started, self._storage, self._writer, resumed=True)

    @property
    def is_suspended(self) -> bool:
        return self._coordinator.is_suspended

    @property
    def has_ended(self) -> bool:
        return self._ended

    @property
    def is_done(self) -> bool:
        """Whether the run has ended and all that it leaves behind is complete."""
        return self._ended and self._coordinator.drain(0)

    def drain(self, timeout_s: float) -> bool:
        return self._coordinator.drain(timeout_s)

    def on_completed(self, checkpoint: CompletedCheckpoint) -> None:
        statistics = {camel_case(k): v for k, v in asdict(checkpoint.statistics).items()}
        self._tell(
            "checkpoint_completed",
            checkpointId=checkpoint.checkpoint_id,
            batchId=checkpoint.batch_id,
            path=self._storage.where(checkpoint.path),
            timestampMs=checkpoint.timestamp_ms,
            **statistics,
        )

    def on_aborted(self, batch_id: int, reason: CheckpointFailureReason, message: str) -> None:
        self._tell("checkpoint_aborted", batchId=batch_id, reason=reason.name, message=message)

    def on_stop_query(self, message: str) -> None:
        self._tell("stop_query", message=message)

    def _tell(self, kind: str, **fields: object) -> None:
        ids = {"runId": self.run_id, "queryId": self._query.query_id}
        self._writer.write(Frame(kind, {**ids, **fields}))
