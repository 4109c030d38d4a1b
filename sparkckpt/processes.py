"""Processes as files name them: who has written a file, and whether that process still runs.

Only the machine a process runs on can tell, and only among the processes that it numbers together:
two containers may have one host name, and each a process 1. The number alone does not do either,
since it is given again. Where it cannot be told, a process counts as running.
"""

import os
import re
import socket
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_STARTED_FIELD = 19
"""The start time in /proc/<pid>/stat, counted from the field after the process's name."""


@dataclass(frozen=True)
class ProcessId:
    """One process of one machine."""

    host: str
    pid: int
    started: str = ""
    """Tells it from others that had the number before or get it later; empty if not known."""

    @classmethod
    def here(cls) -> "ProcessId":
        pid = os.getpid()
        return cls(socket.gethostname(), pid, started(pid))

    @property
    def is_of_this_host(self) -> bool:
        return self.host == socket.gethostname()

    @property
    def is_gone(self) -> bool:
        """Whether it is known to have ended."""
        if not self.is_of_this_host:
            return False
        if self.started and _scope() and self.started.rpartition("/")[0] != _scope():
            return False
        if not is_alive(self.pid):
            return True
        now = started(self.pid)
        return bool(self.started and now) and now != self.started


def is_alive(pid: int) -> bool:
    """Whether this machine has a process of that number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def is_another(host: str, pid: int) -> bool:
    """Whether that is a process of this machine which runs, and not this one."""
    return host == socket.gethostname() and pid != os.getpid() and is_alive(pid)


def started(pid: int) -> str:
    """When a process of this machine began, and among which others; empty if there is none, or if
    the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return f"{_scope()}/{fields[_STARTED_FIELD]}" if _scope() else ""


@cache
def _scope() -> str:
    """The boot of the machine and, in it, the processes that are numbered together."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = re.sub(r"\D", "", str(Path("/proc/self/ns/pid").readlink()))
    except OSError:
        return ""
    return f"{boot}/{namespace}"
