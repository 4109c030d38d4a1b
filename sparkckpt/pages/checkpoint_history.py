"""The checkpoints of a query as something that shows itself in a notebook."""

import os
from dataclasses import dataclass

import pyarrow as pa

from sparkckpt.checkpoints import list_checkpoints
from sparkckpt.checkpoints.directory import Location


@dataclass(frozen=True)
class CheckpointHistory:
    """The checkpoints in a checkpointLocation, as `list_checkpoints` gives them."""

    path: str
    table: pa.Table

    def _repr_html_(self) -> str:
        from sparkckpt.pages.notebook import html_of_history

        return html_of_history(self.path, self.table)


def history(path: Location) -> CheckpointHistory:
    """The checkpoints of a query, oldest first, to look at in a notebook."""
    return CheckpointHistory(os.fspath(path), list_checkpoints(path))
