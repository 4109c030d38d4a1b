"""The fault tests again, longer and at random: SPARKCKPT_CHAOS_ROUNDS says how often, if at all.

SPARKCKPT_TEST_SEED repeats the rounds of an earlier run.
"""

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.spark.fault_driver import windows
from tests.spark.fault_runs import run_with_faults, run_with_kills
from tests.spark.faults import Fault, running_sums
from tests.spark.streams import ORACLE, run

ROUNDS = int(os.environ.get("SPARKCKPT_CHAOS_ROUNDS", "0"))
SEED = int(os.environ.get("SPARKCKPT_TEST_SEED") or random.SystemRandom().randrange(2**31))
BATCHES = 20

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(ROUNDS == 0, reason="SPARKCKPT_CHAOS_ROUNDS is not set"),
    pytest.mark.usefixtures("jars"),
]

FAULTS_OF_MASTER = {
    "local[2,4]": [Fault.FAIL_BEFORE_COMMIT, Fault.FAIL_AFTER_COMMIT],
    "local-cluster[2,1,1024]": [
        Fault.FAIL_BEFORE_COMMIT,
        Fault.FAIL_AFTER_COMMIT,
        Fault.KILL_BEFORE_COMMIT,
        Fault.KILL_AFTER_COMMIT,
    ],
}


@pytest.fixture(params=range(ROUNDS))
def rng(request: pytest.FixtureRequest) -> Iterator[random.Random]:
    print(f"SPARKCKPT_TEST_SEED={SEED}, round {request.param}")
    yield random.Random(SEED * 1_000_003 + request.param)


def test_random_faults(spark: SparkSession, tmp_path: Path, rng: random.Random) -> None:
    expected = run(spark, running_sums(batches=BATCHES), tmp_path / "oracle", ORACLE)
    master, faults = rng.choice(list(FAULTS_OF_MASTER.items()))
    places = rng.sample([(batch, part) for batch in range(BATCHES) for part in range(3)], k=8)
    planned = {place: rng.choice(faults) for place in places}
    print(f"{master}: {planned}")
    assert run_with_faults(tmp_path / "subject", master, planned, BATCHES) == expected


def test_killed_drivers(spark: SparkSession, tmp_path: Path, rng: random.Random) -> None:
    sums = run(spark, running_sums(batches=BATCHES), tmp_path / "oracle-sums", ORACLE)
    windowed = run(spark, windows(BATCHES), tmp_path / "oracle-windows", ORACLE)
    assert run_with_kills(tmp_path, rng, BATCHES, kills=rng.randint(3, 8)) == (sums, windowed)
