"""Operator state of a Python processor, in queries that fail, are rescaled and are restored."""

import pickle
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import sparkckpt
from sparkckpt.errors import OperatorStateNotExportableError
from sparkckpt.format import load_operator_states, metadata_path, read_metadata
from sparkckpt.storage import Storage
from tests.spark.leases import await_release
from tests.spark.rescaling import rescale_when_stopped, when_stopped
from tests.spark.streams import (
    PARTITIONS,
    SPARKCKPT,
    Backend,
    Job,
    checkpoint_of,
    feed,
    session_for,
    start,
    unload_state,
)

if TYPE_CHECKING:
    from sparkckpt.processor.operatorstate import OperatorStateContext

BATCHES = [[{"id": batch * 100 + n, "k": n % 7} for n in range(40)] for batch in range(4)]


def remembering(failure: Path) -> Any:
    """Keeps the ids of all rows in split state: each must be in one place at any time. The file
    `failure` makes a task fail once, at its end."""

    class Remembering(sparkckpt.VectorizedProcessor):
        def initialize_state(self, context: "OperatorStateContext") -> None:
            from pyspark import TaskContext

            self.ids = context.get_list_state("ids")
            if not context.is_restored:
                task = TaskContext.get()
                assert task is not None
                context.get_union_list_state("first partitions").add(task.partitionId())
                context.get_broadcast_state("rules").update(["a", "b"])

        def process(self, touched: sparkckpt.Touched) -> sparkckpt.Changes:
            import numpy as np
            import pyarrow as pa

            for each in touched.rows["id"].to_pylist():
                self.ids.add(each)
            counts = np.diff(touched.starts, append=touched.rows.num_rows)
            totals = np.asarray(touched.state["n"].fill_null(0)) + counts
            state = pa.table({"n": totals})
            return sparkckpt.Changes(touched.keys.append_column("n", state["n"]), state)

        def snapshot_state(self, context: "OperatorStateContext") -> None:
            if failure.exists():
                failure.unlink()
                raise ValueError("as it was told")

    return Remembering()


class Query:
    """The query on a directory, batch by batch."""

    def __init__(self, spark: SparkSession, workdir: Path) -> None:
        self.spark, self.workdir = spark, workdir
        self.failure = workdir / "failure"
        self.done = 0
        self.output: list[Any] = []

    def run(self, batches: int, backend: Backend, parallelism: int) -> None:
        """Runs so many batches more, until their checkpoints are complete."""
        job = Job.of("id long, k long", BATCHES, self._transform, "update")
        until = self.done + batches
        feed(job, self.workdir, range(self.done, until))
        confs = {**backend.confs_of(self.done % 2), PARTITIONS: str(parallelism)}
        query = start(session_for(self.spark, confs), job, self.workdir, self._collect)
        try:
            query.awaitTermination()
        finally:
            unload_state(self.spark)
            await_release(checkpoint_of(self.workdir), query.runId)
        self.done = until

    def _transform(self, rows: DataFrame) -> DataFrame:
        return sparkckpt.apply_vectorized(
            rows.groupBy("k"), remembering(self.failure), "k long, n long", "n long"
        )

    def _collect(self, rows: DataFrame, batch: int) -> None:
        self.output.append((batch, sorted(map(tuple, rows.collect()))))

    def check(self, parallelism: int) -> None:
        """What the newest checkpoint has is what all batches have left behind."""
        checkpoint = checkpoint_of(self.workdir)
        newest = sparkckpt.list_checkpoints(checkpoint)["checkpoint_id"].to_pylist()[-1]
        metadata = read_metadata((checkpoint / metadata_path(newest)).read_bytes(), "x")
        assert metadata.batch_id == self.done - 1
        storage = Storage.at(checkpoint).below("state")
        partitions = [
            {state.name: list(map(pickle.loads, state.items)) for state in stored.states}
            for stored in load_operator_states(storage, metadata.handles)
        ]
        assert len(partitions) == parallelism
        ids = Counter(each for states in partitions for each in states["ids"])
        assert ids == Counter(row["id"] for batch in BATCHES[: self.done] for row in batch)
        assert all(states["rules"] == ["a", "b"] for states in partitions)
        first = [states["first partitions"] for states in partitions]
        assert first in ([[0], [1], [2]], [[0, 1, 2]] * parallelism)
        assert sparkckpt.verify(checkpoint).num_rows == 0
        counted = Counter(row["k"] for batch in BATCHES[: self.done] for row in batch)
        assert self.output[-1] == (self.done - 1, sorted(counted.items()))


@pytest.fixture
def query(spark: SparkSession, tmp_path: Path) -> Query:
    return Query(spark, tmp_path)


def test_no_item_is_lost_or_doubled(query: Query, tmp_path: Path) -> None:
    checkpoint = checkpoint_of(tmp_path)
    query.run(1, SPARKCKPT, 3)
    query.check(3)
    for parallelism in (5, 2):
        rescale_when_stopped(checkpoint, parallelism)
        if parallelism == 5:
            query.failure.touch()
            with pytest.raises(Exception, match="as it was told"):
                query.run(1, SPARKCKPT, parallelism)
        query.run(1, SPARKCKPT, parallelism)
        query.check(parallelism)
    rows = sparkckpt.show_checkpoint(checkpoint).operator_states.to_pylist()
    assert [(row["name"], row["mode"], row["items"]) for row in rows] == [
        ("ids", "split", 120),
        ("first partitions", "union", 6),
        ("rules", "broadcast", 4),
    ]
    with pytest.raises(OperatorStateNotExportableError, match="'ids' of operator 0"):
        sparkckpt.export_checkpoint(checkpoint, tmp_path / "plain")
    source = checkpoint.rename(tmp_path / "source")
    when_stopped(lambda: sparkckpt.restore(source, checkpoint, mode="copy", parallelism=4))
    query.run(1, SPARKCKPT, 4)
    query.check(4)
