"""What is done to a checkpoint before a query starts on it: restored from elsewhere, or rescaled.

The query's own thread waits for the answer in Spark's driver, and fails if it is an error. Each
request has a thread of its own, so that a long copy keeps nobody else waiting; two about the same
directory come one after the other, since who asked first may have given up without a word. What
is killed here is gone on with by whoever is asked again.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sparkckpt.coordinator.wire import Frame, FrameWriter
from sparkckpt.errors import SparkckptError

logger = logging.getLogger(__name__)

KINDS = ("restore", "rescale")
"""The frames that are requests."""


@dataclass(frozen=True)
class Preparation:
    """One request."""

    kind: str
    run_id: str
    location: str
    source: str | None
    parallelism: int | None
    options: Mapping[str, str]

    @classmethod
    def of(cls, frame: Frame) -> "Preparation":
        return cls(
            frame.kind,
            frame.text("runId"),
            frame.text("checkpointLocation"),
            frame.text("source") if frame.kind == "restore" else None,
            frame.number("parallelism") if "parallelism" in frame.fields else None,
            {str(name): str(text) for name, text in frame.fields["conf"].items()},
        )


class Preparations:
    """The requests that are being worked on; `work` does one and says what it has done."""

    def __init__(self, writer: FrameWriter, work: Callable[[Preparation], str]) -> None:
        self._writer = writer
        self._work = work
        self._latest: dict[str, threading.Thread] = {}
        """By directory; only the thread that handles events begins requests."""

    def begin(self, frame: Frame) -> None:
        """Answers later, and in any case: a query waits for it."""
        location = frame.text("checkpointLocation")
        arguments = (frame, self._latest.get(location))
        thread = threading.Thread(target=self._run, args=arguments, name=f"sparkckpt-{frame.kind}")
        thread.daemon = True
        self._latest[location] = thread
        thread.start()

    def _run(self, frame: Frame, former: threading.Thread | None) -> None:
        if former is not None:
            former.join()
        answer: dict[str, Any] = {"id": frame.number("id")}
        try:
            answer["message"] = self._work(Preparation.of(frame))
        except SparkckptError as error:
            answer["error"] = str(error)
        except Exception as error:
            logger.exception("A %s of %s failed", frame.kind, frame.fields)
            answer["error"] = f"{type(error).__name__}: {error}. Spark's log says more."
        try:
            self._writer.write(Frame("answer", answer))
        except OSError as error:
            logger.debug("Nobody waits for the answer %s any more: %s", answer, error)
