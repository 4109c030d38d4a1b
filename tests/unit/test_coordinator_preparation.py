"""Requests of queries that start: what they ask for, and that each is answered, in its turn."""

import io
import threading
from typing import Any

import pytest

from sparkckpt.coordinator.preparation import Preparation, Preparations
from sparkckpt.coordinator.wire import Frame, FrameWriter, read_frame
from sparkckpt.errors import SparkckptError


class Answers(FrameWriter):
    """Keeps what would go over the pipe."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO())
        self.frames: dict[int, Frame] = {}
        self._came = threading.Condition()

    def write(self, frame: Frame) -> None:
        with self._came:
            self.frames[frame.number("id")] = frame
            self._came.notify_all()

    def to(self, number: int) -> dict[str, Any]:
        with self._came:
            assert self._came.wait_for(lambda: number in self.frames, 60)
            return dict(self.frames[number].fields)


def request(number: int, kind: str = "rescale", location: str = "/c", **fields: Any) -> Frame:
    fields = {"runId": "r", "checkpointLocation": location, "conf": {}, **fields}
    return Frame(kind, {"id": number, **fields})


def test_a_frame_is_a_request() -> None:
    fields = {"source": "/s", "parallelism": 3, "conf": {"restore.mode": "claim"}}
    assert Preparation.of(request(1, "restore", **fields)) == Preparation(
        "restore", "r", "/c", "/s", 3, {"restore.mode": "claim"}
    )
    assert Preparation.of(request(2)) == Preparation("rescale", "r", "/c", None, None, {})


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (SparkckptError("There is no such checkpoint."), "There is no such checkpoint."),
        (KeyError("x"), "KeyError: 'x'. Spark's log says more."),
    ],
)
def test_errors_are_answers(error: Exception, text: str) -> None:
    def fail(_: Preparation) -> str:
        raise error

    answers = Answers()
    Preparations(answers, fail).begin(request(1))
    assert answers.to(1) == {"id": 1, "error": text}


def test_a_request_that_cannot_be_read_is_answered_too() -> None:
    answers = Answers()
    Preparations(answers, lambda _: "done").begin(request(1, "restore"))
    assert "'source' of a 'restore' frame is None" in answers.to(1)["error"]


def test_requests_about_one_directory_wait_for_each_other_and_others_do_not() -> None:
    begun: list[str] = []
    may_end = threading.Event()

    def work(preparation: Preparation) -> str:
        begun.append(preparation.run_id)
        if preparation.run_id == "first":
            assert may_end.wait(60)
        return preparation.run_id

    answers = Answers()
    preparations = Preparations(answers, work)
    preparations.begin(request(1, runId="first"))
    preparations.begin(request(2, runId="second"))
    preparations.begin(request(3, runId="elsewhere", location="/d"))
    assert answers.to(3) == {"id": 3, "message": "elsewhere"}
    assert "second" not in begun
    may_end.set()
    assert answers.to(2) == {"id": 2, "message": "second"}
    assert answers.to(1) == {"id": 1, "message": "first"}


def test_an_answer_is_a_frame_of_its_own() -> None:
    stream = io.BytesIO()
    writer = FrameWriter(stream)
    preparations = Preparations(writer, lambda preparation: "done")
    preparations.begin(request(4))
    for thread in preparations._latest.values():
        thread.join(60)
    stream.seek(0)
    assert read_frame(stream) == Frame("answer", {"id": 4, "message": "done"})
