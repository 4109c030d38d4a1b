"""Checkpoints and state as HTML: a report in one file, and what notebooks show.

`report` puts the page together, `profile` reads the state for it, `charts` and `html` make the
pieces, `notebook` is for cells. Nothing here may fetch anything from a network, now or when the
page is opened, nor let data of a user's stand on a page as anything but text.
"""

from sparkckpt.pages.checkpoint_history import CheckpointHistory, history
from sparkckpt.pages.report import write_report

__all__ = ["CheckpointHistory", "history", "write_report"]
