"""Frames between the driver and the coordinator."""

import io
import json
import struct
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkckpt.coordinator.wire import Frame, FrameWriter, read_frame
from sparkckpt.errors import BrokenPipeFrameError

NAMES = st.text(min_size=1).filter(lambda name: name != "type")
FRAMES = st.builds(
    Frame,
    st.text(),
    st.dictionaries(NAMES, st.text() | st.integers() | st.booleans(), max_size=5),
    st.binary(),
)


def written(*frames: Frame) -> bytes:
    stream = io.BytesIO()
    writer = FrameWriter(stream)
    for frame in frames:
        writer.write(frame)
    return stream.getvalue()


@given(st.lists(FRAMES, max_size=5))
def test_frames_are_read_as_they_were_written(frames: list[Frame]) -> None:
    stream = io.BytesIO(written(*frames))
    assert [read_frame(stream) for _ in frames] == frames
    assert read_frame(stream) is None


@given(FRAMES, st.data())
def test_a_stream_that_ends_within_a_frame_is_told_from_one_that_ends(
    frame: Frame, data: st.DataObject
) -> None:
    whole = written(frame)
    cut = data.draw(st.integers(1, len(whole) - 1))
    with pytest.raises(BrokenPipeFrameError, match="ends within a frame"):
        read_frame(io.BytesIO(whole[:cut]))


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (b"{", "is not JSON"),
        (b"[]", r"header of a frame is \[\]"),
        (b'{"type":3}', "header of a frame is {'type': 3}"),
    ],
)
def test_what_is_no_frame_is_refused(header: bytes, why: str) -> None:
    with pytest.raises(BrokenPipeFrameError, match=why):
        read_frame(io.BytesIO(struct.pack("<II", len(header), 0) + header))


def test_absurd_lengths_are_refused_before_anything_is_read() -> None:
    with pytest.raises(BrokenPipeFrameError, match="would have 4294967295"):
        read_frame(io.BytesIO(struct.pack("<II", 2**32 - 1, 0)))


def test_the_layout_is_that_of_the_other_end() -> None:
    data = written(Frame("ack", {"runId": "r"}, b"xyz"))
    header = b'{"type":"ack","runId":"r"}'
    assert data == struct.pack("<II", len(header), 3) + header + b"xyz"


def test_fields_are_of_the_type_asked_for() -> None:
    frame = Frame("progress", {"runId": "r", "batchId": 7})
    assert (frame.text("runId"), frame.number("batchId")) == ("r", 7)
    with pytest.raises(BrokenPipeFrameError, match="'batchId' of a 'progress' frame is 7"):
        frame.text("batchId")


def test_threads_do_not_mix_their_frames() -> None:
    stream = io.BytesIO()
    writer = FrameWriter(stream)

    def write(thread: int) -> None:
        for number in range(100):
            writer.write(Frame("x", {"thread": thread}, bytes([thread]) * number))

    threads = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stream.seek(0)
    lengths: dict[int, list[int]] = {}
    while frame := read_frame(stream):
        assert set(frame.payload) <= {frame.number("thread")}
        lengths.setdefault(frame.number("thread"), []).append(len(frame.payload))
    assert lengths == {thread: list(range(100)) for thread in range(8)}
    assert json.dumps(lengths)
