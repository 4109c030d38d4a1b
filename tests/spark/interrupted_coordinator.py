"""The coordinator's process, with an end or a pause at a chosen write of a restore or rescaling.

Started in place of `python -m sparkckpt.coordinator`, with a directory in INTERRUPTIONS. A file
`kill` there holds the number of the write before which the process kills itself, and whether it
does so `once` or `always`; while there is a file `pause`, writes wait.
"""

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

from sparkckpt.coordinator.__main__ import main
from sparkckpt.storage import Storage

DIRECTORY = Path(os.environ["INTERRUPTIONS"])
KINDS = ("sparkckpt-restore", "sparkckpt-rescale")

write_atomic = Storage.write_atomic
writes = threading.local()
"""Each request has a thread of its own."""


def write_or_die(self: Storage, *arguments: Any, **keywords: Any) -> None:
    if threading.current_thread().name in KINDS:
        writes.done = getattr(writes, "done", -1) + 1
        kill = DIRECTORY / "kill"
        if kill.exists():
            number, how_often = kill.read_text().split()
            if writes.done == int(number):
                if how_often == "once":
                    kill.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        while (DIRECTORY / "pause").exists():
            (DIRECTORY / "paused").touch()
            time.sleep(0.02)
    write_atomic(self, *arguments, **keywords)


Storage.write_atomic = write_or_die  # type: ignore[method-assign]
main()
