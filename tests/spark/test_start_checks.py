"""What must not be so when a query starts: then it does not, says why, and writes nothing."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import sparkckpt
from sparkckpt.coordinator import FileCompletedCheckpointStore
from sparkckpt.storage import Storage
from tests.spark.jobs import EVENTS, events, unbounded_join
from tests.spark.leases import await_release
from tests.spark.streams import (
    ORACLE,
    STATE_STORE,
    Backend,
    Job,
    canonical_rows,
    checkpoint_of,
    feed,
    open_sources,
    run,
    session_for,
    unload_state,
)

MARKERS = {
    "SPARKCKPT_RESTORE_UNFINISHED": ("restoring.json", b'{"formatVersion": 1}'),
    "SPARKCKPT_CLAIMED": ("claimed.json", b'{"formatVersion": 1, "by": "s3a://b/target"}'),
}


def deduplication() -> Job:
    return Job.of(EVENTS, events(5), lambda df: df.dropDuplicates(["k"]))


class SinkQuery:
    """A query that writes into Parquet files."""

    def __init__(self, spark: SparkSession, backend: Backend, job: Job, workdir: Path) -> None:
        self.spark, self.backend, self.job, self.workdir = spark, backend, job, workdir
        self.checkpoint = checkpoint_of(workdir)
        self.run_id = ""

    def go(self, **confs: str) -> None:
        """Runs to the end of the input that was fed."""
        session = session_for(self.spark, {**self.backend.confs, **self.job.confs, **confs})
        try:
            query = (
                self.job.transform(open_sources(session, self.job, self.workdir))
                .writeStream.format("parquet")
                .option("path", str(self.workdir / "output"))
                .option("checkpointLocation", str(self.checkpoint))
                .trigger(availableNow=True)
                .start()
            )
            self.run_id = query.runId
            query.awaitTermination()
        finally:
            unload_state(self.spark)

    def feed(self, *batches: int) -> None:
        feed(self.job, self.workdir, batches)

    def output(self) -> list[str]:
        return canonical_rows(self.spark.read.parquet(str(self.workdir / "output")).collect())

    def files(self) -> dict[str, bytes]:
        """Without those that Hadoop keeps for itself."""
        found = (path for path in self.checkpoint.rglob("[!.]*") if path.is_file())
        return {str(path): path.read_bytes() for path in found}

    def settle(self) -> None:
        """Waits until the coordinator of the last run has done all that it does."""
        await_release(self.checkpoint, self.run_id)


@pytest.fixture
def make_query(spark: SparkSession, backend: Backend, tmp_path: Path) -> Callable[[Job], SinkQuery]:
    return lambda job: SinkQuery(spark, backend, job, tmp_path / "subject")


@pytest.mark.parametrize("condition", MARKERS)
def test_a_directory_that_is_not_the_querys_own(
    make_query: Callable[[Job], SinkQuery], condition: str
) -> None:
    query = make_query(deduplication())
    query.feed(0, 1)
    query.go()
    query.settle()
    name, content = MARKERS[condition]
    marker = query.checkpoint / "_sparkckpt" / name
    marker.write_bytes(content)
    query.feed(2)
    before = query.files()
    with pytest.raises(StreamingQueryException, match=condition) as failure:
        query.go()
    assert ("s3a://b/target" in str(failure.value)) is (condition == "SPARKCKPT_CLAIMED")
    assert query.files() == before
    marker.unlink()
    query.go()
    assert (query.checkpoint / "commits/2").exists()


def test_a_directory_of_which_only_the_marker_is_there(
    make_query: Callable[[Job], SinkQuery],
) -> None:
    query = make_query(deduplication())
    marker = query.checkpoint / "_sparkckpt/restoring.json"
    marker.parent.mkdir(parents=True)
    marker.write_bytes(b'{"formatVersion": 1}')
    query.feed(0)
    with pytest.raises(StreamingQueryException, match="SPARKCKPT_RESTORE_UNFINISHED"):
        query.go()
    # Spark gives a query its id, in `metadata`, before anybody is asked.
    assert {Path(path).name for path in query.files()} == {"restoring.json", "metadata"}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("checkpoint.interval", "0"),
        ("checkpoint.onFailure", "ignore"),
        ("maxParallelism", "many"),
        ("restore.mode", "steal"),
    ],
)
def test_an_option_of_the_session_that_is_not_valid(
    make_query: Callable[[Job], SinkQuery], option: str, value: str
) -> None:
    query = make_query(deduplication())
    query.feed(0)
    with pytest.raises(StreamingQueryException, match="SPARKCKPT_INVALID_CONF") as failure:
        query.go(**{STATE_STORE + f"sparkckpt.{option}": value})
    assert f"{option} has the value '{value}'" in str(failure.value)
    assert {Path(path).name for path in query.files()} == {"metadata"}
    query.go()
    assert (query.checkpoint / "commits/0").exists()


@pytest.mark.parametrize("stateful", [True, False])
def test_a_sink_that_is_ahead(make_query: Callable[[Job], SinkQuery], stateful: bool) -> None:
    query = make_query(deduplication() if stateful else Job.of(EVENTS, events(5), lambda df: df))
    query.feed(0, 1)
    query.go()
    if stateful:
        query.settle()
    older = query.workdir / "older"
    shutil.copytree(query.checkpoint, older)
    query.feed(2, 3)
    query.go()
    written = query.output()
    if stateful:
        query.settle()
    shutil.rmtree(query.checkpoint)
    older.rename(query.checkpoint)
    before = query.files()
    with pytest.raises(StreamingQueryException, match="SPARKCKPT_SINK_AHEAD") as failure:
        query.go()
    assert "has batches up to 3 already" in str(failure.value)
    assert "the last one is 1" in str(failure.value)
    assert query.files() == before
    assert query.output() == written
    allowed = {STATE_STORE + "sparkckpt.restore.allowSinkAhead": "true"}
    assert ("allowSinkAhead=true" in str(failure.value)) is not stateful
    if stateful:
        with pytest.raises(StreamingQueryException, match="SPARKCKPT_SINK_AHEAD"):
            query.go(**allowed)
    else:
        query.feed(4)
        query.go(**allowed)
        assert len(query.output()) > len(written)


@pytest.mark.parametrize("operator", ["deduplication", "join"])
def test_batch_that_the_sink_has_already_after_a_rescale(
    spark: SparkSession, make_query: Callable[[Job], SinkQuery], tmp_path: Path, operator: str
) -> None:
    """The ids of the batch before name a manifest: they do not say which partitions there are."""
    job = {"deduplication": deduplication(), "join": unbounded_join(state_format=2)}[operator]
    expected = run(spark, job, tmp_path / "oracle", ORACLE)
    query = make_query(job)
    query.feed(0, 1)
    query.go()
    query.settle()
    sparkckpt.rescale(query.checkpoint, 4)
    query.feed(2)
    query.go()
    query.settle()
    commits = query.checkpoint / "commits"
    state_ids = json.loads((commits / "2").read_text().split("\n")[1])["stateUniqueIds"]
    assert {len(partitions) for partitions in state_ids.values()} == {4}
    for entry in commits.glob("*2*"):
        entry.unlink()
    query.feed(*range(3, len(job.batches)))
    query.go()
    recovered = json.loads((commits / "2").read_text().split("\n")[1])["stateUniqueIds"]
    assert recovered == state_ids
    assert query.output() == sorted(row for rows in expected.values() for row in rows)
    query.settle()
    store = FileCompletedCheckpointStore.at(Storage.at(query.checkpoint))
    batches: list[tuple[int, int]] = []
    store.recover(lambda m: batches.append((m.batch_id, m.operator_states[0].parallelism)))
    assert batches[:3] == [(0, 3), (1, 3), (2, 4)]


@pytest.mark.parametrize("operator", ["deduplication", "join"])
def test_a_rescale_after_the_sink_has_the_batch(
    spark: SparkSession, make_query: Callable[[Job], SinkQuery], tmp_path: Path, operator: str
) -> None:
    """The batch has written its state at the former parallelism, and cannot be run again."""
    job = {"deduplication": deduplication(), "join": unbounded_join(state_format=2)}[operator]
    expected = run(spark, job, tmp_path / "oracle", ORACLE)
    query = make_query(job)
    query.feed(0, 1, 2)
    query.go()
    query.settle()
    commits = query.checkpoint / "commits"
    committed = json.loads((commits / "2").read_text().split("\n")[1])["stateUniqueIds"]
    for entry in commits.glob("*2*"):
        entry.unlink()
    sparkckpt.rescale(query.checkpoint, 5)
    query.go()
    recovered = json.loads((commits / "2").read_text().split("\n")[1])["stateUniqueIds"]
    assert recovered == committed
    query.settle()
    assert sparkckpt.rescale(query.checkpoint, 5).former_parallelism == 3
    query.feed(*range(3, len(job.batches)))
    query.go()
    assert query.output() == sorted(row for rows in expected.values() for row in rows)
