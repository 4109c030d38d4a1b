"""Restored into another directory, a query goes on with the rows of an undisturbed run.

In every mode, at another parallelism, from an older checkpoint, and with other operators: Spark
itself decides whether it accepts what was written for operators that were moved or added.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import sparkckpt
from tests.spark import jobs, python_jobs
from tests.spark.faults import wait_until
from tests.spark.leases import await_release
from tests.spark.rescaling import when_stopped
from tests.spark.streams import (
    FULL,
    ORACLE,
    STATE_STORE,
    Backend,
    Job,
    Output,
    canonical_rows,
    feed,
    open_sources,
    run,
    session_for,
    unload_state,
)

Transform = Callable[[DataFrame], DataFrame]


class Runner:
    """Runs parts of a job, each on any checkpoint; what they put out comes together."""

    def __init__(self, spark: SparkSession, job: Job, workdir: Path, backend: Backend) -> None:
        self.spark, self.job, self.workdir, self.backend = spark, job, workdir, backend
        self.output: Output = {}
        self.segment = 0

    def run(self, checkpoint: Path, batches: range, job: Job | None = None) -> StreamingQuery:
        """Feeds these batches and runs until they are done."""
        job = job or self.job
        feed(self.job, self.workdir, batches)
        session = session_for(self.spark, {**self.backend.confs_of(self.segment), **job.confs})
        self.segment += 1

        def collect(rows: DataFrame, batch: int) -> None:
            self.output[batch] = canonical_rows(rows.collect())

        query: StreamingQuery = (
            job.transform(open_sources(session, job, self.workdir))
            .writeStream.outputMode(job.output_mode)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .foreachBatch(collect)
            .start()
        )
        query.awaitTermination()
        unload_state(self.spark)
        await_release(checkpoint, query.runId)
        return query


def is_complete(source: Path) -> bool:
    """Whether the newest checkpoint of the location is that of its last batch."""
    committed = [int(entry.name) for entry in source.glob("commits/[0-9]*")]
    checkpoints = sparkckpt.list_checkpoints(source)["batch_id"].to_pylist() if committed else []
    return not committed or max(committed) in checkpoints


def restore(source: Path, target: Path, **options: Any) -> sparkckpt.RestoreReport:
    """From the last batch of a query that may have stopped just now."""
    wait_until(lambda: is_complete(source))
    return when_stopped(lambda: sparkckpt.restore(source, target, **options))


KINDS = {
    "aggregation": next(iter(jobs.AGGREGATIONS.values())),
    "session window": next(iter(jobs.SESSION_WINDOWS.values())),
    "join": jobs.time_range_join("leftOuter", 2),
    "join, state format 4": jobs.time_range_join("leftOuter", 4),
    "processor": next(iter(python_jobs.transform_with_state(pandas=True).values())),
}


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        ("no-claim", "aggregation"),
        ("no-claim", "processor"),
        ("claim", "join, state format 4"),
        ("copy", "join"),
        ("copy", "processor"),
        *([("no-claim", "join"), ("claim", "session window")] if FULL else []),
    ],
)
def test_a_restored_query_goes_on(
    spark: SparkSession, backend: Backend, tmp_path: Path, mode: str, kind: str
) -> None:
    job = KINDS[kind]
    expected = run(spark, job, tmp_path / "oracle", ORACLE)
    runner = Runner(spark, job, tmp_path, backend)
    count = len(job.batches)
    cuts = [0, count // 3, 2 * count // 3, count]
    checkpoints = [tmp_path / f"checkpoint{number}" for number in range(3)]
    for number, (parallelism, checkpoint) in enumerate(zip((None, 7, 2), checkpoints, strict=True)):
        if number:
            source = checkpoints[number - 1]
            restore(source, checkpoint, mode=mode, parallelism=parallelism)
            if mode == "copy":
                shutil.rmtree(source)
        runner.run(checkpoint, range(cuts[number], cuts[number + 1]))
    assert runner.output == expected
    assert any(expected.values()), "the job has no output: it shows nothing"
    wait_until(lambda: sparkckpt.list_checkpoints(checkpoints[-1]).num_rows > 0)
    assert sparkckpt.verify(checkpoints[-1]).to_pylist() == []


def numbers(transform: Transform, output_mode: str = "update", **confs: str) -> Job:
    """Each key comes in every batch, with the number of the batch."""
    rows = [[{"k": k, "v": batch} for k in range(40)] for batch in range(6)]
    return Job.of("k long, v long", rows, transform, output_mode, confs)


def sums(df: DataFrame) -> DataFrame:
    return df.groupBy("k").agg(F.sum("v").alias("s"), F.count("*").alias("c"))


def rows_of(output: list[str]) -> set[str]:
    assert len(set(output)) == len(output)
    return set(output)


def test_an_older_checkpoint(spark: SparkSession, backend: Backend, tmp_path: Path) -> None:
    job = numbers(sums)
    runner = Runner(spark, job, tmp_path, backend)
    old = tmp_path / "old"
    runner.run(old, range(5))
    wait_until(lambda: sparkckpt.list_checkpoints(old).num_rows == 5)
    table = sparkckpt.list_checkpoints(old).to_pylist()
    chosen = next(row["checkpoint_id"] for row in table if row["batch_id"] == 1)
    report = restore(old, tmp_path / "new", checkpoint_id=chosen, parallelism=6)
    assert report.batch_id == 1 and len(report.warnings) == 1
    runner.output = {}
    runner.run(tmp_path / "new", range(5, 6))
    assert min(runner.output) == 2
    last = runner.output[max(runner.output)]
    assert rows_of(last) == {f"(k={k}, s=15, c=6)" for k in range(40)}, "all input, each row once"


def test_operators_come_and_go(spark: SparkSession, backend: Backend, tmp_path: Path) -> None:
    """Operator 0 is the one nearest to the sink."""

    def both(df: DataFrame) -> DataFrame:
        return sums(df.dropDuplicates(["k"]))

    runner = Runner(spark, numbers(both, "complete"), tmp_path, backend)
    places = [tmp_path / f"checkpoint{number}" for number in range(5)]
    runner.run(places[0], range(1))
    assert rows_of(runner.output[0]) == {f"(k={k}, s=0, c=1)" for k in range(40)}

    restore(places[0], places[1], parallelism=5, drop_operators=[1], allow_non_restored_state=True)
    runner.run(places[1], range(1, 2), numbers(sums, "complete"))
    assert rows_of(runner.output[1]) == {f"(k={k}, s=1, c=2)" for k in range(40)}

    restore(places[1], places[2], parallelism=2, add_operators={1: "dedupe"})
    query = runner.run(places[2], range(2, 4))
    assert rows_of(runner.output[2]) == {f"(k={k}, s=3, c=3)" for k in range(40)}
    assert runner.output[3] == runner.output[2], "the new operator has seen all keys"
    assert [o["operatorName"] for o in query.lastProgress["stateOperators"]] == [
        "stateStoreSave",
        "dedupe",
    ]

    restore(
        places[2],
        places[3],
        drop_operators=[0],
        map_operators={1: 0},
        allow_non_restored_state=True,
        parallelism=6,
    )
    runner.run(places[3], range(4, 5), numbers(lambda df: df.dropDuplicates(["k"]), "append"))
    assert runner.output[4] == [], "the state that was moved knows all keys"


class Count(StatefulProcessor):
    """How often each key has come."""

    def init(self, handle: Any) -> None:
        self.state = handle.getValueState("count", "n long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        n = (self.state.get()[0] if self.state.exists() else 0) + sum(map(len, rows))
        self.state.update((n,))
        yield pd.DataFrame({"k": [key[0]], "n": [n]})

    def close(self) -> None:
        pass


def counted(df: DataFrame) -> DataFrame:
    return df.groupBy("k").transformWithStateInPandas(Count(), "k long, n long", "Update", "none")


def test_a_processor_is_added(spark: SparkSession, backend: Backend, tmp_path: Path) -> None:
    runner = Runner(spark, numbers(sums), tmp_path, backend)
    old, new, last = (tmp_path / name for name in ("old", "new", "last"))
    query = runner.run(old, range(2))
    processor = numbers(counted)
    restore(
        old,
        new,
        add_operators={0: "transformWithStateInPandasExec:NoTime:Update"},
        allow_non_restored_state=True,
        parallelism=4,
    )
    query = runner.run(new, range(2, 4), processor)
    assert rows_of(runner.output[3]) == {f"(k={k}, n=2)" for k in range(40)}
    name = query.lastProgress["stateOperators"][0]["operatorName"]
    assert name == "transformWithStateInPandasExec"
    restore(new, last, parallelism=7)
    runner.run(last, range(4, 5), processor)
    assert rows_of(runner.output[4]) == {f"(k={k}, n=3)" for k in range(40)}


@pytest.mark.parametrize("state_format", [2, 4])
def test_a_join_is_added(
    spark: SparkSession, backend: Backend, tmp_path: Path, state_format: int
) -> None:
    confs = jobs.join_confs(state_format)
    schemas = {"left": "k long, v long", "right": "k long, w long"}
    batches = [
        {
            "left": [{"k": k, "v": b} for k in range(20)],
            "right": [{"k": k, "w": b} for k in range(20)],
        }
        for b in range(4)
    ]
    union = Job(
        schemas,
        batches,
        lambda s: sums(s["left"].union(s["right"].withColumnRenamed("w", "v"))),
        "update",
        confs,
    )
    joined = Job(schemas, batches, lambda s: s["left"].join(s["right"], "k"), "append", confs)
    runner = Runner(spark, union, tmp_path, backend)
    old, new, last = (tmp_path / name for name in ("old", "new", "last"))
    runner.run(old, range(2))
    restore(
        old,
        new,
        add_operators={0: "symmetricHashJoin"},
        allow_non_restored_state=True,
        parallelism=4,
    )
    runner.run(new, range(2, 3), joined)
    assert rows_of(runner.output[2]) == {f"(k={k}, v=2, w=2)" for k in range(20)}
    restore(new, last, parallelism=3)
    runner.run(last, range(3, 4), joined)
    assert len(runner.output[3]) == 60


def test_another_number_of_key_groups(
    spark: SparkSession, backend: Backend, tmp_path: Path
) -> None:
    job = numbers(sums)
    expected = run(spark, job, tmp_path / "oracle", ORACLE)
    runner = Runner(spark, job, tmp_path, backend)
    old, new, last = (tmp_path / name for name in ("old", "new", "last"))
    runner.run(old, range(2))
    restore(old, new, max_parallelism=100, parallelism=9)
    other = Backend(
        "100 key groups", {**backend.confs, STATE_STORE + "sparkckpt.maxParallelism": "100"}
    )
    runner.backend = other
    runner.run(new, range(2, 4))
    restore(new, last, parallelism=100)
    runner.run(last, range(4, 6))
    assert runner.output == expected
