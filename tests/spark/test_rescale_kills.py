"""`sparkckpt rescale` killed with -9 at random moments: the query is as before, or rescaled."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

import sparkckpt
from tests.spark.rescaling import rescale_when_stopped
from tests.spark.streams import ORACLE, Backend, Job, checkpoint_of, run
from tests.spark.test_rescale import totals

SEED = int(os.environ.get("SPARKCKPT_TEST_SEED", "20240301"))
KILLS = int(os.environ.get("SPARKCKPT_CHAOS_ROUNDS", "8"))
AT_WORK_SECONDS = (0.3, 0.8)
"""The command imports for a while, then it has done its work at once."""


def kill_while_rescaling(checkpoint: Path, parallelism: int, draw: random.Random) -> bool:
    """Whether the command was killed before it ended."""
    command = [sys.executable, "-m", "sparkckpt", "rescale", str(checkpoint)]
    process = subprocess.Popen(
        [*command, "--parallelism", str(parallelism)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    time.sleep(draw.uniform(*AT_WORK_SECONDS))
    process.send_signal(signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


def test_killed_rescales(spark: SparkSession, backend: Backend, tmp_path: Path) -> None:
    print(f"SPARKCKPT_TEST_SEED={SEED}")
    draw = random.Random(SEED)
    job: Job = totals(batches=4, keys=300, seed=SEED)
    killed: list[bool] = []

    def rescale_with_kills(_: int, checkpoint: Path, run_id: str) -> None:
        rescale_when_stopped(checkpoint, 5, run_id)
        for _ in range(KILLS):
            killed.append(kill_while_rescaling(checkpoint, draw.randint(1, 9), draw))
        assert sparkckpt.verify(checkpoint).to_pylist() == []

    expected = run(spark, job, tmp_path / "oracle", ORACLE)
    stops = {0, 2}
    assert run(spark, job, tmp_path, backend, stops, rescale_with_kills) == expected
    assert sparkckpt.verify(checkpoint_of(tmp_path)).to_pylist() == []
    assert any(killed), "no command was killed in time: it shows nothing"
