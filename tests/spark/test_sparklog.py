"""What Spark logs of a running query leads to every handle, and a checkpoint can be made of it."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sparkckpt.format import (
    CheckpointMetadata,
    CheckpointStatistics,
    OperatorState,
    OperatorSubtaskState,
    load_handle,
    read_metadata,
    write_metadata,
)
from sparkckpt.sparklog import SparkCheckpoint
from sparkckpt.storage import Storage
from tests.spark import jobs, python_jobs
from tests.spark.streams import Backend, Job, checkpoint_of, run

JOBS = {
    "global aggregation": Job.of(jobs.EVENTS, jobs.events(), jobs.global_aggregate, "update"),
    "two operators": Job.of(jobs.EVENTS, jobs.events(), jobs.dedup_then_aggregate),
    "join of four stores": jobs.time_range_join("inner", 2),
    "join of one store": jobs.time_range_join("inner", 3),
    "processor": python_jobs.with_state(python_jobs.Variables(False)),
}


@pytest.mark.parametrize("name", JOBS)
def test_every_commit_makes_a_checkpoint(
    spark: SparkSession, tmp_path: Path, backend: Backend, name: str
) -> None:
    run(spark, JOBS[name], tmp_path, backend, restart_after=[1])
    checkpoint = SparkCheckpoint.at(Storage.at(checkpoint_of(tmp_path)))
    batches = checkpoint.committed_batches()
    assert batches == list(range(len(JOBS[name].batches)))
    for batch_id in batches:
        metadata = metadata_of(checkpoint, batch_id)
        assert metadata.operator_states
        assert metadata.confs["spark.sql.shuffle.partitions"] == "3"
        assert all(checkpoint.storage.exists(f"state/{path}") for path in metadata.files())
        assert read_metadata(write_metadata(metadata), "x") == metadata


def metadata_of(checkpoint: SparkCheckpoint, batch_id: int) -> CheckpointMetadata:
    commit = checkpoint.commit(batch_id)
    return CheckpointMetadata(
        checkpoint_id=batch_id,
        batch_id=batch_id,
        query_id=checkpoint.query_id(),
        timestamp_ms=0,
        operator_states=tuple(
            operator_state(checkpoint, batch_id, operator_id, ids)
            for operator_id, ids in commit.state_ids.items()
        ),
        master_states=checkpoint.master_states(batch_id),
        statistics=CheckpointStatistics(),
    )


def operator_state(
    checkpoint: SparkCheckpoint,
    batch_id: int,
    operator_id: int,
    state_ids: tuple[tuple[str, ...], ...],
) -> OperatorState:
    stores = checkpoint.operator(operator_id, batch_id).stores
    state = checkpoint.storage.below("state")
    subtasks = []
    for partition, ids in enumerate(state_ids):
        handles = [
            load_handle(state, operator_id, partition, batch_id + 1, state_id, store.name)
            for store, state_id in zip(stores, ids, strict=True)
        ]
        subtasks.append(OperatorSubtaskState(partition, tuple(handles)))
    first = subtasks[0].handles[0]
    return OperatorState(
        operator_id=operator_id,
        operator_name=first.operator_name,
        parallelism=first.parallelism,
        max_parallelism=first.max_parallelism,
        keyed=first.keyed,
        subtasks=tuple(subtasks),
    )
