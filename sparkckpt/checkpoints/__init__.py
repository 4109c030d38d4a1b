"""Looking at the checkpoints of a query from outside, with no Spark and no JVM.

`listing` says which checkpoints there are, `report` what one consists of; `verification` reads all
of it and says what is wrong; `orphans` finds what nobody needs. Results are Arrow tables. Nothing
here may decide what is needed or complete: that is asked of the coordinator's own code.
"""

from sparkckpt.checkpoints.listing import list_checkpoints, why_empty
from sparkckpt.checkpoints.orphans import clean
from sparkckpt.checkpoints.report import CheckpointReport, SourceReport, show_checkpoint
from sparkckpt.checkpoints.verification import verify

__all__ = [
    "CheckpointReport",
    "SourceReport",
    "clean",
    "list_checkpoints",
    "show_checkpoint",
    "verify",
    "why_empty",
]
