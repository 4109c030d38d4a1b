"""Checkpoints of Spark's own state stores go on with sparkckpt, and back, as if nothing happened.

`SPARKCKPT_TEST_FULL=1` moves every job of the suite; without it, some of each kind of state.
"""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import sparkckpt
from tests.spark.streams import FULL, ORACLE, SPARKCKPT, Backend, run
from tests.spark.transfers import (
    HDFS_BACKED,
    JOBS,
    WITHOUT_FAMILIES,
    move_checkpoint,
    rocksdb,
    run_on,
)

SOME = (
    "aggregation: global update",
    "join 2: left_outer",
    "join 4: full_outer",
    "applyInPandasWithState: event time",
    "rows: value, list and map",
    "rows: ttl",
)
SOME_ON_HDFS = ("aggregation: window append",)


@pytest.mark.parametrize("name", JOBS if FULL else SOME)
def test_rocksdb_to_sparkckpt_and_back(spark: SparkSession, tmp_path: Path, name: str) -> None:
    turn = list(JOBS).index(name) % 2
    go_there_and_back(
        spark, tmp_path, name, rocksdb(1 + turn, changelog=turn == 0), checkpoint_format=2 - turn
    )


@pytest.mark.parametrize("name", WITHOUT_FAMILIES if FULL else SOME_ON_HDFS)
def test_hdfs_backed_to_sparkckpt_and_back(spark: SparkSession, tmp_path: Path, name: str) -> None:
    go_there_and_back(spark, tmp_path, name, HDFS_BACKED, checkpoint_format=1)


def go_there_and_back(
    spark: SparkSession, workdir: Path, name: str, backend: Backend, checkpoint_format: int
) -> None:
    """Two batches on Spark's store, one on ours, the rest on Spark's again; 3, 5 and 2 partitions.
    Settings of the session say otherwise: the checkpoint's count."""
    job = JOBS[name]
    count = len(job.batches)
    expected = run(spark, job, workdir / "oracle", ORACLE)
    subject = workdir / "subject"
    output = run_on(spark, job, subject, backend, range(2), 3)

    def bring_in(source: Path, target: Path) -> None:
        report = sparkckpt.import_checkpoint(source, target, parallelism=5, spark=spark)
        assert (report.batch_id, report.planned_batch_id) == (1, None)
        assert (report.former_parallelism, report.parallelism) == (3, 5)

    def bring_out(source: Path, target: Path) -> None:
        report = sparkckpt.export_checkpoint(
            source, target, parallelism=2, checkpoint_format=checkpoint_format, spark=spark
        )
        assert (report.batch_id, report.parallelism) == (2, 2)

    move_checkpoint(subject, "plain", bring_in)
    output |= run_on(spark, job, subject, SPARKCKPT, range(2, 3), 7)
    exported = move_checkpoint(subject, "ours", bring_out)
    assert sparkckpt.verify(exported).num_rows == 0
    output |= run_on(spark, job, subject, rocksdb(checkpoint_format), range(3, count), 7)
    assert output == expected
