"""Rescaled at a restart, a query gives the rows of an undisturbed run, and no state is rewritten.

Every kind of operator, with an example and a chain of parallelisms drawn at random; with
`make test-full`, each example along each chain.
"""

import json
import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import sparkckpt
from sparkckpt.coordinator.lease import OWNERS
from sparkckpt.errors import InvalidParallelismError, QueryRunningError
from tests.spark.faults import wait_until
from tests.spark.rescaling import CHAINS, KINDS, rescale_when_stopped, run_rescaled
from tests.spark.streams import (
    CONTINUALLY,
    FULL,
    ORACLE,
    PARTITIONS,
    Backend,
    Job,
    checkpoint_of,
    feed,
    run,
    session_for,
    start,
    unload_state,
)

SEED = int(os.environ.get("SPARKCKPT_TEST_SEED", "20240301"))

Case = tuple[str, str, tuple[int, ...]]


def cases() -> Iterator[Case]:
    chosen = random.Random(SEED)
    for kind, examples in KINDS.items():
        if FULL:
            yield from ((kind, name, chain) for name in examples for chain in CHAINS)
        else:
            yield kind, chosen.choice(sorted(examples)), chosen.choice(CHAINS)


def label(value: object) -> str:
    return "-".join(map(str, value)) if isinstance(value, tuple) else str(value)


@pytest.mark.parametrize(("kind", "name", "chain"), list(cases()), ids=label)
def test_rescaled_operator(
    spark: SparkSession,
    backend: Backend,
    tmp_path: Path,
    kind: str,
    name: str,
    chain: Sequence[int],
) -> None:
    print(f"SPARKCKPT_TEST_SEED={SEED}")
    job = KINDS[kind][name]
    expected = run(spark, job, tmp_path / "oracle", ORACLE)
    assert run_rescaled(spark, job, tmp_path / "subject", backend, chain) == expected
    assert any(expected.values()), "the job has no output: it shows nothing"


def totals(batches: int, keys: int, seed: int) -> Job:
    """Sums per key; some keys come often, some once."""
    draw = random.Random(seed)
    rows = [
        [{"k": int(draw.random() ** 3 * keys), "v": draw.randrange(100)} for _ in range(200)]
        for _ in range(batches)
    ]
    return Job.of(
        "k long, v long",
        rows,
        lambda df: df.groupBy("k").agg(F.sum("v").alias("s"), F.count("*").alias("c")),
        "update",
    )


def test_many_rescales_in_a_row(spark: SparkSession, backend: Backend, tmp_path: Path) -> None:
    """Slices of slices: files are inherited again and again, merged and cut anew in between."""
    print(f"SPARKCKPT_TEST_SEED={SEED}")
    draw = random.Random(SEED)
    job = totals(batches=16, keys=400, seed=SEED)
    chain = [draw.randint(1, 17) for _ in range(8)]
    expected = run(spark, job, tmp_path / "oracle", ORACLE)
    assert run_rescaled(spark, job, tmp_path / "subject", backend, chain) == expected
    assert sparkckpt.verify(checkpoint_of(tmp_path / "subject")).to_pylist() == []


def test_rescaling_writes_no_state(spark: SparkSession, backend: Backend, tmp_path: Path) -> None:
    job = totals(batches=3, keys=300, seed=1)
    run(spark, job, tmp_path, backend)
    checkpoint = checkpoint_of(tmp_path)
    before = files_in(checkpoint / "state")
    report = rescale_when_stopped(checkpoint, 7)
    assert files_in(checkpoint / "state") == before
    assert (report.former_parallelism, report.parallelism) == (3, 7)
    again = rescale_when_stopped(checkpoint, 7)
    assert not again.changed


def files_in(directory: Path) -> dict[str, bytes]:
    paths = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in paths}


