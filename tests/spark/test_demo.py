"""The demonstration runs as its users run it: in a process of its own."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.usefixtures("jars")
def test_the_demonstration_continues_exactly_and_shows_state(tmp_path: Path) -> None:
    process = subprocess.run(
        [
            sys.executable,
            "-m",
            "sparkckpt",
            "--output",
            "json",
            "demo",
            "--directory",
            tmp_path / "demo",
        ],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert process.returncode == 0, process.stderr
    assert "equal to the sum of the input" in process.stderr
    assert "6 checkpoints are complete and sound" in process.stderr
    rows = json.loads(process.stdout)
    assert rows
    assert all(row["user (key)"].startswith("user-") for row in rows)
    assert [row["key group"] for row in rows] == sorted(row["key group"] for row in rows)
