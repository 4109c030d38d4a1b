"""Checkpoints registered in a real ZooKeeper: what it holds, and what happens when it is lost."""

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from sparkckpt.coordinator import (
    CheckpointFailureReason,
    CompletedCheckpointStore,
    CoordinatorSettings,
    FileCompletedCheckpointStore,
    zkclient,
)
from sparkckpt.coordinator.lease import Lease
from sparkckpt.coordinator.stores import completed_store
from sparkckpt.coordinator.zookeeper import ZooKeeperCompletedCheckpointStore
from sparkckpt.errors import (
    NewerOwnerError,
    PossiblyInconsistentCheckpointError,
    SparkckptError,
    StoreUnavailableError,
    UnsupportedFormatVersionError,
    UnwritableFileError,
    ZooKeeperNotConfiguredError,
    ZooKeeperUnavailableError,
)
from sparkckpt.format.metadata import CheckpointMetadata, metadata_path
from sparkckpt.storage import Storage
from tests.unit.coordinator_samples import QUERY_ID, FakeQuery, Memory, Run
from tests.unit.test_coordinator_process import launched
from tests.zookeeper import (
    MAX_SESSION_SECONDS,
    LossyNetwork,
    ZooKeeperMissingError,
    ZooKeeperServer,
    find_jars,
    find_java,
    free_port,
)

Reason = CheckpointFailureReason
PATIENCE = 60.0
"""What is to succeed has time for it: a machine with other things to do may take seconds."""
IMPATIENCE = 1.0
"""What is to fail does so at any time."""


@pytest.fixture(scope="module")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    try:
        find_java()
        find_jars()
    except ZooKeeperMissingError as why:
        pytest.skip(f"ZooKeeper cannot be had here: {why}")
    server = ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"))
    yield server
    server.kill()


@pytest.fixture
def server(running_server: ZooKeeperServer) -> ZooKeeperServer:
    running_server.start()
    return running_server


@pytest.fixture
def network(server: ZooKeeperServer) -> Iterator[LossyNetwork]:
    lossy = LossyNetwork(server.port)
    yield lossy
    lossy.close()


@dataclass
class Checkpoints:
    """A checkpoint directory, and coordinators' stores of it."""

    root: str
    query: FakeQuery = field(default_factory=FakeQuery)
    opened: list[CompletedCheckpointStore] = field(default_factory=list)

    @property
    def storage(self) -> Storage:
        return self.query.storage

    def store(
        self, quorum: str, retained: int = 10, patience: float = PATIENCE
    ) -> ZooKeeperCompletedCheckpointStore:
        store = ZooKeeperCompletedCheckpointStore.at(
            self.storage, QUERY_ID, quorum, self.root, retained, patience
        )
        self.opened.append(store)
        return store

    def claimed(
        self, quorum: str, retained: int = 10, patience: float = PATIENCE
    ) -> ZooKeeperCompletedCheckpointStore:
        """What a start of the query does."""
        store = self.store(quorum, retained, patience)
        store.claim(Lease.claim(self.storage, "run", 0))
        store.recover()
        return store

    def metadata(self, checkpoint_id: int) -> CheckpointMetadata:
        if not self.query.committed:
            self.query.commit(0, self.query.run_batch(0))
        other = FakeQuery()
        run = Run(other)
        run.batch(0)
        run.work()
        found: list[CheckpointMetadata] = []
        FileCompletedCheckpointStore.at(other.storage).recover(found.append)
        return replace(found[0], checkpoint_id=checkpoint_id)

    def has_metadata(self, checkpoint_id: int) -> bool:
        return self.storage.exists(metadata_path(checkpoint_id))


@pytest.fixture
def checkpoints(tmp_path: Path) -> Iterator[Checkpoints]:
    made = Checkpoints(f"/tests{tmp_path}")
    yield made
    for store in made.opened:
        store.close()


@pytest.fixture
def nodes(server: ZooKeeperServer) -> Iterator[Any]:
    """ZooKeeper as a client of its own sees it."""
    from kazoo.client import KazooClient

    client = KazooClient(server.quorum, timeout=MAX_SESSION_SECONDS)
    client.start(60)
    yield client
    client.stop()
    client.close()


def ids(store: CompletedCheckpointStore) -> list[int]:
    return [checkpoint.checkpoint_id for checkpoint in store.all()]


def inconsistent(store: CompletedCheckpointStore) -> dict[int, bool]:
    return {broken.checkpoint_id: broken.surely_failed for broken in store.inconsistent()}