class FailsIn:
    """Collects the rows of batches, and fails in one of them, once."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.output: dict[int, set[tuple[int, int, int]]] = {}

    def __call__(self, rows: DataFrame, batch: int) -> None:
        collected = {(row.k, row.s, row.c) for row in rows.collect()}
        if batch == self.batch:
            self.batch = -1
            raise RuntimeError("the sink is not reachable")
        self.output[batch] = collected


def test_a_planned_batch_is_kept(spark: SparkSession, backend: Backend, tmp_path: Path) -> None:
    """The query failed in the middle of a batch: it runs again with the same input, rescaled."""
    job = totals(batches=5, keys=300, seed=2)
    feed(job, tmp_path, range(5))
    sink = FailsIn(2)
    session = session_for(spark, backend.confs)
    with pytest.raises(Exception, match="the sink is not reachable"):
        start(session, job, tmp_path, sink).awaitTermination()
    unload_state(spark)
    checkpoint = checkpoint_of(tmp_path)
    planned = (checkpoint / "offsets" / "2").read_text().splitlines()
    rescale_when_stopped(checkpoint, 8)
    kept = (checkpoint / "offsets" / "2").read_text().splitlines()
    assert kept[2:] == planned[2:]
    metadata = json.loads(planned[1])
    assert json.loads(kept[1]) == {**metadata, "conf": {**metadata["conf"], PARTITIONS: "8"}}

    start(session_for(spark, backend.confs), job, tmp_path, sink).awaitTermination()
    unbroken = FailsIn(-1)
    feed(job, tmp_path / "unbroken", range(5))
    start(
        session_for(spark, backend.confs), job, tmp_path / "unbroken", unbroken
    ).awaitTermination()
    assert sink.output == unbroken.output


def test_before_the_first_commit(spark: SparkSession, backend: Backend, tmp_path: Path) -> None:
    job = totals(batches=2, keys=50, seed=3)
    feed(job, tmp_path, range(2))
    sink = FailsIn(0)
    with pytest.raises(Exception, match="the sink is not reachable"):
        start(session_for(spark, backend.confs), job, tmp_path, sink).awaitTermination()
    unload_state(spark)
    rescale_when_stopped(checkpoint_of(tmp_path), 5)
    query = start(session_for(spark, backend.confs), job, tmp_path, sink)
    query.awaitTermination()
    assert query.lastProgress["stateOperators"][0]["numStateStoreInstances"] == 5
    assert sorted(sink.output) == [0, 1]


def test_a_file_sink_stays_exactly_once(
    spark: SparkSession, backend: Backend, tmp_path: Path
) -> None:
    job = Job.of(
        "k long, v long",
        [[{"k": k, "v": batch} for k in range(batch, batch + 60)] for batch in range(4)],
        lambda df: df.dropDuplicates(["k"]),
    )

    def run_once() -> str:
        session = session_for(spark, backend.confs)
        source = session.readStream.schema(job.schemas["in"]).option("maxFilesPerTrigger", 1)
        query = (
            job.transform({"in": source.json(str(tmp_path / "input" / "in"))})
            .writeStream.option("checkpointLocation", str(checkpoint_of(tmp_path)))
            .trigger(availableNow=True)
            .format("parquet")
            .start(str(tmp_path / "output"))
        )
        query.awaitTermination()
        unload_state(spark)
        return str(query.runId)

    for batches, parallelism in ((range(2), 9), (range(2, 3), 2), (range(3, 4), None)):
        feed(job, tmp_path, batches)
        run_id = run_once()
        if parallelism is not None:
            rescale_when_stopped(checkpoint_of(tmp_path), parallelism, run_id)
    rows = spark.read.parquet(str(tmp_path / "output")).collect()
    assert sorted(row.k for row in rows) == list(range(63))


def test_the_state_can_be_read_before_and_after(
    spark: SparkSession, backend: Backend, tmp_path: Path
) -> None:
    """Spark's own reader of state sees all keys once, whatever the parallelism of their batch."""
    job = totals(batches=4, keys=300, seed=4)
    checkpoint = checkpoint_of(tmp_path)

    def state_after(batch: int) -> dict[int, int]:
        rows = spark.read.format("statestore").option("batchId", batch).load(str(checkpoint))
        pairs = [(row.key.k, row.value["count"]) for row in rows.collect()]
        assert len(set(pairs)) == len(pairs)
        return dict(pairs)

    def counts(batches: int) -> dict[int, int]:
        return dict(Counter(row["k"] for rows in job.batches[:batches] for row in rows["in"]))

    def rescale_and_look(_: int, checkpoint: Path, run_id: str) -> None:
        rescale_when_stopped(checkpoint, 7, run_id)
        assert state_after(1) == counts(2)

    run(spark, job, tmp_path, backend, {1}, rescale_and_look)
    assert state_after(3) == counts(4)
    assert state_after(1) == counts(2)
    rescale_when_stopped(checkpoint, 2)
    assert state_after(3) == counts(4)


def test_a_running_query_is_left_alone(
    spark: SparkSession, backend: Backend, tmp_path: Path
) -> None:
    job = totals(batches=1, keys=50, seed=5)
    feed(job, tmp_path, range(1))
    query = start(session_for(spark, backend.confs), job, tmp_path, FailsIn(-1), CONTINUALLY)
    query.processAllAvailable()
    checkpoint = checkpoint_of(tmp_path)
    wait_until(lambda: any((checkpoint / OWNERS).glob("[0-9]*")))
    before = files_in(checkpoint / "offsets")
    with pytest.raises(QueryRunningError):
        sparkckpt.rescale(checkpoint, 5)
    assert files_in(checkpoint / "offsets") == before
    query.stop()


@pytest.mark.parametrize("parallelism", [0, -3, 32769])
def test_impossible_parallelism(
    spark: SparkSession, backend: Backend, tmp_path: Path, parallelism: int
) -> None:
    job = totals(batches=1, keys=10, seed=6)
    run(spark, job, tmp_path, backend)
    before = files_in(checkpoint_of(tmp_path) / "offsets")
    with pytest.raises(InvalidParallelismError, match=str(parallelism)):
        sparkckpt.rescale(checkpoint_of(tmp_path), parallelism)
    assert files_in(checkpoint_of(tmp_path) / "offsets") == before
