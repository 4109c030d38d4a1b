"""The coordinator on a fake query: completion, waiting, failures, ownership and shutdown."""

import logging
import threading
from dataclasses import replace
from typing import Any

import pytest

from sparkckpt.coordinator import (
    AcknowledgeResult,
    CheckpointCoordinator,
    CheckpointFailureReason,
    CompletedCheckpoint,
    CoordinatorSettings,
    FileCompletedCheckpointStore,
    QueryRun,
    running_owner,
)
from sparkckpt.coordinator.coordinator import ACK_GRACE_MS, OWNED_ELSEWHERE_MS
from sparkckpt.coordinator.lease import DURATION_MS, OWNERS, Lease
from sparkckpt.format.metadata import CheckpointMetadata, metadata_path, write_metadata
from sparkckpt.processes import ProcessId
from tests.unit.coordinator_samples import FakeQuery, Memory, Recorder, Run, ack_of

Reason = CheckpointFailureReason


def stored(query: FakeQuery) -> list[CheckpointMetadata]:
    checkpoints: list[CheckpointMetadata] = []
    FileCompletedCheckpointStore.at(query.storage).recover(checkpoints.append)
    return checkpoints


def batches(query: FakeQuery) -> list[int]:
    return [checkpoint.batch_id for checkpoint in stored(query)]


def memory_of(query: FakeQuery) -> Memory:
    memory: Memory = query.storage.filesystem
    return memory


def test_a_committed_batch_becomes_a_checkpoint() -> None:
    query = FakeQuery(operators=(0, 1))
    run = Run(query)
    handles = run.batch(0)
    run.work()
    (checkpoint,) = stored(query)
    assert checkpoint.batch_id == 0
    assert checkpoint.query_id == "a-query"
    assert {handle.path for handle in checkpoint.handles} == {handle.path for handle in handles}
    join = checkpoint.operator_states[1]
    assert [h.store_name for h in join.subtasks[0].handles] == ["left", "right"]
    assert checkpoint.source_offsets == ("0",)
    assert [c.checkpoint_id for c in run.recorder.completed] == [checkpoint.checkpoint_id]


def test_without_an_event_the_acks_of_the_next_batch_prove_the_commit() -> None:
    query = FakeQuery()
    run = Run(query)
    run.work()
    run.batch(0, progress=False)
    run.work()
    assert batches(query) == []
    handles = query.run_batch(1)
    run.ack(handles[0])
    run.work()
    assert batches(query) == [0]


def test_ids_of_losing_attempts_never_enter() -> None:
    query = FakeQuery()
    run = Run(query)
    query.plan(0)
    losers = [query.attempt(0, store) for store in query.stores]
    winners = [query.attempt(0, store) for store in query.stores]
    for handle in (*losers, *winners):
        assert run.ack(handle) is AcknowledgeResult.NEW
    query.commit(0, winners)
    run.coordinator.batch_committed(0)
    run.work()
    (checkpoint,) = stored(query)
    assert {handle.id for handle in checkpoint.handles} == {handle.id for handle in winners}


def test_a_lost_ack_is_read_from_its_handle_after_a_grace() -> None:
    query = FakeQuery(operators=(1,))
    run = Run(query)
    handles = query.run_batch(0)
    for handle in handles[:-1]:
        run.ack(handle)
    query.commit(0, handles)
    run.coordinator.batch_committed(0)
    run.work()
    assert batches(query) == []
    run.pass_time(ACK_GRACE_MS)
    (checkpoint,) = stored(query)
    assert list(checkpoint.handles) == handles


def test_a_late_ack_completes_at_once() -> None:
    query = FakeQuery()
    run = Run(query)
    handles = query.run_batch(0)
    run.ack(handles[0])
    query.commit(0, handles)
    run.coordinator.batch_committed(0)
    run.work()
    assert run.ack(handles[1]) is AcknowledgeResult.NEW
    run.work()
    assert batches(query) == [0]


def test_a_newer_batch_does_not_overtake_one_whose_ack_is_lost() -> None:
    query = FakeQuery()
    run = Run(query)
    run.work()
    handles = query.run_batch(0)
    run.ack(handles[0])
    query.commit(0, handles)
    run.coordinator.batch_committed(0)
    run.work()
    assert batches(query) == []
    run.batch(1)
    run.work()
    assert batches(query) == [0, 1]


