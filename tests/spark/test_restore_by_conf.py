"""Restore and rescale at the start of a query, as its session's options say."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from sparkckpt.coordinator.lease import Lease
from sparkckpt.storage import Storage
from tests.spark.restored_totals import (
    CHECKPOINT_ID,
    MODE,
    PARALLELISM,
    PATH,
    QUERY,
    RESCALE,
    Restored,
    entries,
    partitions,
    partitions_of_state,
    query_id,
)
from tests.spark.streams import FULL, PARTITIONS, STATE_STORE, session_for
from tests.spark.totals import CONFS, NO_INLINING, RunningTotals

ROOT = Path(__file__).resolve().parents[2]
OFF = {STATE_STORE + "sparkckpt.coordinator.enabled": "false"}


@pytest.fixture
def source(spark: SparkSession, tmp_path: Path) -> RunningTotals:
    """A query with 3 partitions, stopped after 3 batches."""
    totals = RunningTotals(spark, tmp_path, NO_INLINING)
    totals.advance(3)
    totals.settle()
    return totals


def failure(restored: Restored, confs: Mapping[str, str]) -> str:
    """Why the query did not start."""
    with pytest.raises(StreamingQueryException) as failed:
        restored.advance(0, confs)
    return str(failed.value)


def left_in(checkpoint: Path) -> set[str]:
    """The files in it, but for checksums."""
    files = (path for path in checkpoint.rglob("*") if path.is_file())
    return {str(f.relative_to(checkpoint)) for f in files if not f.name.endswith(".crc")}


@pytest.mark.parametrize("mode", ["no-claim", "claim", "copy"])
def test_a_query_starts_from_another_ones_checkpoint(source: RunningTotals, mode: str) -> None:
    confs = {PATH: str(source.checkpoint), MODE: mode, PARALLELISM: "5"}
    restored = Restored(source, "restored")
    restored.advance(2, confs)
    assert entries(restored.checkpoint, "commits") == [2, 3, 4]
    assert partitions(restored.checkpoint, 3) == partitions_of_state(restored.checkpoint, 4) == 5
    assert query_id(restored.checkpoint) != query_id(source.checkpoint)
    assert not (restored.checkpoint / "_sparkckpt/restoring.json").exists()
    # The option may stay: it is the query's own checkpoint that it goes on from.
    restored.advance(1, {**confs, PARALLELISM: "2"})
    assert partitions(restored.checkpoint, 5) == 5
    if mode == "claim":
        with pytest.raises(StreamingQueryException, match="SPARKCKPT_CLAIMED"):
            source.run()


def test_an_older_checkpoint_can_be_named(source: RunningTotals) -> None:
    checkpoint = sorted((source.checkpoint / "_sparkckpt").glob("chk-*"))[0]
    for number, confs in enumerate(
        (
            {PATH: str(checkpoint)},
            {PATH: str(source.checkpoint), CHECKPOINT_ID: checkpoint.name.removeprefix("chk-")},
        )
    ):
        restored = Restored(source, f"restored {number}")
        restored.advance(0, confs)
        # The source of files knows what it has found already: one batch takes it all.
        assert entries(restored.checkpoint, "commits") == [0, 1]
        assert restored.batches_run == [1]


def test_a_restore_that_fails_ends_the_query_and_leaves_nothing(source: RunningTotals) -> None:
    restored = Restored(source, "restored")
    nowhere = {PATH: str(source.workdir / "nowhere")}
    message = failure(restored, nowhere)
    assert "SPARKCKPT_QUERY_NOT_PREPARED" in message and "nowhere" in message
    assert "it does not exist" in message
    assert left_in(restored.checkpoint) == {"metadata"}

    dropped = {PATH: str(source.checkpoint), STATE_STORE + "sparkckpt.restore.dropOperators": "0"}
    assert "The state of operator 0 (stateStoreSave) would not be restored" in failure(
        restored, dropped
    )
    too_many = {PATH: str(source.checkpoint), RESCALE: "true", PARTITIONS: "40000"}
    assert "The parallelism cannot be 40000" in failure(restored, too_many)
    assert left_in(restored.checkpoint) == {"metadata"}

    restored.advance(1, {PATH: str(source.checkpoint)})
    assert entries(restored.checkpoint, "commits") == [2, 3]


def test_without_a_coordinator_nothing_is_restored(source: RunningTotals) -> None:
    restored = Restored(source, "restored")
    message = failure(restored, {PATH: str(source.checkpoint), **OFF})
    assert "SPARKCKPT_COORDINATOR_NEEDED" in message and "coordinator.enabled" in message
    rescaled = {**OFF, RESCALE: "true", PARTITIONS: "4"}
    with pytest.raises(StreamingQueryException, match="SPARKCKPT_COORDINATOR_NEEDED"):
        source.run(rescaled)
    assert partitions(source.checkpoint, 2) == 3
    source.advance(1, {**rescaled, PARTITIONS: "3"})


def test_only_one_query_is_restored_unless_it_is_named(source: RunningTotals) -> None:
    confs = {PATH: str(source.checkpoint)}
    Restored(source, "first").advance(0, confs)
    second = Restored(source, "second")
    message = failure(second, confs)
    assert "SPARKCKPT_RESTORED_ALREADY" in message
    assert re.search(r"the query of \S+/first was restored from there before", message)
    assert left_in(second.checkpoint) == {"metadata"}

    named = {**confs, QUERY: "third"}
    second.advance(0, named, name="second")
    assert entries(second.checkpoint, "commits") == [0, 1, 2]
    third = Restored(source, "third")
    third.advance(0, named, name="third")
    assert third.batches_run == []
    assert entries(third.checkpoint, "commits") == [2]


def test_a_query_without_state_is_not_meant(source: RunningTotals, spark: SparkSession) -> None:
    confs = {**CONFS, PATH: str(source.checkpoint)}

    def run(confs: Mapping[str, str], checkpoint: str) -> None:
        session = session_for(spark, confs)
        rows = session.readStream.schema("k string").json(str(source.workdir / "input/in"))
        query = (
            rows.writeStream.queryName("stateless")
            .option("checkpointLocation", str(source.workdir / checkpoint))
            .trigger(availableNow=True)
            .foreachBatch(lambda batch, _: None)
            .start()
        )
        query.awaitTermination()

    run(confs, "a")
    with pytest.raises(StreamingQueryException, match="but it keeps no state"):
        run({**confs, QUERY: "stateless"}, "b")
    Restored(source, "restored").advance(1, confs)


def test_the_session_decides_on_the_parallelism_if_it_is_to(source: RunningTotals) -> None:
    confs = {PATH: str(source.checkpoint), PARTITIONS: "4"}
    unasked = Restored(source, "unasked")
    unasked.advance(0, {**confs, QUERY: "a"}, name="a")
    assert partitions(unasked.checkpoint, 2) == 3
    asked = Restored(source, "asked")
    asked.advance(1, {**confs, QUERY: "b", RESCALE: "true"}, name="b")
    assert partitions(asked.checkpoint, 3) == 4


def test_a_query_is_rescaled_when_it_restarts(source: RunningTotals) -> None:
    source.advance(1, {PARTITIONS: "5"})
    assert partitions(source.checkpoint, 3) == 3
    for batch, wanted in enumerate((5, 2, 2, 7, 1), 4):
        source.advance(1, {PARTITIONS: str(wanted), RESCALE: "true"})
        assert partitions(source.checkpoint, batch) == wanted
        assert partitions_of_state(source.checkpoint, batch) == wanted
    source.advance(1, {PARTITIONS: "5"})
    assert partitions(source.checkpoint, 9) == 1


def test_the_lease_of_a_killed_driver_does_not_keep_a_query_from_its_own_checkpoint(
    source: RunningTotals,
) -> None:
    in_an_hour = 1000 * (int(source.checkpoint.stat().st_mtime) + 3600)
    Lease.claim(Storage.at(source.checkpoint), "a run on a machine that is gone", in_an_hour)
    source.advance(1, {PARTITIONS: "4", RESCALE: "true"})
    assert partitions(source.checkpoint, 3) == 4


def test_a_batch_that_was_planned_is_run_with_the_new_parallelism(source: RunningTotals) -> None:
    (source.checkpoint / "commits" / "2").unlink()
    (source.checkpoint / "commits" / ".2.crc").unlink()
    source.batches = 2
    source.advance(2, {PARTITIONS: "4", RESCALE: "true"})
    assert partitions(source.checkpoint, 2) == partitions(source.checkpoint, 3) == 4


INTERRUPTED_JOB = """
import json, os, sys, threading
from pathlib import Path
from pyspark.sql import SparkSession
import sparkckpt
from tests.spark.faults import wait_until
from tests.spark.restored_totals import *
from tests.spark.streams import PARTITIONS
from tests.spark.totals import NO_INLINING, RunningTotals

