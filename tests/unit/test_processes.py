"""Whether a process that a file names still runs."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from sparkckpt.processes import ProcessId, is_alive, started


@pytest.fixture
def ended() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_this_process_runs() -> None:
    here = ProcessId.here()
    assert here.pid == os.getpid()
    assert not here.is_gone
    assert not replace(here, started="").is_gone, "a file of an older release"


def test_one_that_has_ended_is_gone(ended: int) -> None:
    assert not is_alive(ended)
    assert started(ended) == ""
    assert replace(ProcessId.here(), pid=ended).is_gone
    assert replace(ProcessId.here(), pid=ended, started="").is_gone


def test_nobody_can_tell_of_another_host(ended: int) -> None:
    assert not replace(ProcessId.here(), host="elsewhere", pid=ended).is_gone


@pytest.mark.skipif(not started(os.getpid()), reason="this system does not tell start times")
def test_a_number_that_was_given_again_is_another_process(ended: int) -> None:
    here = ProcessId.here()
    assert replace(here, started=here.started + "0").is_gone
    scope, _, ticks = here.started.rpartition("/")
    elsewhere = replace(here, pid=ended, started=f"{scope}0/{ticks}")
    assert not elsewhere.is_gone, "a container with the same host name"
