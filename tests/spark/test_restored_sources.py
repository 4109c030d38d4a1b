"""What becomes of the directory that a query was restored from, while the query runs on.

The coordinator reaches it through Spark's file systems, which put its paths in another way.
"""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import sparkckpt
from sparkckpt.coordinator.restored import read_restored
from sparkckpt.storage import Storage
from tests.spark.faults import wait_until
from tests.spark.jobs import EVENTS, events
from tests.spark.leases import await_release
from tests.spark.streams import (
    ORACLE,
    STATE_STORE,
    Backend,
    Job,
    Output,
    canonical_rows,
    checkpoint_of,
    feed,
    open_sources,
    run,
    session_for,
    unload_state,
)

CONFS = {
    "spark.sql.streaming.minBatchesToRetain": "2",
    STATE_STORE + "sparkckpt.checkpoint.retained": "1",
    STATE_STORE + "sparkckpt.inlineThreshold": "0",
}
RESTORED_AFTER = 3
RUNS = (range(3, 12), range(12, 14), range(14, 16))


def state_files(checkpoint: Path) -> set[Path]:
    found = checkpoint.glob("state/**/*")
    return {path for path in found if path.suffix in (".arrow", ".handle") and path.is_file()}


@pytest.mark.parametrize("mode", ["no-claim", "claim"])
def test_a_source_is_given_up_when_nothing_needs_it_any_more(
    spark: SparkSession, backend: Backend, tmp_path: Path, mode: str
) -> None:
    job = Job.of(
        EVENTS,
        events(RUNS[-1].stop),
        lambda df: df.groupBy("k").agg(F.sum("v"), F.count("*")),
        "update",
    )
    expected = run(spark, job, tmp_path / "oracle", ORACLE)
    workdir, output = tmp_path / "subject", Output()

    def collect(rows: DataFrame, batch: int) -> None:
        output[batch] = canonical_rows(rows.collect())

    def go(checkpoint: Path, batches: range) -> None:
        feed(job, workdir, batches)
        session = session_for(spark, {**backend.confs, **CONFS})
        query = (
            job.transform(open_sources(session, job, workdir))
            .writeStream.outputMode(job.output_mode)
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .foreachBatch(collect)
            .start()
        )
        query.awaitTermination()
        unload_state(spark)
        await_release(checkpoint, query.runId)
        assert batches[-1] in sparkckpt.list_checkpoints(checkpoint)["batch_id"].to_pylist()

    source, target = checkpoint_of(workdir), workdir / "target"
    go(source, range(RESTORED_AFTER))
    report = sparkckpt.restore(source, target, parallelism=4, mode=mode)
    assert (report.pin is not None) is (mode == "no-claim")
    before = state_files(source)
    for batches in RUNS:
        go(target, batches)
        assert sparkckpt.verify(target).to_pylist() == []
    assert output == expected
    assert sparkckpt.show_checkpoint(target).source.foreign_files == 0
    wait_until(lambda: is_settled(target))
    assert list((source / "_sparkckpt").glob("pins/*.json")) == []
    assert state_files(source) == (before if mode == "no-claim" else set())


def is_settled(target: Path) -> bool:
    restored = read_restored(Storage.at(target))
    return restored is not None and restored.settled
