"""Savepoints: snapshots of a query's state that belong to the user.

`take` makes one of a checkpoint, by way of `merging` (which state is read and merged where),
`spark` (the same as a Spark job) and `writer` (what a savepoint consists of, for whoever has state
to write); `stopping` has a query stop at one; `disposal` deletes one. Restoring needs nothing of
this: a savepoint is laid out as a checkpoint is.
"""

from sparkckpt.savepoints.disposal import DisposeReport, dispose
from sparkckpt.savepoints.stopping import stop_with_savepoint
from sparkckpt.savepoints.take import SavepointOperator, SavepointReport, savepoint
from sparkckpt.savepoints.writer import (
    FamilyRows,
    SavepointWriter,
    StorePart,
    WrittenStore,
    write_store,
)

__all__ = [
    "DisposeReport",
    "FamilyRows",
    "SavepointOperator",
    "SavepointReport",
    "SavepointWriter",
    "StorePart",
    "WrittenStore",
    "dispose",
    "savepoint",
    "stop_with_savepoint",
    "write_store",
]
