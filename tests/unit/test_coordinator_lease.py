"""The owner of a checkpoint directory."""

import threading
from dataclasses import replace

import pytest

from sparkckpt.coordinator.lease import DURATION_MS, OWNERS, Lease, Owner, running_owner
from sparkckpt.errors import CorruptStateError
from sparkckpt.processes import ProcessId
from sparkckpt.storage import Storage
from tests.unit.coordinator_samples import memory_storage


@pytest.fixture
def storage() -> Storage:
    return memory_storage()


def test_nobody_runs_at_first(storage: Storage) -> None:
    assert running_owner(storage, 0) is None


def test_the_later_of_two_owns(storage: Storage) -> None:
    first = Lease.claim(storage, "first", 0)
    assert first.is_held()
    second = Lease.claim(storage, "second", 1)
    assert second.epoch == first.epoch + 1
    assert (first.is_held(), second.is_held()) == (False, True)
    assert not first.renew(2)
    first.release(2)
    owner = running_owner(storage, 3)
    assert owner is not None
    assert owner.run_id == "second"


@pytest.mark.parametrize(
    "other",
    [
        {"run_id": "another"},
        {"process": replace(ProcessId.here(), host="elsewhere")},
        {"process": replace(ProcessId.here(), pid=1)},
        {"process": replace(ProcessId.here(), started="at another time")},
    ],
    ids=["run", "host", "pid", "start"],
)
def test_of_two_that_have_created_one_epoch_the_last_owns(
    storage: Storage, other: dict[str, object]
) -> None:
    """As storage lets them that cannot refuse to replace a file."""
    lease = Lease.claim(storage, "run", 0)
    theirs = replace(lease.owner, **other).to_bytes()  # type: ignore[arg-type]
    storage.write_atomic(f"{OWNERS}/1", theirs, overwrite=True)
    assert not lease.is_held()
    assert not lease.renew(30_000)
    lease.release(30_000)
    assert storage.read_all(f"{OWNERS}/1") == theirs


def test_a_lease_is_not_looked_for_while_it_is_replaced() -> None:
    """Another thread renews it, on storage that deletes a file before it writes it anew."""
    storage = memory_storage()
    lease = Lease.claim(storage, "run", 0)
    filesystem = storage.filesystem
    found: list[bool] = []
    looking = threading.Thread(target=lambda: found.append(lease.is_held()))

    def delete_first(operation: str, path: str) -> None:
        if operation == "write":
            filesystem.rm_file(path)
            looking.start()
            looking.join(0.2)

    filesystem.before = delete_first
    assert lease.renew(30_000)
    looking.join(60)
    assert found == [True]


def test_the_owner_of_an_older_release_is_understood(storage: Storage) -> None:
    owner = Lease.claim(storage, "run", 0).owner
    data = owner.to_bytes().replace(b'"started"', b'"unknown"')
    found = Owner.from_bytes(data, "owner/1")
    assert found == replace(owner, process=replace(owner.process, started=""))


def test_a_lease_that_was_given_up_is_not_renewed(storage: Storage) -> None:
    lease = Lease.claim(storage, "run", 0)
    lease.release(30_000)
    assert not lease.needs_renewal(60_000)
    assert lease.renew(60_000)
    assert running_owner(storage, 60_000) is None


def test_a_lease_runs_out_unless_it_is_renewed(storage: Storage) -> None:
    lease = Lease.claim(storage, "run", 0)
    assert not lease.needs_renewal(DURATION_MS // 3 - 1)
    assert lease.needs_renewal(DURATION_MS // 3)
    assert lease.renew(30_000)
    assert running_owner(storage, 30_000 + DURATION_MS - 1) is not None
    assert running_owner(storage, 30_000 + DURATION_MS) is None
    assert lease.is_held(), "until somebody else claims it"


def test_epochs_grow_beyond_the_end_of_a_run(storage: Storage) -> None:
    lease = Lease.claim(storage, "run", 0)
    lease.release(1)
    assert running_owner(storage, 1) is None
    assert Lease.claim(storage, "next", 2).epoch == lease.epoch + 1
    assert storage.list_names(OWNERS) == ["2"]


def test_a_lease_that_is_being_replaced_is_waited_for(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hadoop's local file system deletes a file before it renames another to its place."""
    Lease.claim(storage, "first", 0)
    lease = Lease.claim(storage, "run", 0)
    content = storage.read_all(f"{OWNERS}/2")
    storage.write_atomic(f"{OWNERS}/.2.c0ffee.tmp", content)
    storage.delete([f"{OWNERS}/2"])
    restored = threading.Timer(0.3, storage.write_atomic, (f"{OWNERS}/2", content))
    restored.start()
    owner = running_owner(storage, 1)
    assert owner is not None
    assert owner.run_id == "run"
    restored.join()
    storage.delete([f"{OWNERS}/2"])
    monkeypatch.setattr("sparkckpt.coordinator.lease.REPLACEMENT_SECONDS", 0.1)
    assert running_owner(storage, 1) is None, "its owner was killed at that moment"
    assert Lease.claim(storage, "next", 2).epoch == lease.epoch + 1


def test_of_many_that_claim_at_once_one_owns(tmp_path: str) -> None:
    storage = Storage.at(tmp_path)
    leases: list[Lease] = []
    threads = [
        threading.Thread(target=lambda: leases.append(Lease.claim(storage, "run", 0)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    owner = running_owner(storage, 0)
    assert owner is not None
    assert [lease.epoch for lease in leases if lease.is_held()] == [owner.epoch]


def test_a_lease_that_is_not_one_is_named(storage: Storage) -> None:
    storage.write_atomic(f"{OWNERS}/1", b"{}")
    with pytest.raises(CorruptStateError, match="owner/1"):
        running_owner(storage, 0)
