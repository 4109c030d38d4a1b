"""Whatever happens in whichever order, the same checkpoints are complete in the end.

A driver runs batches whose tasks are retried; acknowledgements and events are delayed, repeated and
lost; workers get on as far as they happen to; coordinators and drivers are killed. The completed
checkpoints depend on what Spark has committed, and on nothing else.
"""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from sparkckpt.coordinator import FileCompletedCheckpointStore
from sparkckpt.format import StateHandle
from sparkckpt.format.metadata import CheckpointMetadata
from tests.unit.coordinator_samples import FakeQuery, Recorder, Run, Store, needed_by


class Interleavings(RuleBasedStateMachine):
    """The driver and its coordinator. `expected` are the batches that are to be complete."""

    @initialize(
        retained=st.integers(1, 3),
        interval=st.integers(1, 2),
        more=st.integers(0, 2),
        operators=st.sampled_from([(0,), (1,)]),
    )
    def start(self, retained: int, interval: int, more: int, operators: tuple[int, ...]) -> None:
        self.retained, self.interval = retained, interval
        # Of batches that Spark has purged from its log nothing can be made any more.
        self.min_batches = retained * interval + more
        self.query = FakeQuery(operators=operators, min_batches=self.min_batches, merge_after=3)
        self.runs = 0
        self.now_ms = 0
        self.recorder = Recorder()
        self.in_flight: list[StateHandle] = []
        self.expected: list[int] = []
        self.states: dict[int, set[str]] = {}
        self.begin_run()

    def begin_run(self) -> None:
        self.runs += 1
        self.begin_coordinator()
        self.begin_batch()

    def begin_coordinator(self) -> None:
        self.run = Run(
            self.query,
            f"run {self.runs}",
            self.now_ms,
            self.recorder,
            retained=self.retained,
            interval=self.interval,
        )

    def begin_batch(self) -> None:
        self.batch_id = self.query.latest + 1
        self.attempts: dict[Store, list[StateHandle]] = {store: [] for store in self.query.stores}
        self.query.plan(self.batch_id)

    @rule(number=st.integers(0, 3), fate=st.sampled_from(["acked", "delayed", "lost", "twice"]))
    def run_task(self, number: int, fate: str) -> None:
        store = self.query.stores[number % len(self.query.stores)]
        handle = self.query.attempt(self.batch_id, store)
        self.attempts[store].append(handle)
        if fate == "delayed":
            self.in_flight.append(handle)
        for _ in range({"acked": 1, "twice": 2}.get(fate, 0)):
            self.run.ack(handle)

    @rule(number=st.integers(0, 5), lost=st.booleans())
    @precondition(lambda self: self.in_flight)
    def deliver(self, number: int, lost: bool) -> None:
        handle = self.in_flight.pop(number % len(self.in_flight))
        if not lost:
            self.run.ack(handle)

    @rule(winner=st.integers(0, 3), event=st.booleans())
    def commit(self, winner: int, event: bool) -> None:
        for store, attempts in self.attempts.items():
            if not attempts:
                attempts.append(self.query.attempt(self.batch_id, store))
                self.run.ack(attempts[0])
        winners = [attempts[winner % len(attempts)] for attempts in self.attempts.values()]
        self.query.commit(self.batch_id, winners)
        self.states[self.batch_id] = {handle.path for handle in winners}
        if (self.batch_id + 1) % self.interval == 0:
            self.expected.append(self.batch_id)
        if event:
            self.run.coordinator.batch_committed(self.batch_id)
        self.begin_batch()

    @rule(count=st.integers(1, 3))
    def run_batches(self, count: int) -> None:
        for _ in range(count):
            self.commit(winner=0, event=True)
            self.work(completing=True)

    @rule(completing=st.booleans())
    def work(self, completing: bool) -> None:
        worker = self.run.worker if completing else self.run.janitor
        if worker.jobs:
            worker.jobs.popleft()()
            self.check_nothing_needed_is_missing()

    @rule()
    def work_all(self) -> None:
        self.run.work()
        self.check_nothing_needed_is_missing()

    @rule(milliseconds=st.sampled_from([10, 400, 1500]))
    def tick(self, milliseconds: int) -> None:
        self.now_ms = self.run.now_ms = self.now_ms + milliseconds
        self.run.coordinator.tick()

    @rule(what=st.sampled_from(["coordinator", "driver", "batch"]))
    def fail(self, what: str) -> None:
        """The first two are killed. Of a batch that fails the run ends in order, and then its last
        committed batch becomes a checkpoint in any case."""
        if what == "coordinator":
            self.begin_coordinator()
            return
        if what == "batch":
            self.end_run("a task failed")
        self.begin_run()

    def end_run(self, error: str | None) -> None:
        self.run.coordinator.query_ended(error)
        self.run.work()
        latest = self.query.latest
        if latest >= 0 and latest not in self.expected:
            self.expected.append(latest)

    def check_nothing_needed_is_missing(self) -> None:
        files = self.query.state_files()
        assert self.query.live_files() <= files
        for checkpoint in self.stored():
            for handle in checkpoint.handles:
                assert needed_by(handle) <= files

    def stored(self) -> list[CheckpointMetadata]:
        found: list[CheckpointMetadata] = []
        FileCompletedCheckpointStore.at(self.query.storage).recover(found.append)
        return found

    def teardown(self) -> None:
        if not hasattr(self, "query"):
            return
        self.end_run(None)
        self.check_nothing_needed_is_missing()
        completed = [(c.checkpoint_id, c.batch_id) for c in self.recorder.completed]
        ids, batches = zip(*completed, strict=True) if completed else ((), ())
        assert sorted(set(ids)) == list(ids), "ids only grow"
        assert sorted(set(batches)) == list(batches), "no batch is complete twice"
        stored = self.stored()
        assert [c.batch_id for c in stored] == self.expected[-self.retained :]
        for checkpoint in stored:
            assert {h.path for h in checkpoint.handles} == self.states[checkpoint.batch_id]
        self.check_nothing_is_left(stored)

    def check_nothing_is_left(self, stored: list[CheckpointMetadata]) -> None:
        """One more start sweeps: what no one needs and no one can begin to need is gone."""
        last = Run(self.query, "last", retained=self.retained)
        last.work()
        floor = min(self.query.committed, default=-1) + 1
        window = max(2, self.min_batches // 2)
        needed = {path for c in stored for h in c.handles for path in needed_by(h)}
        needed |= self.query.live_files()
        for path in self.query.state_files() - needed:
            version = int(path.rpartition("/")[2].split("_")[0])
            assert version + (window if "merge" in path else 0) >= floor, path


def test_any_interleaving_leads_to_the_same_checkpoints() -> None:
    run_state_machine_as_test(
        Interleavings,
        settings=settings(
            max_examples=60,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
