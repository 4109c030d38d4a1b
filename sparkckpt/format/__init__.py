"""The on-disk format of PROTOCOL.md: the only Python code that knows bytes.

`handle` reads and writes handles, `metadata` completed checkpoints, `manifest` finds them where a
commit names one; `statefile` reads state files and `writer` writes them; `slices` cuts lists of
files by key groups; `resolve` computes the state that a list stands for, and `reading` does so with
the files of a handle. `operatorstate` reads and writes operator state, `operatorstatefile` that of
a whole checkpoint, and `redistribution` deals it out. What Spark's own files say is asked of
`sparklog`. Nothing here may decide which version to read.
"""

from sparkckpt.format.handle import (
    FamilyFiles,
    StateFileRef,
    StateHandle,
    handle_path,
    load_handle,
    read_description,
    read_handle,
    write_description,
    write_handle,
)
from sparkckpt.format.metadata import (
    CheckpointMetadata,
    CheckpointStatistics,
    MasterState,
    OperatorState,
    OperatorSubtaskState,
    metadata_path,
    read_metadata,
    write_metadata,
)
from sparkckpt.format.operatorstate import (
    OperatorStateHandle,
    OperatorStateInfo,
    OperatorStateItems,
    load_operator_state,
)
from sparkckpt.format.operatorstatefile import (
    StoreOperatorState,
    load_operator_states,
    operator_state_path,
    write_operator_state,
)
from sparkckpt.format.reading import StateStream, read_state
from sparkckpt.format.redistribution import redistribute
from sparkckpt.format.resolve import resolve
from sparkckpt.format.slices import clip, slices_of
from sparkckpt.format.statefile import (
    BatchIndex,
    StateFamily,
    StateFile,
    StateFileMetadata,
)
from sparkckpt.format.writer import write_state_file

__all__ = [
    "BatchIndex",
    "CheckpointMetadata",
    "CheckpointStatistics",
    "FamilyFiles",
    "MasterState",
    "OperatorState",
    "OperatorStateHandle",
    "OperatorStateInfo",
    "OperatorStateItems",
    "OperatorSubtaskState",
    "StateFamily",
    "StateFile",
    "StateFileMetadata",
    "StateFileRef",
    "StateHandle",
    "StateStream",
    "StoreOperatorState",
    "clip",
    "handle_path",
    "load_handle",
    "load_operator_state",
    "load_operator_states",
    "metadata_path",
    "operator_state_path",
    "read_description",
    "read_handle",
    "read_metadata",
    "read_state",
    "redistribute",
    "resolve",
    "slices_of",
    "write_description",
    "write_handle",
    "write_metadata",
    "write_operator_state",
    "write_state_file",
]
