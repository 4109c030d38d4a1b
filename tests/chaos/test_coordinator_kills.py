"""Coordinators and drivers are killed with -9 in one job, SPARKCKPT_CHAOS_ROUNDS times.

SPARKCKPT_TEST_SEED repeats an earlier run.
"""

import os
import random
from pathlib import Path

import pytest

from tests.spark.coordinator_kills import kill_at_random

ROUNDS = int(os.environ.get("SPARKCKPT_CHAOS_ROUNDS", "0"))
SEED = int(os.environ.get("SPARKCKPT_TEST_SEED") or random.SystemRandom().randrange(2**31))

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(ROUNDS == 0, reason="SPARKCKPT_CHAOS_ROUNDS is not set"),
    pytest.mark.usefixtures("jars"),
]


def test_killed_coordinators_and_drivers(tmp_path: Path) -> None:
    print(f"SPARKCKPT_TEST_SEED={SEED}")
    kill_at_random(tmp_path, random.Random(SEED), ROUNDS)
