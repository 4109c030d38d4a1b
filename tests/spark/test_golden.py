"""Writes tests/unit/data: state of the real backend, and what is in it.

Run `SPARKCKPT_WRITE_GOLDEN=1 python -m pytest tests/spark/test_golden.py` after the format has
changed, and commit the result. What the rows are is asked of Spark's own state data source, or of
the model that the rows were made from, so that the readers are held against something that does
not share a line with them.
"""

import itertools
import json
import os
import shutil
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkckpt.format import OperatorStateItems, load_handle
from sparkckpt.storage import Storage
from tests.spark import jobs, python_jobs
from tests.spark.streams import (
    PARTITIONS,
    STATE_STORE,
    Backend,
    Job,
    checkpoint_of,
    feed,
    open_sources,
    run,
    session_for,
)
from tests.spark.test_provider_model import Walk, encoded, new_harness
from tests.unit.format_samples import DATA

pytestmark = pytest.mark.skipif(
    "SPARKCKPT_WRITE_GOLDEN" not in os.environ, reason="SPARKCKPT_WRITE_GOLDEN is not set"
)
NO_INLINING = {STATE_STORE + "sparkckpt.inlineThreshold": "0"}
SMALL = {
    STATE_STORE + "sparkckpt.merge.maxDeltas": "4",
    STATE_STORE + "sparkckpt.recordBatchRows": "8",
}


@pytest.mark.parametrize(("name", "confs"), [("inlined", {}), ("files", NO_INLINING)])
def test_write_windows(
    spark: SparkSession, tmp_path: Path, name: str, confs: dict[str, str]
) -> None:
    """A window aggregation, with evictions, in two partitions; the first is kept."""
    job = Job.of(jobs.EVENTS, jobs.events(12), jobs.windowed)
    run(spark, job, tmp_path, Backend(name, {**SMALL, **confs, PARTITIONS: "2"}))
    checkpoint = checkpoint_of(tmp_path)
    committed = json.loads((checkpoint / "commits" / "11").read_text().splitlines()[1])
    rows = spark.read.format("statestore").load(str(checkpoint)).where("partition_id = 0").collect()
    entries = [plain(row.asDict(recursive=True)) for row in rows]
    save(
        name,
        checkpoint / "state",
        12,
        committed["stateUniqueIds"]["0"][0][0],
        {"default": [[entry["key"], entry["value"]] for entry in entries]},
    )


def test_write_lists(spark: SparkSession, tmp_path: Path) -> None:
    """Several column families, one of them with lists, after a random walk."""
    walk = Walk(spark, tmp_path, 3, {**SMALL, **NO_INLINING})
    for _ in range(14):
        walk.step()
    walk.harness.close()
    version, checkpoint_id, model = walk.history[-1]
    assert checkpoint_id is not None
    del model["operator"]
    families = {
        family: [
            [{"k": key}, None if value is None else {"v": value}]
            for key, values in rows.items()
            for value in (values or [None])
        ]
        for family, rows in model.items()
    }
    save("lists", tmp_path, version, checkpoint_id, families)


def test_write_operator_state(spark: SparkSession, tmp_path: Path) -> None:
    """Two rows, and operator state that the version before has written."""
    confs = {STATE_STORE + "sparkckpt.coordinator.enabled": "false"}
    harness = new_harness(spark, spark.sparkContext._jsc, tmp_path.as_uri(), confs)
    harness.restart()
    states = (
        OperatorStateItems("offsets", "split", (b"a", b"", b"ccc")),
        OperatorStateItems("gesehen \u00fc", "union", (bytes(range(256)),)),
        OperatorStateItems("rules", "broadcast", ()),
    )
    operations = [["put", "single", 1, "a"], ["setOperatorState", "", 0, encoded(*states)]]
    first = harness.run(0, None, False, json.dumps(operations), "commit")
    row = json.dumps([["put", "single", 2, "b"]])
    second = harness.run(1, first, False, row, "commit")
    harness.close()
    rows = [[{"k": 1}, {"v": "a"}], [{"k": 2}, {"v": "b"}]]
    save("operator", tmp_path, 2, second, {"single": rows})
    written = [
        {"name": s.name, "mode": s.mode, "items": [item.hex() for item in s.items]} for s in states
    ]
    expected = DATA / "operator" / "expected.json"
    content = {**json.loads(expected.read_text()), "operatorStates": written}
    expected.write_text(json.dumps(content, indent=1) + "\n")


NAMED_SOURCES = {"spark.sql.streaming.offsetLog.formatVersion": "2"}
SPARK_LOGS = {
    "window": Job.of(jobs.EVENTS, jobs.events(3), jobs.windowed),
    "join": jobs.time_range_join("inner", 2),
    "processor": replace(
        python_jobs.with_state(python_jobs.Variables(True), batches=3), confs=NAMED_SOURCES
    ),
}


@pytest.mark.parametrize("name", SPARK_LOGS)
def test_write_spark_logs(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """What Spark itself keeps in a checkpoint directory, after a restart, without the sources."""
    backend = Backend(name, {PARTITIONS: "2"})
    run(spark, SPARK_LOGS[name], tmp_path, backend, restart_after=[1])
    checkpoint = checkpoint_of(tmp_path)
    target = DATA / "sparklog" / name
    shutil.rmtree(target, ignore_errors=True)
    own = ("metadata", "offsets/*", "commits/*")
    of_operators = (
        "state/*/_metadata/**/*",
        "state/*/0/**/_metadata/*",
        "state/*/_stateSchema/**/*",
    )
    for path in itertools.chain.from_iterable(map(checkpoint.glob, own + of_operators)):
        if path.is_file() and not path.name.startswith("."):
            copy = target / path.relative_to(checkpoint)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes().replace(bytes(checkpoint), b"/checkpoint"))


def test_write_commit_of_named_sink(spark: SparkSession, tmp_path: Path) -> None:
    """Version 3 of the commit log; Python's writer cannot name a sink yet."""
    job = SPARK_LOGS["window"]
    session = session_for(
        spark, {PARTITIONS: "2", "spark.sql.streaming.queryEvolution.enableSinkEvolution": "true"}
    )
    feed(job, tmp_path, [0])
    writer = (
        job.transform(open_sources(session, job, tmp_path))
        .writeStream.option("checkpointLocation", str(checkpoint_of(tmp_path)))
        .trigger(availableNow=True)
        .format("noop")
    )
    writer._jwrite.name("out")
    writer.start().awaitTermination()
    shutil.copyfile(checkpoint_of(tmp_path) / "commits" / "0", DATA / "sparklog" / "commit-v3")


def save(name: str, state: Path, version: int, checkpoint_id: str, rows: dict[str, Any]) -> None:
    """Keeps the handle, the files it names, and their rows."""
    handle = load_handle(Storage.at(state), 0, 0, version, checkpoint_id)
    target = DATA / name
    shutil.rmtree(target, ignore_errors=True)
    for path in {handle.path, *(data.path for data in handle.data)}:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(state / path, target / path)
    families = {family: sorted(entries, key=json.dumps) for family, entries in rows.items()}
    expected = {"handle": handle.path, "families": families}
    (target / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def plain(value: Any) -> Any:
    """The value in terms of JSON. Timestamps come in local time, and the files have UTC."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, datetime):
        return (
            datetime.fromtimestamp(value.timestamp(), timezone.utc).replace(tzinfo=None).isoformat()
        )
    return value
