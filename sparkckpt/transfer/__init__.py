"""Moving checkpoints in and out: from Spark's own state stores to sparkckpt, and back.

`source` reads the checkpoint to move, `job` has Spark move its state, `target` makes a checkpoint
of what that leaves; `moves` puts them together. A source is never changed, and a target is no
checkpoint before it is whole. Unlike a restore this rewrites the state: nothing in a target depends
on its source.
"""

from sparkckpt.transfer.moves import export_checkpoint, import_checkpoint
from sparkckpt.transfer.report import MovedOperator, TransferReport

__all__ = ["MovedOperator", "TransferReport", "export_checkpoint", "import_checkpoint"]
