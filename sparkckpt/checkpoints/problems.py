"""What `verify` finds, as values and as a table."""

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from sparkckpt.errors import (
    CorruptStateError,
    UnreadableFileError,
    UnsupportedFormatVersionError,
)

SCHEMA = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("error", pa.string(), nullable=False),
        pa.field("problem", pa.string(), nullable=False),
        pa.field("checkpoints", pa.list_(pa.int64()), nullable=False),
    ]
)
"""`path` is relative to the checkpoint directory unless the file lies elsewhere; `error` is the
error that whoever reads the file would get; `checkpoints` are those that the file belongs to: all
others are sound as far as this problem goes."""

FileError = CorruptStateError | UnreadableFileError | UnsupportedFormatVersionError
FILE_ERRORS = (CorruptStateError, UnreadableFileError, UnsupportedFormatVersionError)


@dataclass(frozen=True)
class Problem:
    """Something that is wrong with a file."""

    path: str
    error: str
    problem: str
    checkpoints: tuple[int, ...]

    @classmethod
    def of(cls, error: FileError, checkpoints: Iterable[int]) -> "Problem":
        return cls(error.path, type(error).__name__, error.what, tuple(sorted(checkpoints)))


def table_of(problems: Iterable[Problem]) -> pa.Table:
    return pa.Table.from_pylist([vars(problem) for problem in problems], SCHEMA)