def test_acks_are_told_apart() -> None:
    query = FakeQuery()
    run = Run(query)
    query.plan(0)
    loser = query.attempt(0, query.stores[0])
    late_loser = query.attempt(0, query.stores[0])
    winners = [query.attempt(0, store) for store in query.stores]
    acknowledge = run.coordinator.acknowledge
    assert acknowledge(ack_of(winners[0], "another run")) is AcknowledgeResult.STALE
    assert run.ack(loser) is AcknowledgeResult.NEW
    assert run.ack(winners[0]) is AcknowledgeResult.NEW
    assert run.ack(winners[0]) is AcknowledgeResult.DUPLICATE
    query.commit(0, winners)
    run.coordinator.batch_committed(0)
    run.pass_time(ACK_GRACE_MS)
    assert batches(query) == [0]
    assert run.ack(winners[1]) is AcknowledgeResult.LATE
    assert run.ack(winners[0]) is AcknowledgeResult.LATE
    assert run.ack(late_loser) is AcknowledgeResult.STALE


def test_an_aborted_batch_is_declined_and_its_acks_are_stale() -> None:
    query = FakeQuery()
    run = Run(query)
    handles = query.run_batch(0)
    run.ack(handles[0])
    run.coordinator.batch_aborted(0, "a task failed")
    assert run.recorder.aborted == [(0, Reason.CHECKPOINT_DECLINED)]
    assert run.ack(handles[1]) is AcknowledgeResult.STALE


def test_attempts_that_differ_are_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    query = FakeQuery()
    run = Run(query)
    for batch in (0, 1):
        query.plan(batch)
        handles = [query.attempt(batch, store) for store in query.stores]
        other = query.attempt(batch, query.stores[1], digest="f" * 16)
        with caplog.at_level(logging.WARNING):
            for handle in (*handles, other):
                run.ack(handle)
        query.commit(batch, handles)
    warnings = [record for record in caplog.records if "not deterministic" in record.message]
    assert len(warnings) == 1
    assert "partition 1" in warnings[0].message


def test_only_every_third_batch_and_the_last() -> None:
    query = FakeQuery()
    run = Run(query, interval=3)
    for batch in range(8):
        run.batch(batch)
        run.work()
    assert batches(query) == [2, 5]
    run.coordinator.query_ended()
    run.work()
    assert batches(query) == [2, 5, 7]


def test_statistics() -> None:
    query = FakeQuery()
    run = Run(query)
    handles = query.run_batch(0)
    acknowledge = run.coordinator.acknowledge
    acknowledge(ack_of(handles[0], received_ms=100, sync_ms=3, write_ms=40, bytes_written=10))
    acknowledge(ack_of(handles[1], received_ms=130, sync_ms=30, write_ms=20, bytes_written=20))
    query.commit(0, handles)
    run.now_ms = 250
    run.coordinator.batch_committed(0)
    run.work()
    statistics = stored(query)[0].statistics
    assert statistics == run.recorder.completed[0].statistics
    assert (statistics.duration_ms, statistics.ack_spread_ms) == (150, 30)
    assert (statistics.sync_ms, statistics.write_ms, statistics.delta_bytes) == (30, 40, 30)
    assert (statistics.files, statistics.new_files, statistics.state_bytes) == (4, 4, 200)
    assert statistics.slowest == "operator 0, partition 1, store default: 50 ms"


def test_a_checkpoint_costs_a_constant_number_of_calls() -> None:
    calls = []
    for parallelism in (2, 40):
        query = FakeQuery(parallelism=parallelism, merge_after=10)
        run = Run(query, retained=2)
        for batch in range(5):
            run.batch(batch)
            run.work()
        run.batch(5)
        before = memory_of(query).calls
        run.worker.join(0)
        completing = memory_of(query).calls - before
        run.work()
        calls.append((completing, memory_of(query).calls - before))
    assert calls[0] == calls[1]
    assert calls[0][0] <= 6


def test_without_state_of_ours_nothing_is_written() -> None:
    query = FakeQuery()
    query.storage.delete(["_sparkckpt/backend.json"])
    run = Run(query)
    handles = query.run_batch(0)
    query.commit(0, handles)
    run.coordinator.batch_committed(0)
    run.work()
    run.coordinator.drain(1)
    assert query.storage.find("_sparkckpt") == {}


