"""Only a savepoint that nobody needs is deleted, and all of it."""

import contextlib
import shutil
from pathlib import Path

import pytest

import sparkckpt
from sparkckpt.errors import (
    ClaimedCheckpointError,
    NotASavepointError,
    SavepointInUseError,
    UnfinishedSavepointError,
)
from sparkckpt.storage import Storage
from tests.unit.restore_samples import Killed, killed_at, loaded_rows, sample


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return sample(tmp_path)


@pytest.fixture
def savepoint(source: Path, tmp_path: Path) -> Path:
    sparkckpt.savepoint(source, tmp_path / "sp", name="weekly")
    return tmp_path / "sp"


def test_all_of_it_goes_but_nothing_else(savepoint: Path) -> None:
    (savepoint / "notes.txt").write_text("mine")
    report = sparkckpt.dispose(savepoint)
    assert (report.name, report.complete) == ("weekly", True)
    assert report.files > 6 and report.bytes > 0
    assert [path.name for path in savepoint.iterdir()] == ["notes.txt"]
    with pytest.raises(NotASavepointError, match=r"it has no _sparkckpt/savepoint\.json"):
        sparkckpt.dispose(savepoint)


def test_checkpoints_are_none(source: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in source.rglob("*") if path.is_file()}
    with pytest.raises(NotASavepointError, match="nothing was deleted"):
        sparkckpt.dispose(source)
    with pytest.raises(NotASavepointError):
        sparkckpt.dispose(source / "_sparkckpt/chk-7")
    with pytest.raises(NotASavepointError, match="it does not exist"):
        sparkckpt.dispose(tmp_path / "nowhere")
    assert before == {path: path.read_bytes() for path in source.rglob("*") if path.is_file()}


@pytest.mark.parametrize("mode", ["no-claim", "claim", "copy"])
def test_what_was_restored_may_need_it(savepoint: Path, tmp_path: Path, mode: str) -> None:
    sparkckpt.restore(savepoint, tmp_path / "target", mode=mode)
    expected = {"no-claim": SavepointInUseError, "claim": ClaimedCheckpointError}.get(mode)
    if expected is not None:
        with pytest.raises(expected, match="target"):
            sparkckpt.dispose(savepoint)
        shutil.rmtree(tmp_path / "target")
    if mode == "claim":
        sparkckpt.dispose(savepoint, force=True)
    else:
        sparkckpt.dispose(savepoint)
    assert not savepoint.exists()
    if mode == "copy":
        loaded_rows(Storage.at(tmp_path / "target"))


def test_killed_at_any_point(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1, 20):
        savepoint = tmp_path / f"sp{number}"
        sparkckpt.savepoint(source, savepoint)
        with killed_at(monkeypatch, number) as calls, contextlib.suppress(Killed):
            sparkckpt.dispose(savepoint)
        if calls() < number:
            break
        if number > 1:
            with pytest.raises(UnfinishedSavepointError):
                sparkckpt.list_checkpoints(savepoint)
        sparkckpt.dispose(savepoint)
        assert not savepoint.exists()
    assert number > 3
