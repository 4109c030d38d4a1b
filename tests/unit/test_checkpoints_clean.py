"""Orphans, as `clean` finds them, are those that the coordinator would delete."""

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import sparkckpt
from sparkckpt.checkpoints import orphans as orphans_module
from sparkckpt.coordinator.lease import Lease, running_owner
from sparkckpt.errors import CleaningBlockedError, NewerOwnerError, QueryRunningError
from sparkckpt.restoration.exclusive import wall_clock
from sparkckpt.storage import Storage
from tests.unit.checkpoint_samples import StatefulQuery, checkpoints_at
from tests.unit.coordinator_samples import Run

OLD = "0/0/1_11111111-1111-1111-1111-111111111111"
YOUNG = "0/0/99_11111111-1111-1111-1111-111111111111"


@pytest.fixture
def query(tmp_path: Path) -> Iterator[StatefulQuery]:
    """With files of attempts that have lost: old ones, and one that may be at work."""
    query = checkpoints_at(tmp_path)
    for path in (f"{OLD}.handle", f"{OLD}.delta.arrow", f"{YOUNG}.handle", "0/0/theirs"):
        query.write(f"state/{path}", b"orphan")
    yield query


def test_a_dry_run_lists_and_keeps(tmp_path: Path, query: StatefulQuery) -> None:
    before = query.state_files()
    expected = [
        {"kind": "state", "path": f"state/{OLD}.delta.arrow", "bytes": 6, "deleted": False},
        {"kind": "state", "path": f"state/{OLD}.handle", "bytes": 6, "deleted": False},
    ]
    assert sparkckpt.clean(tmp_path).to_pylist() == expected
    assert query.state_files() == before


def test_deleting_takes_orphans_and_nothing_else(tmp_path: Path, query: StatefulQuery) -> None:
    before = query.state_files()
    assert sparkckpt.clean(tmp_path, dry_run=False)["deleted"].to_pylist() == [True, True]
    assert before - query.state_files() == {f"{OLD}.handle", f"{OLD}.delta.arrow"}
    assert sparkckpt.verify(tmp_path).num_rows == 0
    assert sparkckpt.clean(tmp_path).num_rows == 0


def test_the_coordinator_deletes_the_same(tmp_path: Path, query: StatefulQuery) -> None:
    before = query.state_files()
    listed = {path.removeprefix("state/") for path in sparkckpt.clean(tmp_path)["path"].to_pylist()}
    Run(query, retained=3).work()
    assert before - query.state_files() == listed


def test_pinned_files_are_no_orphans(tmp_path: Path, query: StatefulQuery) -> None:
    pin = {"formatVersion": 1, "files": [f"{OLD}.handle"]}
    query.write("_sparkckpt/pins/p.json", json.dumps(pin).encode())
    assert sparkckpt.clean(tmp_path)["path"].to_pylist() == [f"state/{OLD}.delta.arrow"]


