"""Rounds of cleaning up: which manifests go, and who may still delete them."""

from collections.abc import Callable

import pytest

from sparkckpt.coordinator.coordinator import ACK_GRACE_MS, SWEEP_INTERVAL_MS
from sparkckpt.coordinator.lease import Lease
from sparkckpt.format.manifest import MANIFESTS, manifest_path
from tests.unit.coordinator_samples import FakeQuery, Memory, Run
from tests.unit.manifest_samples import adopt_manifest, operators_of, write_manifest


@pytest.fixture
def query() -> FakeQuery:
    query = FakeQuery()
    query.commit(0, query.run_batch(0))
    return query


def manifest_of_nobody(query: FakeQuery) -> str:
    """The path of a manifest that the commit log does not name."""
    return manifest_path(write_manifest(query.storage, 0, operators_of(query, 0)))


def started(query: FakeQuery) -> Run:
    """A run whose first sweep is over, and whose first checkpoint is complete."""
    run = Run(query)
    run.work()
    run.pass_time(ACK_GRACE_MS)
    return run


def before_manifests_are_listed(query: FakeQuery, do: Callable[[], object]) -> None:
    """Does something once, in the middle of the next round."""
    memory = query.storage.filesystem
    assert isinstance(memory, Memory)

    def look(operation: str, path: str) -> None:
        if operation == "find" and path.endswith(MANIFESTS):
            memory.before = lambda operation, path: None
            do()

    memory.before = look


def test_an_orphaned_manifest_goes_with_the_second_sweep_that_finds_it(query: FakeQuery) -> None:
    run = started(query)
    manifest = manifest_of_nobody(query)
    run.pass_time(SWEEP_INTERVAL_MS)
    assert query.storage.exists(manifest)
    run.pass_time(SWEEP_INTERVAL_MS)
    assert not query.storage.exists(manifest)


def test_one_that_the_first_sweep_has_found_goes_when_the_run_ends(query: FakeQuery) -> None:
    manifest = manifest_of_nobody(query)
    run = Run(query)
    run.work()
    assert query.storage.exists(manifest)
    run.coordinator.query_ended()
    run.work()
    assert not query.storage.exists(manifest)


def test_a_sweep_spares_the_manifest_of_who_takes_over_meanwhile(query: FakeQuery) -> None:
    """A rescaling takes the lease and writes its manifest; next the commit log is to name it."""
    run = started(query)
    written: list[str] = []

    def begin_rescaling() -> None:
        Lease.claim(query.storage, "command rescale", run.now_ms)
        written.append(manifest_of_nobody(query))

    before_manifests_are_listed(query, begin_rescaling)
    for _ in range(3):
        run.pass_time(SWEEP_INTERVAL_MS)
    assert query.storage.exists(written[0])


def test_who_has_lost_the_lease_in_the_middle_of_a_round_deletes_no_manifest(
    query: FakeQuery,
) -> None:
    run = started(query)
    manifest = manifest_of_nobody(query)
    run.pass_time(SWEEP_INTERVAL_MS)
    before_manifests_are_listed(
        query, lambda: Lease.claim(query.storage, "another run", run.now_ms)
    )
    run.pass_time(SWEEP_INTERVAL_MS)
    assert query.storage.exists(manifest)


def test_a_manifest_that_has_been_named_meanwhile_stays(query: FakeQuery) -> None:
    run = started(query)
    manifest = manifest_of_nobody(query)
    run.pass_time(SWEEP_INTERVAL_MS)
    adopt_manifest(query, 0, manifest.rpartition("/")[2], parallelism=3)
    run.pass_time(SWEEP_INTERVAL_MS)
    assert query.storage.exists(manifest)


def test_a_manifest_of_a_newer_format_is_kept_and_hinders_nothing(query: FakeQuery) -> None:
    run = started(query)
    newer, orphan = manifest_of_nobody(query), manifest_of_nobody(query)
    data = query.storage.read_all(newer)
    query.write(newer, data[:8] + (99).to_bytes(4, "little") + data[12:])
    for _ in range(2):
        run.pass_time(SWEEP_INTERVAL_MS)
    assert query.storage.exists(newer)
    assert not query.storage.exists(orphan)