def pointers(nodes: Any, checkpoints: Checkpoints) -> dict[int, Any]:
    """What the nodes of the checkpoints hold."""
    (node,) = nodes.get_children(checkpoints.root)
    path = f"{checkpoints.root}/{node}/checkpoints"
    return {
        int(name): json.loads(nodes.get(f"{path}/{name}")[0]) for name in nodes.get_children(path)
    }


@contextmanager
def impatient(store: CompletedCheckpointStore) -> Iterator[None]:
    """Meanwhile what fails need not be waited for."""
    assert isinstance(store, ZooKeeperCompletedCheckpointStore)
    store._connection._patience_s = IMPATIENCE
    yield
    store._connection._patience_s = PATIENCE


def eventually(action: Callable[[], Any], seconds: float = 60) -> Any:
    """Repeats what fails for want of a connection."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return action()
        except StoreUnavailableError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def await_pointer(nodes: Any, checkpoints: Checkpoints, checkpoint_id: int) -> None:
    """The server may take its time for what it has been sent."""
    deadline = time.monotonic() + 60
    while checkpoint_id not in pointers(nodes, checkpoints):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def await_connection(store: CompletedCheckpointStore, connected: bool) -> None:
    assert isinstance(store, ZooKeeperCompletedCheckpointStore)
    deadline = time.monotonic() + 60
    while store._connection.is_connected is not connected:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_pointers_lie_in_zookeeper_and_metadata_in_files(
    server: ZooKeeperServer, checkpoints: Checkpoints, nodes: Any
) -> None:
    store = checkpoints.claimed(server.quorum, retained=2)
    for checkpoint_id in (3, 4, 7):
        added = store.add(checkpoints.metadata(checkpoint_id))
        assert store.latest() == added
    where = checkpoints.storage.where(metadata_path(4))
    assert pointers(nodes, checkpoints)[4] == {"path": where}
    assert [checkpoint.checkpoint_id for checkpoint in store.subsumed()] == [3]
    store.discard(3)
    assert sorted(pointers(nodes, checkpoints)) == [4, 7]
    assert not checkpoints.has_metadata(3)
    successor = checkpoints.store(server.quorum)
    seen: list[int] = []
    assert successor.recover(lambda metadata: seen.append(metadata.checkpoint_id)) == {4, 7}
    assert seen == ids(successor) == ids(store) == [4, 7]
    assert successor.inconsistent() == []


def test_directories_do_not_share_their_checkpoints(
    server: ZooKeeperServer, checkpoints: Checkpoints
) -> None:
    copy = Checkpoints(checkpoints.root, FakeQuery(Storage(Memory(), "/copy")))
    first, second = checkpoints.claimed(server.quorum), copy.claimed(server.quorum)
    first.add(checkpoints.metadata(1))
    second.add(copy.metadata(1))
    second.discard(1)
    first.recover()
    assert ids(first) == [1]
    second.close()


def test_the_pointer_goes_before_the_metadata(
    server: ZooKeeperServer, checkpoints: Checkpoints, nodes: Any
) -> None:
    store = checkpoints.claimed(server.quorum)
    for checkpoint_id in (1, 2):
        store.add(checkpoints.metadata(checkpoint_id))
    memory: Memory = checkpoints.storage.filesystem

    def refuse(operation: str, path: str) -> None:
        if operation == "delete":
            raise OSError("read only")

    memory.before, usual = refuse, memory.before
    with pytest.raises(UnwritableFileError):
        store.discard(1)
    assert sorted(pointers(nodes, checkpoints)) == [2]
    memory.before = usual
    successor = checkpoints.claimed(server.quorum)
    assert ids(successor) == [2]
    assert inconsistent(successor) == {1: True}
    store.claim(Lease.claim(checkpoints.storage, "run", 0))
    store.discard(1)
    assert ids(store) == [2]
    assert not checkpoints.has_metadata(1)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_connection_that_breaks_and_comes_back_goes_unnoticed(
    network: LossyNetwork, checkpoints: Checkpoints, nodes: Any, when: str
) -> None:
    store = checkpoints.claimed(network.quorum)
    network.cut_at_transaction(when, comes_back=True)
    store.add(checkpoints.metadata(1))
    assert ids(store) == list(pointers(nodes, checkpoints)) == [1]
    network.cut_at_transaction(when, comes_back=True)
    store.discard(1)
    assert ids(store) == list(pointers(nodes, checkpoints)) == []


@pytest.mark.parametrize(("when", "was_made"), [("before", False), ("after", True)])
def test_what_may_have_been_stored_is_kept_and_named(
    network: LossyNetwork, checkpoints: Checkpoints, nodes: Any, when: str, was_made: bool
) -> None:
    store = checkpoints.claimed(network.quorum)
    network.cut_at_transaction(when, comes_back=False)
    with (
        impatient(store),
        pytest.raises(PossiblyInconsistentCheckpointError, match=network.quorum),
    ):
        store.add(checkpoints.metadata(1))
    network.await_cut()
    assert ids(store) == []
    assert inconsistent(store) == {1: False}
    assert checkpoints.has_metadata(1)
    if was_made:
        await_pointer(nodes, checkpoints, 1)
    assert (1 in pointers(nodes, checkpoints)) is was_made
    network.restore()
    eventually(lambda: store.add(checkpoints.metadata(2)))
    assert ids(store) == sorted(pointers(nodes, checkpoints)) == [1, 2]
    assert store.inconsistent() == []


@pytest.mark.parametrize("when", ["before", "after"])
def test_the_next_start_finds_out_what_was_stored(
    network: LossyNetwork, server: ZooKeeperServer, checkpoints: Checkpoints, when: str
) -> None:
    store = checkpoints.claimed(network.quorum)
    network.cut_at_transaction(when, comes_back=False)
    with impatient(store), pytest.raises(PossiblyInconsistentCheckpointError):
        store.add(checkpoints.metadata(1))
    successor = checkpoints.claimed(server.quorum)
    assert ids(successor) == [1]
    assert successor.inconsistent() == []


def test_without_a_connection_nothing_is_left_behind(
    network: LossyNetwork, checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = checkpoints.claimed(network.quorum)
    store.add(checkpoints.metadata(1))
    network.cut()
    await_connection(store, False)
    connected, waits = store._connection._connected, []
    wait = connected.wait

    def watched(seconds: float) -> bool:
        waits.append(seconds)
        return wait(seconds)

    monkeypatch.setattr(connected, "wait", watched)
    with impatient(store):
        with pytest.raises(ZooKeeperUnavailableError, match=network.quorum):
            store.add(checkpoints.metadata(2))
        assert not checkpoints.has_metadata(2)
        waits.clear()
        with pytest.raises(ZooKeeperUnavailableError):
            store.add(checkpoints.metadata(3))
        with pytest.raises(ZooKeeperUnavailableError):
            store.discard(1)
    assert waits == [0, 0], "an outage is waited for once"
    assert ids(store) == [1]
    network.restore()
    eventually(lambda: store.add(checkpoints.metadata(4)))
    assert ids(store) == [1, 4]


def test_a_former_owner_can_neither_add_nor_discard(
    server: ZooKeeperServer, checkpoints: Checkpoints, nodes: Any
) -> None:
    zombie_lease = Lease.claim(checkpoints.storage, "zombie", 0)
    zombie = checkpoints.store(server.quorum)
    zombie.claim(zombie_lease)
    zombie.add(checkpoints.metadata(1))
    owner = checkpoints.claimed(server.quorum)
    with pytest.raises(NewerOwnerError, match="A newer coordinator owns"):
        zombie.add(checkpoints.metadata(2))
    with pytest.raises(NewerOwnerError):
        zombie.discard(1)
    with pytest.raises(NewerOwnerError):
        zombie.claim(zombie_lease)
    assert checkpoints.has_metadata(1)
    owner.add(checkpoints.metadata(3))
    assert sorted(pointers(nodes, checkpoints)) == ids(owner) == [1, 3]


def test_of_two_that_claim_at_once_the_newer_lease_wins(
    server: ZooKeeperServer, checkpoints: Checkpoints
) -> None:
    """The older one is held up after it has looked at its lease."""
    older_lease = Lease.claim(checkpoints.storage, "older", 0)
    older, newer = checkpoints.store(server.quorum), checkpoints.store(server.quorum)
    held = older_lease.is_held

    def look_and_be_overtaken() -> bool:
        answer = held()
        if answer:
            newer.claim(Lease.claim(checkpoints.storage, "newer", 0))
        return answer

    older_lease.is_held = look_and_be_overtaken  # type: ignore[method-assign]
    with pytest.raises(NewerOwnerError):
        older.claim(older_lease)
    newer.add(checkpoints.metadata(1))
    assert ids(newer) == [1]


def test_pointers_to_nothing_are_reported(
    server: ZooKeeperServer, checkpoints: Checkpoints, nodes: Any
) -> None:
    store = checkpoints.claimed(server.quorum)
    for checkpoint_id in (1, 2, 3, 4, 5):
        store.add(checkpoints.metadata(checkpoint_id))
    write = checkpoints.storage.write_atomic
    checkpoints.storage.delete([metadata_path(1), metadata_path(5)])
    write(metadata_path(2), b"not metadata", overwrite=True)
    successor = checkpoints.store(server.quorum)
    successor.claim(Lease.claim(checkpoints.storage, "run", 0))
    assert successor.recover() == {1, 2, 3, 4, 5}
    assert ids(successor) == [3, 4]
    assert inconsistent(successor) == {1: True, 2: True, 5: False}
    successor.discard(1)
    assert sorted(pointers(nodes, checkpoints)) == [2, 3, 4, 5]


def test_metadata_that_older_pointers_do_not_know_is_registered(
    server: ZooKeeperServer, checkpoints: Checkpoints, nodes: Any
) -> None:
    """From files to ZooKeeper, back to files, and to ZooKeeper again."""
    files = FileCompletedCheckpointStore.at(checkpoints.storage)
    for checkpoint_id in (1, 2):
        files.add(checkpoints.metadata(checkpoint_id))
    store = checkpoints.claimed(server.quorum)
    assert ids(store) == sorted(pointers(nodes, checkpoints)) == [1, 2]
    files.add(checkpoints.metadata(3))
    checkpoints.storage.write_atomic(metadata_path(4), b"half of the metada")
    files.discard(1)
    store = checkpoints.claimed(server.quorum)
    assert ids(store) == [2, 3]
    assert inconsistent(store) == {1: True, 4: False}


def test_nodes_that_vanish_during_a_claim_are_made_with_the_next(
    server: ZooKeeperServer, checkpoints: Checkpoints, nodes: Any
) -> None:
    lease = Lease.claim(checkpoints.storage, "run", 0)
    held = lease.is_held

    def look_after_they_are_gone() -> bool:
        nodes.delete(checkpoints.root, recursive=True)
        return held()

    store = checkpoints.store(server.quorum)
    lease.is_held = look_after_they_are_gone  # type: ignore[method-assign]
    with pytest.raises(ZooKeeperUnavailableError, match="has been removed"):
        store.claim(lease)
    lease.is_held = held  # type: ignore[method-assign]
    store.add(checkpoints.metadata(1))
    nodes.delete(checkpoints.root, recursive=True)
    with pytest.raises(ZooKeeperUnavailableError, match="has been removed"):
        store.add(checkpoints.metadata(2))
    assert not checkpoints.has_metadata(2)
    store.add(checkpoints.metadata(3))
    assert sorted(pointers(nodes, checkpoints)) == ids(store) == [1, 3]


def test_a_newer_format_is_left_alone(
    server: ZooKeeperServer, checkpoints: Checkpoints, nodes: Any
) -> None:
    checkpoints.claimed(server.quorum)
    (node,) = nodes.get_children(checkpoints.root)
    nodes.set(f"{checkpoints.root}/{node}", b'{"formatVersion": 2}')
    with pytest.raises(UnsupportedFormatVersionError, match=node):
        checkpoints.claimed(server.quorum)


def test_a_server_that_is_killed_keeps_what_it_has(
    server: ZooKeeperServer, checkpoints: Checkpoints
) -> None:
    store = checkpoints.claimed(server.quorum)
    store.add(checkpoints.metadata(1))
    server.kill()
    await_connection(store, False)
    with impatient(store), pytest.raises(ZooKeeperUnavailableError, match=server.quorum):
        store.add(checkpoints.metadata(2))
    server.start()
    eventually(lambda: store.add(checkpoints.metadata(3)))
    assert ids(store) == ids(checkpoints.claimed(server.quorum)) == [1, 3]


def test_a_server_that_has_lost_everything_is_told_again(
    server: ZooKeeperServer, checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zkclient, "RENEWAL_SECONDS", 1.0)
    store = checkpoints.claimed(server.quorum)
    store.add(checkpoints.metadata(1))
    server.wipe()
    await_connection(store, False)
    server.start()
    with impatient(store):
        eventually(store._connection.require)
    eventually(lambda: store.add(checkpoints.metadata(2)))
    assert ids(store) == ids(checkpoints.claimed(server.quorum)) == [1, 2]


def test_a_server_that_hangs_is_not_waited_for(
    server: ZooKeeperServer, checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even until the client notices: that would be after two thirds of the session's time."""
    monkeypatch.setattr(zkclient, "SESSION_SECONDS", MAX_SESSION_SECONDS)
    store = checkpoints.claimed(server.quorum)
    metadata = [checkpoints.metadata(checkpoint_id) for checkpoint_id in (1, 2, 3)]
    server.pause()
    try:
        began = time.monotonic()
        with impatient(store):
            with pytest.raises(PossiblyInconsistentCheckpointError):
                store.add(metadata[0])
            with pytest.raises(ZooKeeperUnavailableError):
                store.add(metadata[1])
        assert time.monotonic() - began < MAX_SESSION_SECONDS / 2
    finally:
        server.resume()
    assert not checkpoints.has_metadata(2)
    eventually(lambda: store.add(metadata[2]))
    assert ids(store) == [1, 3]


