"""Spark's files with the schemas of a state store: read, and with a schema in them changed.

Version 2 has the one schema of a store without column families, version 3 those of all families of
a transformWithState. Text lies in them as Java's `writeUTF` writes it, in chunks. Bytes of other
families, and all that is not a schema, stay as they are.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from sparkckpt.errors import CorruptStateError, UnsupportedFormatVersionError
from sparkckpt.sparklog.spans import Span

NEWEST_VERSION = 3
_DEFAULT = "default"
_CHUNK = 16_384
"""Characters, of which none takes more than three bytes: a chunk has at most 65535."""


@dataclass(frozen=True)
class FamilySchema:
    """The schemas of a column family, as JSON, and where each lies in the file."""

    family: str
    key: str
    value: str
    key_span: Span
    value_span: Span


def parse_schemas(data: bytes, where: str) -> dict[str, FamilySchema]:
    """The schemas in these bytes by column family; `where` names them in messages."""
    try:
        return {schema.family: schema for schema in _Reader(data, where).schemas()}
    except (struct.error, ValueError) as error:
        raise CorruptStateError(where, f"it is no file with schemas of state: {error}") from error


def with_schemas(data: bytes, where: str, changes: Mapping[str, tuple[str, str]]) -> bytes:
    """The file with other schemas, of key and value, of the families in it that are named."""
    spans: list[tuple[Span, str]] = []
    for schema in parse_schemas(data, where).values():
        if schema.family in changes:
            key, value = changes[schema.family]
            spans += [(schema.key_span, key), (schema.value_span, value)]
    for span, text in sorted(spans, key=lambda one: one[0].start, reverse=True):
        data = data[: span.start] + _chunked(text) + data[span.end :]
    return data


class _Reader:
    def __init__(self, data: bytes, where: str) -> None:
        self._data, self._where, self._at = data, where, 0

    def schemas(self) -> list[FamilySchema]:
        stated = self._utf()
        version = int(stated.removeprefix("v"))
        if version > NEWEST_VERSION:
            raise UnsupportedFormatVersionError(self._where, version, NEWEST_VERSION)
        if version == 3:
            return [self._of_family() for _ in range(self._number(">i"))]
        if version != 2:
            raise ValueError(f"its version is {stated}")
        (key, key_span), (value, value_span) = self._json(), self._json()
        return [FamilySchema(_DEFAULT, key, value, key_span, value_span)]

    def _of_family(self) -> FamilySchema:
        family = self._utf()
        self._number(">h")
        key, key_span = self._json()
        self._number(">h")
        value, value_span = self._json()
        # How keys are encoded, and the schema of a map's keys.
        self._json()
        self._json()
        return FamilySchema(family, key, value, key_span, value_span)

    def _number(self, code: str) -> int:
        (number,) = struct.unpack_from(code, self._data, self._at)
        self._at += struct.calcsize(code)
        return int(number)

    def _utf(self) -> str:
        length = self._number(">H")
        data = self._data[self._at : self._at + length]
        if len(data) < length:
            raise ValueError("it ends too early")
        self._at += length
        # Java writes a character beyond 16 bits as two.
        return data.decode("utf-8", "surrogatepass")

    def _json(self) -> tuple[str, Span]:
        start = self._at
        text = "".join(self._utf() for _ in range(self._number(">i")))
        whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        return whole, Span(start, self._at)


def _chunked(text: str) -> bytes:
    units = text.encode("utf-16-le")
    characters = "".join(map(chr, struct.unpack(f"<{len(units) // 2}H", units)))
    chunks = [characters[at : at + _CHUNK] for at in range(0, len(characters), _CHUNK)]
    encoded = [chunk.encode("utf-8", "surrogatepass") for chunk in chunks]
    return struct.pack(">i", len(encoded)) + b"".join(
        struct.pack(">H", len(chunk)) + chunk for chunk in encoded
    )