workdir, python = Path(sys.argv[1]), sys.argv[2]
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
builder.config("spark.log.level", "WARN")
spark = sparkckpt.configure(builder, coordinator_python=python).getOrCreate()
interruptions = workdir / "interruptions"
source = RunningTotals(spark, workdir, NO_INLINING)
source.advance(3)
source.settle()
outcome = {"killed": 0}
step = 1 if "SPARKCKPT_TEST_FULL" in os.environ else 3
confs = {PATH: str(source.checkpoint), PARALLELISM: "5", QUERY: "meant"}

def interrupt(number, how_often):
    (interruptions / "kill").write_text(f"{number} {how_often}")

for number in range(0, 100, step):
    restored = Restored(source, f"restored {number}")
    interrupt(number, "once")
    restored.advance(1, confs, name="meant")
    assert partitions(restored.checkpoint, 3) == 5
    if (interruptions / "kill").exists():
        break
    outcome["killed"] += 1
(interruptions / "kill").unlink()

rescaled = RunningTotals(spark, workdir / "rescaled", {})
rescaled.advance(1)
for turn, number in enumerate(range(0, 100, step)):
    interrupt(number, "once")
    rescaled.advance(1, {PARTITIONS: str(2 + turn % 3), RESCALE: "true"})
    assert partitions(rescaled.checkpoint, turn + 1) == 2 + turn % 3
    if (interruptions / "kill").exists():
        break
    outcome["killed"] += 1
