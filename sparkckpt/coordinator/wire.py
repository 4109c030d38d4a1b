"""Frames on the pipe between Spark's driver and the coordinator; `Frame.scala` is the other end.

A frame is two lengths (uint32, little-endian), a JSON object with a "type", and bytes. This module
knows what frames look like and nothing of what they mean. It must never read past a frame that is
malformed: after that nothing on the stream can be trusted.
"""

import json
import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from sparkckpt.errors import BrokenPipeFrameError

_LENGTHS = struct.Struct("<II")
_MAX_HEADER_BYTES = 16 << 20
_MAX_PAYLOAD_BYTES = 1 << 30


@dataclass(frozen=True)
class Frame:
    """One message: its type, the other fields of its header, and its payload."""

    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    payload: bytes = b""

    def text(self, name: str) -> str:
        return str(self._get(name, str))

    def number(self, name: str) -> int:
        return int(self._get(name, int))

    def _get(self, name: str, wanted: type) -> Any:
        value = self.fields.get(name)
        if type(value) is not wanted:
            raise BrokenPipeFrameError(f"'{name}' of a {self.kind!r} frame is {value!r}")
        return value


def read_frame(stream: BinaryIO) -> Frame | None:
    """The next frame, or None where the stream ends between two."""
    lengths = stream.read(_LENGTHS.size)
    if not lengths:
        return None
    if len(lengths) < _LENGTHS.size:
        raise BrokenPipeFrameError("the stream ends within a frame")
    header_length, payload_length = _LENGTHS.unpack(lengths)
    if header_length > _MAX_HEADER_BYTES or payload_length > _MAX_PAYLOAD_BYTES:
        raise BrokenPipeFrameError(f"a frame would have {header_length} + {payload_length} bytes")
    header, payload = stream.read(header_length), stream.read(payload_length)
    if len(header) < header_length or len(payload) < payload_length:
        raise BrokenPipeFrameError("the stream ends within a frame")
    try:
        fields = json.loads(header)
    except ValueError as error:
        raise BrokenPipeFrameError(f"the header of a frame is not JSON: {error}") from error
    if not isinstance(fields, dict) or not isinstance(fields.get("type"), str):
        raise BrokenPipeFrameError(f"the header of a frame is {fields!r}")
    return Frame(fields.pop("type"), fields, payload)


class FrameWriter:
    """Writes whole frames from any thread."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def write(self, frame: Frame) -> None:
        header = json.dumps({"type": frame.kind, **frame.fields}, separators=(",", ":")).encode()
        with self._lock:
            self._stream.write(_LENGTHS.pack(len(header), len(frame.payload)))
            self._stream.write(header)
            self._stream.write(frame.payload)
            self._stream.flush()
