"""The frame of handles and metadata: magic, version, payload, compressed JSON, length, crc, magic.

Knows where the description of a file lies and that it is undamaged, never what it says.
"""

import json
import struct
import zlib
from dataclasses import dataclass
from typing import Any

import zstandard

from sparkckpt.errors import CorruptStateError, UnsupportedFormatVersionError

_HEADER = struct.Struct("<8sI")
_TRAILER = struct.Struct("<II8s")
_MAX_DESCRIPTION_BYTES = 256 << 20
_ZSTD_LEVEL = 3

HEADER_LENGTH = _HEADER.size
"""Where what precedes the description begins."""


@dataclass(frozen=True)
class Frame:
    """The frame of one kind of file; `kind` names it in messages."""

    magic: bytes
    newest_version: int
    kind: str

    def pack(self, description: bytes, payload: bytes = b"", version: int = 1) -> bytes:
        """The bytes of a file with this compressed description, in this format version."""
        trailer = _TRAILER.pack(len(description), zlib.crc32(description), self.magic)
        return _HEADER.pack(self.magic, version) + payload + description + trailer

    def check_version(self, data: bytes, said: int, where: str) -> None:
        """Raises unless the file has the format version that goes with what it says."""
        _, version = _HEADER.unpack_from(data)
        if version != said:
            raise CorruptStateError(where, f"what it says is not of format version {version}")

    def unpack(self, data: bytes, where: str) -> tuple[bytes, int]:
        """The verified description, still compressed, and where it begins."""
        if len(data) < _HEADER.size + _TRAILER.size:
            raise CorruptStateError(where, f"it is truncated to {len(data)} bytes")
        magic, version = _HEADER.unpack_from(data)
        if magic != self.magic:
            raise CorruptStateError(where, f"it does not begin as a {self.kind} does")
        if version > self.newest_version:
            raise UnsupportedFormatVersionError(where, version, self.newest_version)
        if version < 1:
            raise CorruptStateError(where, "it has format version 0")
        end = len(data) - _TRAILER.size
        length, crc32, magic = _TRAILER.unpack_from(data, end)
        if magic != self.magic:
            raise CorruptStateError(
                where, f"it does not end as a {self.kind} does: it is truncated"
            )
        start = end - length
        if start < _HEADER.size:
            raise CorruptStateError(where, f"its description cannot have {length} bytes")
        description = data[start:end]
        if zlib.crc32(description) != crc32:
            raise CorruptStateError(where, "the checksum of its description does not match")
        return description, start


def compress(value: object) -> bytes:
    """The value as JSON in one zstd frame that states its content size."""
    text = json.dumps(value, separators=(",", ":"))
    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(text.encode())


def decompress(description: bytes, where: str) -> Any:
    """What `compress` has made these bytes of."""
    try:
        size = zstandard.frame_content_size(description)
        if not 0 <= size <= _MAX_DESCRIPTION_BYTES:
            raise CorruptStateError(where, f"its description would have {size} bytes")
        return json.loads(zstandard.ZstdDecompressor().decompress(description))
    except zstandard.ZstdError as error:
        raise CorruptStateError(where, f"its description is not zstd: {error}") from error
    except (ValueError, RecursionError) as error:
        raise CorruptStateError(where, f"its description is not JSON: {error}") from error