def test_the_first_ack_tells_that_the_state_is_ours() -> None:
    query = FakeQuery()
    query.storage.delete(["_sparkckpt/backend.json"])
    run = Run(query)
    run.work()
    run.batch(0)
    run.work()
    assert batches(query) == [0]


def test_a_batch_without_state_is_no_checkpoint() -> None:
    query = FakeQuery()
    run = Run(query)
    query.plan(0)
    query.write("commits/0", b'v1\n{"nextBatchWatermarkMs":0}')
    run.work()
    run.coordinator.batch_committed(0)
    run.work()
    assert batches(query) == []
    assert run.recorder.aborted == []


def test_unreadable_state_ends_a_checkpoint_at_once() -> None:
    query = FakeQuery()
    run = Run(query)
    run.work()
    handles = query.run_batch(0)
    query.storage.delete([f"state/{handles[0].path}"])
    query.commit(0, handles)
    run.coordinator.batch_committed(0)
    run.pass_time(ACK_GRACE_MS)
    assert run.recorder.aborted == [(0, Reason.STATE_UNREADABLE)]
    assert handles[0].path in run.recorder.messages[0]
    run.batch(1)
    run.work()
    assert batches(query) == [1]


def fail_reads_of(query: FakeQuery, part: str) -> None:
    def fail(operation: str, path: str) -> None:
        if operation == "read" and part in path:
            raise OSError("no route to storage")

    memory_of(query).before = fail


def test_storage_that_fails_is_tried_again_until_the_timeout() -> None:
    query = FakeQuery()
    run = Run(query, timeout_ms=60_000)
    run.work()
    fail_reads_of(query, "commits/0")
    run.batch(0)
    for _ in range(59):
        run.pass_time(1_000)
    assert run.recorder.aborted == []
    run.pass_time(1_000)
    assert run.recorder.aborted == [(0, Reason.CHECKPOINT_EXPIRED)]
    assert "no route to storage" in run.recorder.messages[0]


def test_storage_that_recovers_in_time_costs_nothing_but_time() -> None:
    query = FakeQuery()
    run = Run(query)
    run.work()
    fail_reads_of(query, "offsets/0")
    run.batch(0)
    run.pass_time(2_000)
    memory_of(query).before = lambda operation, path: None
    run.pass_time(2_000)
    assert batches(query) == [0]
    assert run.recorder.aborted == []


def test_recovery_is_tried_again() -> None:
    query = FakeQuery()
    first = Run(query)
    first.batch(0)
    first.work()

    def fail(operation: str, path: str) -> None:
        if operation == "list" and "commits" in path:
            raise OSError("no route to storage")

    memory_of(query).before = fail
    run = Run(query)
    run.batch(1)
    run.work()
    assert batches(query) == [0]
    memory_of(query).before = lambda operation, path: None
    run.pass_time(1_000)
    assert batches(query) == [0, 1]


@pytest.mark.parametrize("stop", [True, False])
def test_more_failures_in_a_row_than_tolerated(
    stop: bool, caplog: pytest.LogCaptureFixture
) -> None:
    query = FakeQuery()
    run = Run(query, tolerable_failures=1, stop_on_failure=stop)
    run.work()

    def fail(operation: str, path: str) -> None:
        if operation == "write" and "chk-" in path:
            raise OSError("the disk is full")

    def batch(number: int, broken: bool) -> None:
        memory_of(query).before = fail if broken else lambda operation, path: None
        run.batch(number)
        run.work()

    for number, broken in enumerate([True, False, True, True]):
        assert run.recorder.stopped == []
        batch(number, broken)
    assert [batch_id for batch_id, _ in run.recorder.aborted] == [0, 2, 3]
    assert {reason for _, reason in run.recorder.aborted} == {Reason.FINALIZE_CHECKPOINT_FAILURE}
    told = run.recorder.stopped if stop else [record.message for record in caplog.records]
    assert any("More than 1 checkpoints" in message for message in told)
    assert any("the disk is full" in message for message in told)
    assert len(run.recorder.stopped) == stop


def test_when_storage_cannot_keep_up_the_older_are_skipped() -> None:
    query = FakeQuery()
    run = Run(query, retained=3)
    run.work()
    for batch in range(7):
        run.batch(batch)
    assert run.recorder.aborted == [(batch, Reason.CHECKPOINT_SUBSUMED) for batch in range(4)]
    run.work()
    assert batches(query) == [4, 5, 6]


