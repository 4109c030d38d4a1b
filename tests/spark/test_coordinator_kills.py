"""A few rounds of what tests/chaos does for long."""

import os
import random
from pathlib import Path

import pytest

from tests.spark.coordinator_kills import kill_at_random

SEED = int(os.environ.get("SPARKCKPT_TEST_SEED", "20240301"))
ROUNDS = 2


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("jars")
def test_killed_coordinators_and_drivers(tmp_path: Path) -> None:
    """What was completed is sound, nothing needed is missing, and nothing is left over."""
    print(f"SPARKCKPT_TEST_SEED={SEED}")
    kill_at_random(tmp_path, random.Random(SEED), ROUNDS)
