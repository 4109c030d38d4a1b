"""What is said of the checkpoints of a real query agrees with what it has written."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from pyspark.sql import DataFrame, SparkSession

import sparkckpt
from sparkckpt.cli.console import main
from sparkckpt.errors import QueryRunningError
from sparkckpt.format import StateHandle
from tests.spark import jobs
from tests.spark.coordinator_kills import stale_files
from tests.spark.faults import wait_until
from tests.spark.leases import await_release
from tests.spark.python_jobs import transform_with_state
from tests.spark.streams import (
    CONTINUALLY,
    STATE_STORE,
    Backend,
    checkpoint_of,
    feed,
    run,
    session_for,
    start,
)
from tests.spark.totals import CONFS, NO_INLINING, PARALLELISM, TOTALS, RunningTotals
from tests.unit.format_samples import flipped

RETAINED = {
    STATE_STORE + "sparkckpt.checkpoint.retained": "3",
    "spark.sql.streaming.minBatchesToRetain": "2",
}
ORPHAN = "0/0/1_11111111-1111-1111-1111-111111111111.delta.arrow"


@pytest.fixture(scope="module", params=["inlined", "files"])
def totals(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> RunningTotals:
    """Eight batches in two runs, with merges, and deltas inlined or in files of their own."""
    confs = {**RETAINED, **(NO_INLINING if request.param == "files" else {})}
    totals = RunningTotals(spark, tmp_path_factory.mktemp("totals"), confs)
    totals.advance(5)
    totals.advance(3)
    totals.settle()
    assert not is_running(totals.checkpoint)
    return totals


def newest_batch(checkpoint: Path) -> int:
    batches = sparkckpt.list_checkpoints(checkpoint)["batch_id"].to_pylist()
    return max((batch for batch in batches if batch is not None), default=-1)


def is_running(checkpoint: Path) -> bool:
    try:
        sparkckpt.clean(checkpoint, dry_run=False)
    except QueryRunningError:
        return True
    return False


def refs_of(handles: list[StateHandle]) -> set[tuple[str, int, int, int]]:
    return {(f.path, f.offset, f.length, f.rows) for handle in handles for f in handle.files_of()}


def test_list_and_show_say_what_spark_has_committed(totals: RunningTotals) -> None:
    rows = sparkckpt.list_checkpoints(totals.checkpoint).to_pylist()
    assert [row["batch_id"] for row in rows] == [5, 6, 7]
    assert {row["status"] for row in rows} == {"retained"}
    for row in rows:
        report = sparkckpt.show_checkpoint(totals.checkpoint, row["checkpoint_id"])
        handles = totals.handles(row["batch_id"])
        files = [file for file in report.files.to_pylist() if file["kind"] != "handle"]
        assert {(f["path"], f["offset"], f["bytes"], f["rows"]) for f in files} == refs_of(handles)
        assert row["state_bytes"] == sum(length for _, _, length, _ in refs_of(handles))
        assert row["files"] == len({file["path"] for file in report.files.to_pylist()})
        assert {len(handle.key_groups) for handle in handles} == {
            range_["last_key_group"] - range_["first_key_group"] + 1
            for range_ in report.key_groups.to_pylist()
        }
        (operator,) = report.operators.to_pylist()
        assert (operator["name"], operator["parallelism"]) == ("stateStoreSave", PARALLELISM)
        (source,) = report.sources.to_pylist()
        assert json.loads(source["offset"]) == {"logOffset": row["batch_id"]}
        confs = {conf["name"]: conf["value"] for conf in report.confs.to_pylist()}
        assert confs["spark.sql.shuffle.partitions"] == str(PARALLELISM)


def test_nothing_is_wrong_and_nothing_is_left_over(totals: RunningTotals) -> None:
    assert sparkckpt.verify(totals.checkpoint).to_pylist() == []
    assert sparkckpt.clean(totals.checkpoint).to_pylist() == []
    assert stale_files(totals.checkpoint) == []


def test_flipped_bytes_of_every_file_are_found(totals: RunningTotals) -> None:
    """In the head too, which Arrow for Java writes."""
    state = totals.checkpoint / "state"
    files = sparkckpt.show_checkpoint(totals.checkpoint).files["path"].to_pylist()
    for number, path in enumerate(sorted(set(files))):
        data = (state / path).read_bytes()
        for position in {30 + 97 * number, 20, len(data) - 30}:
            (state / path).write_bytes(flipped(data, position % len(data), 1 << number % 8))
            problems = sparkckpt.verify(totals.checkpoint).to_pylist()
            assert {problem["path"] for problem in problems} == {f"state/{path}"}, position
        (state / path).write_bytes(data)
    assert sparkckpt.verify(totals.checkpoint).num_rows == 0


def test_the_command_line_cleans_up(totals: RunningTotals) -> None:
    orphan = totals.checkpoint / "state" / ORPHAN
    orphan.write_bytes(b"of an attempt that has lost")
    command = ["clean", str(totals.checkpoint), "--output", "json"]
    listed = CliRunner().invoke(main, command)
    assert [row["path"] for row in json.loads(listed.output)] == [f"state/{ORPHAN}"]
    assert orphan.exists()
    CliRunner().invoke(main, [*command, "--delete"])
    assert not orphan.exists()
    assert CliRunner().invoke(main, ["verify", str(totals.checkpoint)]).exit_code == 0


def test_looking_does_not_disturb_a_running_query(spark: SparkSession, tmp_path: Path) -> None:
    def ignore(rows: DataFrame, batch: int) -> None:
        rows.count()

    confs = {**CONFS, **RETAINED}
    query = start(session_for(spark, confs), TOTALS, tmp_path, ignore, CONTINUALLY)
    checkpoint = tmp_path / "checkpoint"
    for batch in range(6):
        feed(TOTALS, tmp_path, [batch])
        query.processAllAvailable()
        if batch == 0:
            wait_until(lambda: newest_batch(checkpoint) == 0)
        assert sparkckpt.verify(checkpoint).to_pylist() == []
        sparkckpt.clean(checkpoint)
    wait_until(lambda: newest_batch(checkpoint) == 5)
    with pytest.raises(QueryRunningError):
        sparkckpt.clean(checkpoint, dry_run=False)
    query.stop()
    await_release(checkpoint, query.runId)
    assert not is_running(checkpoint)


JOBS = {
    "join, then aggregation": jobs.COMBINATIONS["join, then aggregation"],
    "join of every row": jobs.unbounded_join(3),
    "sessions": jobs.SESSION_WINDOWS["append"],
    "without a key": jobs.AGGREGATIONS["global update"],
    "families": transform_with_state(pandas=False)["value, list and map"],
}


@pytest.mark.parametrize("name", JOBS)
def test_the_checkpoints_of_every_kind_of_state_verify(
    spark: SparkSession, tmp_path: Path, backend: Backend, name: str
) -> None:
    """Several operators, stores and families, lists and deletes: the rules of `verify` hold."""
    job = JOBS[name]
    run(spark, job, tmp_path, backend, restart_after={1})
    checkpoint = checkpoint_of(tmp_path)
    wait_until(lambda: newest_batch(checkpoint) == len(job.batches) - 1)
    assert sparkckpt.verify(checkpoint).to_pylist() == []
    report = sparkckpt.show_checkpoint(checkpoint)
    committed = json.loads((checkpoint / f"commits/{report.batch_id}").read_text().splitlines()[1])
    assert report.operators.num_rows == len(committed["stateUniqueIds"])
