"""Around the operators: queries side by side, several actions a batch, batches without data."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from tests.spark import jobs
from tests.spark.streams import (
    ORACLE,
    Backend,
    BatchFunction,
    Output,
    canonical_rows,
    feed,
    open_sources,
    run,
    segments,
    session_for,
    start,
    unload_state,
)


def test_concurrent_queries_of_one_session(
    spark: SparkSession, backend: Backend, tmp_path: Path
) -> None:
    """Three queries run side by side, twice: each sees its own state and nobody else's."""
    running = {
        "aggregation": jobs.AGGREGATIONS["update"],
        "window": jobs.AGGREGATIONS["window append"],
        "deduplication": jobs.DEDUPLICATIONS["by key"],
    }
    expected = {
        name: run(spark, job, tmp_path / "oracle" / name, ORACLE) for name, job in running.items()
    }
    output: dict[str, Output] = {name: {} for name in running}

    def collect_into(name: str) -> BatchFunction:
        def collect(rows: DataFrame, batch: int) -> None:
            output[name][batch] = canonical_rows(rows.collect())

        return collect

    session = session_for(spark, backend.confs)
    for batches in (range(2), range(2, 4)):
        queries = []
        for name, job in running.items():
            feed(job, tmp_path / name, batches)
            queries.append(start(session, job, tmp_path / name, collect_into(name)))
        for query in queries:
            query.awaitTermination()
        unload_state(spark)
    assert output == expected


@pytest.mark.parametrize("name", ["update", "window append"])
def test_several_actions_per_batch(
    spark: SparkSession, backend: Backend, tmp_path: Path, name: str
) -> None:
    """Each action runs the batch's plan, and with it the state's commit, once more."""
    job = jobs.AGGREGATIONS[name]
    expected = run(spark, job, tmp_path / "oracle", ORACLE)
    output: dict[int, list[list[str]]] = {}

    def act(rows: DataFrame, batch: int) -> None:
        count = rows.count()
        collected = rows.collect()
        path = str(tmp_path / "written" / str(batch))
        rows.write.mode("overwrite").parquet(path)
        written = rows.sparkSession.read.schema(rows.schema).parquet(path).collect()
        again = rows.collect()
        assert count == len(collected)
        output[batch] = [canonical_rows(collected), canonical_rows(written), canonical_rows(again)]

    for batches in segments(len(job.batches), {1}):
        feed(job, tmp_path / "subject", batches)
        session = session_for(spark, backend.confs)
        start(session, job, tmp_path / "subject", act).awaitTermination()
        unload_state(spark)
    assert output == {batch: [rows] * 3 for batch, rows in expected.items()}


def test_batches_without_data(spark: SparkSession, backend: Backend, tmp_path: Path) -> None:
    """A batch that only advances the watermark evicts state, before a restart and after it.

    A restart has batches of its own, so it is the rows of the whole run that are compared.
    """
    job = jobs.AGGREGATIONS["window append"]

    def all_rows(on: Backend, restart_after: set[int], workdir: Path) -> list[str]:
        output: Output = {}

        def collect(rows: DataFrame, batch: int) -> None:
            output[batch] = canonical_rows(rows.collect())

        for batches in segments(len(job.batches), restart_after):
            feed(job, workdir, batches)
            confs = {**on.confs, "spark.sql.streaming.noDataMicroBatches.enabled": "true"}
            start(session_for(spark, confs), job, workdir, collect).awaitTermination()
            unload_state(spark)
        assert len(output) > len(job.batches)
        return sorted(row for rows in output.values() for row in rows)

    assert all_rows(backend, {1}, tmp_path / "subject") == all_rows(
        ORACLE, {1}, tmp_path / "oracle"
    )


def test_file_sink(spark: SparkSession, backend: Backend, tmp_path: Path) -> None:
    """A sink that is no Python function: the plan runs as Spark plans it for a write."""
    job = jobs.AGGREGATIONS["window append"]
    expected = run(spark, job, tmp_path / "oracle", ORACLE)
    workdir = tmp_path / "subject"
    for batches in segments(len(job.batches), {1}):
        feed(job, workdir, batches)
        session = session_for(spark, backend.confs)
        (
            job.transform(open_sources(session, job, workdir))
            .writeStream.format("parquet")
            .option("path", str(workdir / "output"))
            .option("checkpointLocation", str(workdir / "checkpoint"))
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )
        unload_state(spark)
    written = canonical_rows(spark.read.parquet(str(workdir / "output")).collect())
    assert written == sorted(row for rows in expected.values() for row in rows)
