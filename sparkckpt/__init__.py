"""Key-group state backend, checkpoints and savepoints for Spark Structured Streaming.

The package's front door: `configure` enables the backend on a session builder, `jar_path` names the
jar that a `spark-submit` needs, `on_checkpoint` tells of completed checkpoints, and
`list_checkpoints`, `show_checkpoint`, `verify` and `clean` look at them from outside. `rescale` and
`restore` have a query go on from one with another shape; `import_checkpoint` and
`export_checkpoint` move one from Spark's own state stores and back. Importing it must stay cheap:
it never imports pyspark or starts a JVM by itself, and loads Arrow when asked.
"""

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
    from sparkckpt.restoration import RescaleReport, RestoreReport, rescale, restore
    from sparkckpt.transfer import TransferReport, export_checkpoint, import_checkpoint

__version__ = "0.1.0"

__all__ = [
    "CheckpointEvent",
    "CheckpointReport",
    "RescaleReport",
    "RestoreReport",
    "TransferReport",
    "__version__",
    "clean",
    "configure",
    "export_checkpoint",
    "import_checkpoint",
    "jar_path",
    "list_checkpoints",
    "on_checkpoint",
    "rescale",
    "restore",
    "show_checkpoint",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from sparkckpt import checkpoints, restoration, transfer

    modules = (restoration, transfer, checkpoints)
    return getattr(next(module for module in modules if name in module.__all__), name)