(interruptions / "kill").unlink()

def error_of(restored, confs):
    try:
        restored.advance(0, confs, name="meant")
    except Exception as error:
        return str(error)

interrupt(3, "always")
broken = Restored(source, "broken")
outcome["always killed"] = error_of(broken, confs)
(interruptions / "kill").unlink()
outcome["marker"] = (broken.checkpoint / "_sparkckpt/restoring.json").exists()
outcome["logs"] = entries(broken.checkpoint, "offsets") + entries(broken.checkpoint, "commits")
outcome["not gone on with"] = error_of(broken, {})
broken.advance(1, confs, name="meant")
outcome["gone on with"] = entries(broken.checkpoint, "commits")

(interruptions / "pause").touch()
stopped = Restored(source, "stopped")
session = stopped.session(confs)
starts = []
thread = threading.Thread(target=lambda: starts.append(stopped.start(session, name="meant")))
thread.start()
wait_until((interruptions / "paused").exists)
session.streams.active[0].stop()
thread.join()
outcome["stopped"] = str(starts[0].exception())
outcome["stopped logs"] = entries(stopped.checkpoint, "offsets")
(interruptions / "pause").unlink()
again = stopped.start(session, name="meant")
again.awaitTermination()
outcome["restarted"] = entries(stopped.checkpoint, "commits")
spark.stop()
print("OUTCOME", json.dumps(outcome))
"""


@pytest.fixture(scope="module")
def interrupted(jars: list[Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What becomes of restores whose coordinator is killed, or whose query is stopped."""
    workdir = tmp_path_factory.mktemp("interrupted")
    (workdir / "interruptions").mkdir()
    python = workdir / "python"
    script = ROOT / "tests" / "spark" / "interrupted_coordinator.py"
    python.write_text(f"#!/bin/sh\nexec {sys.executable} {script}\n")
    python.chmod(0o755)
    (workdir / "job.py").write_text(INTERRUPTED_JOB)
    process = subprocess.run(
        [sys.executable, str(workdir / "job.py"), str(workdir), str(python)],
        cwd=workdir,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "INTERRUPTIONS": str(workdir / "interruptions"),
        },
        capture_output=True,
        text=True,
        timeout=500,
    )
    lines = [line for line in process.stdout.splitlines() if line.startswith("OUTCOME ")]
    assert lines, process.stdout + process.stderr
    return dict(json.loads(lines[0].removeprefix("OUTCOME ")))


@pytest.mark.timeout(600)
def test_a_coordinator_killed_at_any_write_is_replaced_and_the_work_done(
    interrupted: dict[str, Any],
) -> None:
    assert interrupted["killed"] >= (12 if FULL else 4)


@pytest.mark.timeout(600)
def test_a_coordinator_that_keeps_dying_ends_the_query_and_the_next_start_goes_on(
    interrupted: dict[str, Any],
) -> None:
    assert "its process has ended twice" in interrupted["always killed"]
    assert interrupted["marker"] and interrupted["logs"] == []
    assert "SPARKCKPT_RESTORE_UNFINISHED" in interrupted["not gone on with"]
    assert interrupted["gone on with"][:2] == [2, 3]


@pytest.mark.timeout(600)
def test_a_query_can_be_stopped_while_it_is_restored(interrupted: dict[str, Any]) -> None:
    assert interrupted["stopped"] == "None"
    assert interrupted["stopped logs"] == []
    assert interrupted["restarted"][0] == 2


NO_COORDINATOR_JOB = """
import json, sys
from pathlib import Path
from pyspark.sql import SparkSession
import sparkckpt
from tests.spark.restored_totals import *
from tests.spark.totals import RunningTotals

builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = sparkckpt.configure(builder, coordinator_python="/no/such/python").getOrCreate()
for number, package_path in enumerate(("/some/where", "no\\0path", "/some/where")):
    spark._jsc.sc().conf().set(sys.argv[2], package_path)
    totals = RunningTotals(spark, Path(sys.argv[1]) / f"query {number}", {})
    totals.feed(1)
    try:
        totals.run({PATH: "/some/checkpoint"})
    except Exception as error:
        print("OUTCOME", json.dumps(str(error)))
spark.stop()
"""
PACKAGE_PATH = STATE_STORE + "sparkckpt.internal.packagePath"


def test_a_coordinator_that_cannot_start_ends_the_query(jars: list[Path], tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(NO_COORDINATOR_JOB)
    process = subprocess.run(
        [sys.executable, str(tmp_path / "job.py"), str(tmp_path), PACKAGE_PATH],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=240,
    )
    lines = [line for line in process.stdout.splitlines() if line.startswith("OUTCOME ")]
    assert len(lines) == 3, process.stderr
    for number, line in enumerate(lines):
        assert "its process cannot be started" in line and "coordinator.python" in line
        assert left_in(tmp_path / f"query {number}/checkpoint") == {"metadata"}