def test_a_newer_coordinator_ends_an_older_one() -> None:
    query = FakeQuery()
    old = Run(query, "old")
    old.batch(0)
    old.work()
    new = Run(query, "new")
    new.work()
    old.batch(1)
    files = query.state_files()
    old.work()
    assert batches(query) == [0]
    assert old.recorder.aborted == [(1, Reason.CHECKPOINT_COORDINATOR_SUSPEND)]
    old.pass_time(100_000)
    old.coordinator.drain(1)
    assert query.state_files() == files
    assert running_owner(query.storage, 0) is not None
    new.coordinator.batch_committed(1)
    new.pass_time(ACK_GRACE_MS)
    assert batches(query) == [0, 1]


def test_a_resumed_run_waits_for_another_that_owns() -> None:
    """Its coordinator has died and was started anew; meanwhile another driver's has taken over."""
    query = FakeQuery()
    other = Run(query, "other")
    other.batch(0)
    other.work()
    claim_elsewhere(query, other)
    resumed = Run(query, "resumed", resumed=True)
    resumed.work()
    resumed.batch(1)
    resumed.pass_time(OWNED_ELSEWHERE_MS)
    owner = running_owner(query.storage, 0)
    assert owner is not None and owner.run_id == "other"
    assert batches(query) == [0]
    assert resumed.recorder.aborted == [(1, Reason.CHECKPOINT_COORDINATOR_SUSPEND)]
    resumed.pass_time(DURATION_MS)
    resumed.pass_time(ACK_GRACE_MS)
    assert batches(query) == [0, 1], "the lease of the other has expired"
    owner = running_owner(query.storage, resumed.now_ms)
    assert owner is not None and owner.run_id == "resumed"


def test_a_resumed_run_takes_over_at_once_from_its_former_coordinator() -> None:
    query = FakeQuery()
    former = Run(query, "run")
    former.batch(0)
    former.work()
    claim_elsewhere(query, former)
    Run(query, "run", resumed=True).work()
    owner = running_owner(query.storage, 0)
    assert owner is not None and owner.run_id == "run"
    assert owner.process == ProcessId.here()


@pytest.mark.parametrize("run_id", ["another", "command restore"])
def test_a_resumed_run_leaves_what_this_very_process_owns(run_id: str) -> None:
    """It may be just restoring from there."""
    query = FakeQuery()
    Lease.claim(query.storage, run_id, 0)
    Run(query, "run", resumed=True).work()
    owner = running_owner(query.storage, 0)
    assert owner is not None and owner.run_id == run_id


def test_who_starts_takes_over_at_once_from_whoever_it_is() -> None:
    query = FakeQuery()
    other = Run(query, "other")
    other.work()
    claim_elsewhere(query, other)
    Run(query, "new").work()
    owner = running_owner(query.storage, 0)
    assert owner is not None and owner.run_id == "new"


def test_a_directory_that_was_claimed_is_not_taken_over() -> None:
    query = FakeQuery()
    query.write("_sparkckpt/claimed.json", b'{"formatVersion": 1, "by": "file:///other"}')
    run = Run(query, resumed=True)
    run.work()
    assert running_owner(query.storage, 0) is None


def claim_elsewhere(query: FakeQuery, run: Run) -> None:
    """Makes the lease of a run that of a process on another machine."""
    lease = run.coordinator._ownership.claim()
    elsewhere = replace(lease.owner, process=ProcessId("elsewhere", 1))
    query.write(f"{OWNERS}/{lease.epoch}", elsewhere.to_bytes())


def test_what_a_zombie_completes_at_the_last_moment_is_removed() -> None:
    """Its state is held by nobody, and a checkpoint that can be found must be whole."""
    query = FakeQuery()
    old = Run(query, "old")
    old.batch(0)
    old.work()
    new = Run(query, "new")
    new.work()
    zombie = metadata_path(2)
    metadata = write_metadata(replace(stored(query)[0], checkpoint_id=2))
    query.write(zombie, metadata)
    for batch in (1, 2):
        new.batch(batch)
        new.work()
    assert not query.storage.exists(zombie)
    assert [checkpoint.checkpoint_id for checkpoint in stored(query)] == [1, 3]


