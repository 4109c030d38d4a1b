"""The on-disk format of PROTOCOL.md: the only Python code that knows bytes.

`handle` reads and writes handles, `statefile` reads state files and `writer` writes them, `resolve`
computes the state that a list of files stands for. Nothing here may know about Spark's own logs or
decide which version to read.
"""

from sparkckpt.format.handle import (
    FamilyFiles,
    StateFileRef,
    StateHandle,
    handle_path,
    load_handle,
    read_handle,
    write_handle,
)
from sparkckpt.format.resolve import resolve
from sparkckpt.format.statefile import (
    BatchIndex,
    StateFamily,
    StateFile,
    StateFileMetadata,
    read_state,
)
from sparkckpt.format.writer import write_state_file

__all__ = [
    "BatchIndex",
    "FamilyFiles",
    "StateFamily",
    "StateFile",
    "StateFileMetadata",
    "StateFileRef",
    "StateHandle",
    "handle_path",
    "load_handle",
    "read_handle",
    "read_state",
    "resolve",
    "write_handle",
    "write_state_file",
]
