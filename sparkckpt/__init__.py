"""Key-group state backend, checkpoints and savepoints for Spark Structured Streaming.

The package's front door: `configure` enables the backend on a session builder, `jar_path` names the
jar that a `spark-submit` needs, `on_checkpoint` tells of completed checkpoints, and
`list_checkpoints`, `show_checkpoint`, `verify` and `clean` look at them from outside. `rescale` and
`restore` have a query go on from one with another shape; `savepoint` takes one that belongs to the
user, `stop_with_savepoint` stops a query at it, `dispose` deletes it, `edit` and `bootstrap` make
one of other state; `import_checkpoint` and `export_checkpoint` move one from Spark's own state
stores and back. `state` and `diff` read state as tables; `history` and `write_report` are to be
looked at. `accelerate` and the functions beside it run stateful Python with its state in-band.
Importing it must stay cheap, in every Python worker too: it never imports pyspark or starts a JVM
by itself, and loads Arrow when asked.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sparkckpt.jar import jar_path
from sparkckpt.notify import CheckpointEvent, on_checkpoint
from sparkckpt.session import configure

if TYPE_CHECKING:
    from sparkckpt.checkpoints import (
        CheckpointReport,
        clean,
        list_checkpoints,
        show_checkpoint,
        verify,
    )
    from sparkckpt.editing import (
        SavepointEditor,
        bootstrap,
        edit,
    )
    from sparkckpt.pages import (
        CheckpointHistory,
        history,
        write_report,
    )
    from sparkckpt.processor.accelerate import (
        accelerate,
    )
    from sparkckpt.processor.definitions import (
        apply_rows,
        apply_vectorized,
        fold,
    )
    from sparkckpt.processor.folds import (
        Fold,
        count_,
        derived,
        first_,
        last_,
        max_,
        min_,
        sum_,
    )
    from sparkckpt.processor.rows import (
        RowState,
    )
    from sparkckpt.processor.vectorized import (
        Changes,
        Touched,
        VectorizedProcessor,
    )
    from sparkckpt.restoration import (
        RescaleReport,
        RestoreReport,
        rescale,
        restore,
    )
    from sparkckpt.savepoints import (
        DisposeReport,
        SavepointReport,
        dispose,
        savepoint,
        stop_with_savepoint,
    )
    from sparkckpt.tables import (
        StateDiff,
        StateReader,
        StateTable,
        diff,
        state,
    )
    from sparkckpt.transfer import (
        TransferReport,
        export_checkpoint,
        import_checkpoint,
    )

__version__ = "0.1.0"

__all__ = [
    "Changes",
    "CheckpointEvent",
    "CheckpointHistory",
    "CheckpointReport",
    "DisposeReport",
    "Fold",
    "RescaleReport",
    "RestoreReport",
    "RowState",
    "SavepointEditor",
    "SavepointReport",
    "StateDiff",
    "StateReader",
    "StateTable",
    "Touched",
    "TransferReport",
    "VectorizedProcessor",
    "__version__",
    "accelerate",
    "apply_rows",
    "apply_vectorized",
    "bootstrap",
    "clean",
    "configure",
    "count_",
    "derived",
    "diff",
    "dispose",
    "edit",
    "export_checkpoint",
    "first_",
    "fold",
    "history",
    "import_checkpoint",
    "jar_path",
    "last_",
    "list_checkpoints",
    "max_",
    "min_",
    "on_checkpoint",
    "rescale",
    "restore",
    "savepoint",
    "show_checkpoint",
    "state",
    "stop_with_savepoint",
    "sum_",
    "verify",
    "write_report",
]

_LOADED_WHEN_ASKED = {
    "checkpoints": (
        "CheckpointReport",
        "clean",
        "list_checkpoints",
        "show_checkpoint",
        "verify",
    ),
    "editing": (
        "SavepointEditor",
        "bootstrap",
        "edit",
    ),
    "pages": (
        "CheckpointHistory",
        "history",
        "write_report",
    ),
    "processor.accelerate": ("accelerate",),
    "processor.definitions": (
        "apply_rows",
        "apply_vectorized",
        "fold",
    ),
    "processor.folds": (
        "Fold",
        "count_",
        "derived",
        "first_",
        "last_",
        "max_",
        "min_",
        "sum_",
    ),
    "processor.rows": ("RowState",),
    "processor.vectorized": (
        "Changes",
        "Touched",
        "VectorizedProcessor",
    ),
    "restoration": (
        "RescaleReport",
        "RestoreReport",
        "rescale",
        "restore",
    ),
    "savepoints": (
        "DisposeReport",
        "SavepointReport",
        "dispose",
        "savepoint",
        "stop_with_savepoint",
    ),
    "tables": (
        "StateDiff",
        "StateReader",
        "StateTable",
        "diff",
        "state",
    ),
    "transfer": (
        "TransferReport",
        "export_checkpoint",
        "import_checkpoint",
    ),
}

_MODULES = {name: module for module, names in _LOADED_WHEN_ASKED.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"sparkckpt.{_MODULES[name]}"), name)
