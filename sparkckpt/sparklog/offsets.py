"""Spark's offset log: what each batch reads, and the settings it runs with.

Version 1 lists the offsets of the sources by position, version 2 by name. The offsets are the
sources' own JSON and must pass through as they are.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparkckpt.errors import CorruptStateError
from sparkckpt.sparklog.lines import json_object, versioned_lines

NEWEST_VERSION = 2
_NO_OFFSET = "-"


@dataclass(frozen=True)
class OffsetEntry:
    """`offsets/<batch>`: where each source ends, in its own JSON; None where it has no offset.

    `names` are the sources' names, or their positions in a log of version 1.
    """

    batch_id: int
    watermark_ms: int
    timestamp_ms: int
    confs: Mapping[str, str]
    sources: tuple[str | None, ...]
    names: tuple[str, ...]


def parse_offsets(data: bytes, where: str, batch_id: int) -> OffsetEntry:
    """The entry of a batch in these bytes; `where` names them in messages."""
    version, lines = versioned_lines(data, where, NEWEST_VERSION)
    if len(lines) < 2:
        raise CorruptStateError(where, "it ends before the offset of a source")
    metadata = json_object(lines[0], "its metadata", where)
    names, sources = (_by_name if version == 2 else _by_position)(lines[1:], where)
    return OffsetEntry(
        batch_id=batch_id,
        watermark_ms=metadata.integer("batchWatermarkMs"),
        timestamp_ms=metadata.integer("batchTimestampMs"),
        confs=metadata.texts("conf"),
        sources=tuple(None if source == _NO_OFFSET else source for source in sources),
        names=names,
    )


def _by_position(lines: Sequence[str], where: str) -> tuple[tuple[str, ...], Sequence[str]]:
    return tuple(map(str, range(len(lines)))), lines


def _by_name(lines: Sequence[str], where: str) -> tuple[tuple[str, ...], Sequence[str]]:
    for line in lines:
        if ":" not in line:
            raise CorruptStateError(where, f"the line {line!r} names no source")
    names, sources = zip(*(line.split(":", 1) for line in lines), strict=True)
    if len(set(names)) < len(names):
        raise CorruptStateError(where, "it has two offsets of one source")
    return names, sources
