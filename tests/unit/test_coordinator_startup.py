"""Restores and rescales for queries that start: what their options ask for, and what is done."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparkckpt.coordinator.bridge import BridgeFileSystem
from sparkckpt.coordinator.lease import Lease, running_owner
from sparkckpt.coordinator.preparation import Preparation
from sparkckpt.coordinator.startup import prepare, restore_options, restore_values
from sparkckpt.errors import InvalidConfError, QueryRunningError, TargetNotEmptyError
from sparkckpt.restoration.exclusive import wall_clock
from sparkckpt.restoration.inplace import rescale_in
from sparkckpt.restoration.request import RestoreOptions
from sparkckpt.storage import Storage
from tests.unit.fake_driver import bridged
from tests.unit.restore_samples import copy_of, loaded_rows, sample


def options_of(texts: dict[str, str], parallelism: int | None = None) -> RestoreOptions:
    return restore_options(restore_values(texts), parallelism)


def test_options_are_read_as_their_texts_say() -> None:
    texts = {
        "restore.path": "/source",
        "restore.mode": "Copy",
        "restore.checkpointId": "7",
        "restore.parallelism": "6",
        "restore.maxParallelism": "128",
        "restore.allowNonRestoredState": "true",
        "restore.mapOperators": "2=1, 3 = 2",
        "restore.dropOperators": "1, 4",
        "restore.addOperators": "3=stateStoreSave,4=transformWithStateExec:NoTime:Update",
        "checkpoint.interval": "5",
    }
    assert restore_values(texts)["restore.checkpointId"] == 7
    assert options_of(texts, 9) == RestoreOptions(
        mode="copy",
        parallelism=6,
        max_parallelism=128,
        allow_non_restored_state=True,
        map_operators={2: 1, 3: 2},
        drop_operators=(1, 4),
        add_operators={3: "stateStoreSave", 4: "transformWithStateExec:NoTime:Update"},
    )


def test_without_options_a_restore_changes_nothing() -> None:
    assert restore_values({})["restore.checkpointId"] == ""
    assert options_of({}) == RestoreOptions()
    assert options_of({"restore.parallelism": "none"}, 9) == RestoreOptions(parallelism=9)


def test_an_option_that_makes_no_sense_is_named() -> None:
    with pytest.raises(InvalidConfError, match=r"restore\.mapOperators has the value '2'"):
        options_of({"restore.mapOperators": "2"})


@pytest.fixture
def bridge(tmp_path: Path) -> Iterator[BridgeFileSystem]:
    """Storage as the coordinator has it: a driver's, at the other end of a pipe."""
    with bridged(f"file:{tmp_path}") as both_ends:
        yield both_ends.filesystem


def started_at(location: Path) -> None:
    """What Spark has written of a query that starts there."""
    (location / "offsets").mkdir(parents=True)
    (location / "commits").mkdir()
    (location / "metadata").write_text('{"id":"a-new-query"}')


def asked(location: Path, source: Path | None, parallelism: int, **options: str) -> Preparation:
    texts = {f"restore.{name}": text for name, text in options.items()}
    kind = "rescale" if source is None else "restore"
    from_where = None if source is None else f"file:{source}"
    return Preparation(kind, "a-run", f"file:{location}", from_where, parallelism, texts)


@pytest.mark.parametrize("mode", ["no-claim", "claim", "copy"])
def test_a_query_that_starts_is_restored_and_keeps_its_id(
    bridge: BridgeFileSystem, tmp_path: Path, mode: str
) -> None:
    source, target = sample(tmp_path), tmp_path / "target"
    _, rows = loaded_rows(Storage.at(source))
    started_at(target)
    request = asked(target, source, 3, mode=mode)
    message = prepare(bridge, request)
    assert "the state after batch 6, with 3 partitions (it had 2)" in message
    assert loaded_rows(Storage.at(target)) == (3, rows)
    assert json.loads((target / "metadata").read_text()) == {"id": "a-new-query"}
    assert not (target / "_sparkckpt/restoring.json").exists()
    before = Storage.at(target).find("")
    assert "was restored from" in prepare(bridge, request)
    assert Storage.at(target).find("") == before, "it is not restored twice"


def test_what_another_restore_has_left_is_not_taken_for_ones_own(
    bridge: BridgeFileSystem, tmp_path: Path
) -> None:
    source, target = sample(tmp_path), tmp_path / "target"
    other = copy_of(source, "other")
    started_at(target)
    prepare(bridge, asked(target, other, 3))
    with pytest.raises(TargetNotEmptyError):
        prepare(bridge, asked(target, source, 3))


def test_a_query_that_starts_takes_its_directory_over_to_rescale_it(
    bridge: BridgeFileSystem, tmp_path: Path
) -> None:
    location = sample(tmp_path)
    storage = Storage.at(location)
    _, rows = loaded_rows(storage)
    Lease.claim(storage, "a run whose driver was killed", wall_clock())
    with pytest.raises(QueryRunningError):
        rescale_in(storage, 3)
    assert "from 2 to 3 partitions" in prepare(bridge, asked(location, None, 3))
    assert loaded_rows(storage) == (3, rows)
    assert "has 3 partitions already" in prepare(bridge, asked(location, None, 3))
    assert running_owner(storage, wall_clock()) is None