def test_the_end_completes_the_last_batch_even_if_nothing_was_heard_of_it() -> None:
    query = FakeQuery()
    run = Run(query)
    run.batch(0)
    run.work()
    query.commit(1, query.run_batch(1))
    assert running_owner(query.storage, 0) is not None
    assert run.coordinator.drain(1)
    assert batches(query) == [0, 1]
    assert running_owner(query.storage, 0) is None


@pytest.mark.parametrize(
    ("error", "reason"),
    [("boom", Reason.JOB_FAILURE), (None, Reason.CHECKPOINT_COORDINATOR_SHUTDOWN)],
)
def test_the_end_aborts_what_is_not_committed(error: Any, reason: Reason) -> None:
    query = FakeQuery()
    run = Run(query)
    run.batch(0)
    run.ack(query.run_batch(1)[0])
    run.coordinator.query_ended(error)
    run.work()
    assert batches(query) == [0]
    assert run.recorder.aborted == [(1, reason)]


def test_a_start_that_finds_all_complete_adds_nothing() -> None:
    query = FakeQuery()
    first = Run(query)
    first.batch(0)
    first.coordinator.drain(1)
    second = Run(query, "second", interval=5)
    second.coordinator.drain(1)
    assert [c.checkpoint_id for c in stored(query)] == [1]
    assert second.recorder.completed == []


def test_the_lease_is_renewed_while_the_query_runs() -> None:
    query = FakeQuery()
    run = Run(query)
    run.work()
    for _ in range(10):
        run.pass_time(15_000)
        owner = running_owner(query.storage, run.now_ms)
        assert owner is not None and owner.run_id == "run"


@pytest.mark.parametrize("ended", [False, True], ids=["running", "ended"])
def test_the_lease_is_renewed_while_other_work_takes_long(ended: bool) -> None:
    """Neither the worker that completes nor the one that deletes gets anything done here."""
    query = FakeQuery()
    run = Run(query)
    run.work()
    if ended:
        run.coordinator.query_ended()
    for _ in range(10):
        run.now_ms += 15_000
        run.coordinator.tick()
        run.renewer.join(0)
        assert running_owner(query.storage, run.now_ms) is not None


def test_a_lease_that_was_given_up_is_not_renewed() -> None:
    query = FakeQuery()
    run = Run(query)
    run.work()
    run.now_ms += 30_000
    run.coordinator.tick()
    run.coordinator.query_ended()
    run.worker.join(0)
    run.janitor.join(0)
    run.work()
    run.pass_time(30_000)
    assert running_owner(query.storage, run.now_ms) is None


def test_each_run_reads_its_own_operators() -> None:
    query = FakeQuery()
    first = Run(query)
    first.work()
    query.commit(0, query.run_batch(0))
    schema = "state/0/0/_metadata/schema"
    second = Run(query, "second")
    second.work()
    second.pass_time(ACK_GRACE_MS)
    query.write(schema, b"the schema of the second run")
    second.batch(1)
    second.work()
    contents = [checkpoint.master_state(schema) for checkpoint in stored(query)]
    assert contents == [b"a schema", b"the schema of the second run"]


def test_with_its_own_threads_acks_never_wait_for_storage() -> None:
    query = FakeQuery()
    storage_is_stuck = threading.Event()
    completed = threading.Event()
    recorder = Recorder()

    class Listener:
        on_aborted = recorder.on_aborted
        on_stop_query = recorder.on_stop_query

        def on_completed(self, checkpoint: CompletedCheckpoint) -> None:
            recorder.on_completed(checkpoint)
            completed.set()

    def block(operation: str, path: str) -> None:
        storage_is_stuck.wait(60)

    coordinator = CheckpointCoordinator(
        query.storage, QueryRun("run", "query"), CoordinatorSettings(), Listener()
    )
    handles = query.run_batch(0)
    query.commit(0, handles)
    memory_of(query).before = block
    coordinator.query_started()
    for handle in handles:
        assert coordinator.acknowledge(ack_of(handle)) is AcknowledgeResult.NEW
    coordinator.batch_committed(0)
    coordinator.tick()
    assert not coordinator.drain(0.01)
    storage_is_stuck.set()
    assert completed.wait(60)
    assert coordinator.drain(60)
    coordinator.close()
    assert batches(query) == [0]
    assert running_owner(query.storage, 0) is None
    assert recorder.aborted == []