class Query:
    """Runs of the fake query whose coordinators register in ZooKeeper."""

    def __init__(self, checkpoints: Checkpoints, quorum: str) -> None:
        self._checkpoints = checkpoints
        self._quorum = quorum

    def run(self, run_id: str = "run", patience: float = PATIENCE, **settings: Any) -> Run:
        store = self._checkpoints.store(self._quorum, settings.get("retained", 10), patience)
        run = Run(self._checkpoints.query, run_id, store=store, **settings)
        run.work()
        return run

    def wait_until(self, run: Run, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not is_so():
            assert time.monotonic() < deadline, run.recorder
            run.pass_time(1000)
            time.sleep(0.05)


def completed(run: Run) -> list[int]:
    return [checkpoint.batch_id for checkpoint in run.recorder.completed]


def test_a_query_registers_and_subsumes_across_runs(
    server: ZooKeeperServer, checkpoints: Checkpoints, nodes: Any
) -> None:
    query = Query(checkpoints, server.quorum)
    first = query.run("first", retained=2)
    for batch in range(3):
        first.batch(batch)
        first.work()
    assert sorted(pointers(nodes, checkpoints)) == [2, 3]
    second = query.run("second", retained=2)
    second.batch(3)
    second.work()
    assert [c.checkpoint_id for c in second.recorder.completed] == [4]
    assert sorted(pointers(nodes, checkpoints)) == [3, 4]


def test_zookeeper_that_is_not_there_yet_fails_checkpoints_and_not_the_query(
    running_server: ZooKeeperServer, checkpoints: Checkpoints, caplog: pytest.LogCaptureFixture
) -> None:
    running_server.kill()
    query = Query(checkpoints, running_server.quorum)
    run = query.run(patience=IMPATIENCE)
    with impatient(checkpoints.opened[0]):
        for batch in (0, 1):
            run.batch(batch)
            run.pass_time(1000)
    assert run.recorder.aborted == [(0, Reason.IO_EXCEPTION), (1, Reason.IO_EXCEPTION)]
    assert f"ZooKeeper at {running_server.quorum} cannot be used" in run.recorder.messages[0]
    warnings = [r for r in caplog.records if "not taken over yet" in r.getMessage()]
    assert len(warnings) == 1
    running_server.start()
    await_connection(checkpoints.opened[0], True)
    query.wait_until(run, lambda: completed(run) == [0, 1])
    run.batch(2)
    run.work()
    assert completed(run) == [0, 1, 2]


def test_zookeeper_that_goes_away_fails_checkpoints_until_it_is_back(
    network: LossyNetwork, checkpoints: Checkpoints
) -> None:
    run = Query(checkpoints, network.quorum).run()
    run.batch(0)
    run.work()
    network.cut()
    await_connection(checkpoints.opened[0], False)
    with impatient(checkpoints.opened[0]):
        for batch in (1, 2):
            run.batch(batch)
            run.work()
    assert run.recorder.aborted == [(1, Reason.IO_EXCEPTION), (2, Reason.IO_EXCEPTION)]
    assert network.quorum in run.recorder.messages[-1]
    network.restore()
    await_connection(checkpoints.opened[0], True)
    run.batch(3)
    run.work()
    assert completed(run) == [0, 3]


def test_an_unknown_outcome_is_told_and_settled_with_the_next_checkpoint(
    network: LossyNetwork, checkpoints: Checkpoints, nodes: Any
) -> None:
    query = Query(checkpoints, network.quorum)
    run = query.run(retained=1)
    network.cut_at_transaction("after", comes_back=False)
    with impatient(checkpoints.opened[0]):
        run.batch(0)
        run.work()
    network.await_cut()
    assert run.recorder.aborted == [(0, Reason.FINALIZE_CHECKPOINT_FAILURE)]
    assert "may or may not have been stored" in run.recorder.messages[0]
    network.restore()
    await_connection(checkpoints.opened[0], True)
    run.batch(1)
    run.work()
    assert completed(run) == [1]
    assert list(pointers(nodes, checkpoints)) == [2]
    assert not checkpoints.has_metadata(1)


def test_a_zombie_is_suspended_by_zookeeper_alone(
    server: ZooKeeperServer, checkpoints: Checkpoints
) -> None:
    """It has looked at its lease just before its successor started."""
    query = Query(checkpoints, server.quorum)
    zombie = query.run("zombie")
    zombie.batch(0)
    zombie.work()
    owner = query.run("owner")
    lease = zombie.coordinator._ownership.claim()
    lease.is_held = lambda: True  # type: ignore[method-assign]
    handles = zombie.batch(1)
    zombie.work()
    assert completed(zombie) == [0]
    assert zombie.recorder.aborted == [(1, Reason.CHECKPOINT_COORDINATOR_SUSPEND)]
    for handle in handles:
        owner.ack(handle)
    owner.coordinator.batch_committed(1)
    owner.work()
    owner.batch(2)
    owner.work()
    assert completed(owner)[-1] == 2


def test_the_process_uses_the_store_that_the_query_asks_for(
    server: ZooKeeperServer, tmp_path: Path, nodes: Any
) -> None:
    conf = {"store": "zookeeper", "zookeeper.quorum": server.quorum, "zookeeper.root": "/process"}
    with launched(tmp_path) as coordinator:
        coordinator.start_query("r", **conf)
        coordinator.run_batch("r", 0)
        frame = coordinator.driver.next_frame("checkpoint_completed")
    (node,) = nodes.get_children("/process")
    checkpoint_id = frame.number("checkpointId")
    assert nodes.get_children(f"/process/{node}/checkpoints") == [str(checkpoint_id)]
    data, _ = nodes.get(f"/process/{node}/checkpoints/{checkpoint_id}")
    assert json.loads(data) == {"path": frame.text("path")}


def test_the_process_tells_the_driver_what_is_missing(tmp_path: Path) -> None:
    with launched(tmp_path) as coordinator:
        coordinator.start_query("r", store="zookeeper")
        coordinator.run_batch("r", 0)
        frame = coordinator.driver.next_frame("checkpoint_aborted")
    assert frame.text("reason") == "IO_EXCEPTION"
    assert "zookeeper.quorum" in frame.text("message")


def test_the_options_choose_the_store(checkpoints: Checkpoints) -> None:
    def chosen(**options: str) -> CompletedCheckpointStore:
        settings = CoordinatorSettings.of(options, 100)
        return completed_store(checkpoints.storage, QUERY_ID, settings)

    assert isinstance(chosen(), FileCompletedCheckpointStore)
    assert isinstance(chosen(store="FILES"), FileCompletedCheckpointStore)
    assert isinstance(chosen(store="zookeeper"), ZooKeeperCompletedCheckpointStore)


@pytest.mark.parametrize("quorum", ["", "host:port"])
def test_a_quorum_that_cannot_be_used_is_named(checkpoints: Checkpoints, quorum: str) -> None:
    with pytest.raises(ZooKeeperNotConfiguredError, match=r"needs spark\..*zookeeper\.quorum"):
        checkpoints.claimed(quorum)


def test_a_missing_client_is_named_and_the_query_goes_on(
    checkpoints: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "kazoo.client", None)
    run = Query(checkpoints, f"127.0.0.1:{free_port()}").run()
    run.batch(0)
    run.pass_time(1000)
    assert run.recorder.aborted == [(0, Reason.IO_EXCEPTION)]
    assert "pip install 'sparkckpt[zookeeper]'" in run.recorder.messages[0]


def test_a_name_that_does_not_resolve_is_no_failure_of_ours(checkpoints: Checkpoints) -> None:
    with pytest.raises(SparkckptError, match=r"ZooKeeper at no-such-host\.invalid:2181 cannot"):
        checkpoints.claimed("no-such-host.invalid:2181", patience=IMPATIENCE)