def test_pins_of_restores_that_were_given_up(tmp_path: Path, query: StatefulQuery) -> None:
    """Those of a target that is there stay, whether its restore has ended or not."""
    target = tmp_path / "target"
    report = sparkckpt.restore(tmp_path, target)
    path = f"_sparkckpt/pins/{report.pin}.json"
    pin = json.loads((tmp_path / path).read_text())
    assert pin["target"] == target.as_uri()
    (tmp_path / path).write_text(json.dumps({**pin, "files": [f"{OLD}.handle"]}))
    for name, other in {"old": None, "odd": "nosuch://x/y", "gone": f"{target.as_uri()}2"}.items():
        fields = {"formatVersion": 1, "files": [], **({"target": other} if other else {})}
        query.write(f"_sparkckpt/pins/{name}.json", json.dumps(fields).encode())

    def orphans(dry_run: bool = True) -> list[str]:
        rows = sparkckpt.clean(tmp_path, dry_run).to_pylist()
        assert all(row["bytes"] > 0 and row["deleted"] == (not dry_run) for row in rows)
        pins = {row["path"] for row in rows if row["kind"] == "pin"}
        assert pins == {row["path"] for row in rows if "/pins/" in row["path"]}
        return [row["path"] for row in rows]

    given_up = "_sparkckpt/pins/gone.json"
    assert orphans() == [f"state/{OLD}.delta.arrow", given_up]
    markers = target / "_sparkckpt"
    restored = (markers / "restored.json").read_text()
    (markers / "restored.json").rename(markers / "restoring.json")
    assert orphans() == [f"state/{OLD}.delta.arrow", given_up]
    (markers / "restoring.json").write_text("{")
    assert orphans() == [f"state/{OLD}.delta.arrow", given_up]
    (markers / "restoring.json").write_text(restored.replace(report.pin or "", "another"))
    everything = [f"state/{OLD}.delta.arrow", f"state/{OLD}.handle", given_up, path]
    assert orphans() == everything
    shutil.rmtree(target)
    elsewhere = {**pin, "files": [f"{OLD}.handle"], "host": "elsewhere"}
    (tmp_path / path).write_text(json.dumps(elsewhere))
    assert orphans() == [f"state/{OLD}.delta.arrow", given_up], "another host's disk may have it"
    (tmp_path / path).write_text(json.dumps({**elsewhere, "target": "memory://gone"}))
    assert path in orphans(), "that can be seen from anywhere"
    (tmp_path / path).write_text(json.dumps({**elsewhere, "host": pin["host"]}))
    assert orphans() == everything and (tmp_path / path).exists()
    assert orphans(dry_run=False) == everything
    assert sorted(p.name for p in (tmp_path / path).parent.iterdir()) == ["odd.json", "old.json"]
    assert orphans() == []


def test_a_running_query_cleans_up_by_itself(tmp_path: Path) -> None:
    query = checkpoints_at(tmp_path, end=False, now_ms=time.time_ns() // 1_000_000)
    query.write(f"state/{OLD}.handle", b"orphan")
    with pytest.raises(QueryRunningError, match=r"run run, on .*, process \d+.* Stop the query"):
        sparkckpt.clean(tmp_path, dry_run=False)
    assert f"{OLD}.handle" in query.state_files()
    assert sparkckpt.clean(tmp_path)["path"].to_pylist() == [f"state/{OLD}.handle"]


def test_a_query_that_starts_meanwhile_takes_over(
    tmp_path: Path, query: StatefulQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = query.state_files()
    find = orphans_module.orphaned_pins

    def find_slowly(storage: Storage) -> dict[str, int]:
        Lease.claim(storage, "run", wall_clock())
        return find(storage)

    monkeypatch.setattr(orphans_module, "orphaned_pins", find_slowly)
    with pytest.raises(NewerOwnerError):
        sparkckpt.clean(tmp_path, dry_run=False)
    assert query.state_files() == before
    owner = running_owner(Storage.at(tmp_path), wall_clock())
    assert owner is not None and owner.run_id == "run"


def test_an_expired_lease_does_not_hinder(tmp_path: Path) -> None:
    query = checkpoints_at(tmp_path, end=False)
    query.write(f"state/{OLD}.handle", b"orphan")
    assert sparkckpt.clean(tmp_path, dry_run=False)["deleted"].to_pylist() == [True]


def test_what_is_not_understood_may_need_anything(tmp_path: Path, query: StatefulQuery) -> None:
    metadata = tmp_path / "_sparkckpt" / "chk-6" / "_metadata"
    data = metadata.read_bytes()
    metadata.write_bytes(data[:8] + b"\x63" + data[9:])
    for dry_run in (True, False):
        with pytest.raises(CleaningBlockedError, match=r"format version 99.*Upgrade sparkckpt"):
            sparkckpt.clean(tmp_path, dry_run)
    assert f"{OLD}.handle" in query.state_files()
