"""The commands `savepoint` and `dispose`, in both outputs."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from sparkckpt.cli.console import main
from sparkckpt.storage import Storage
from tests.unit.restore_samples import loaded_rows, sample


@pytest.fixture
def location(tmp_path: Path) -> str:
    return str(sample(tmp_path))


@pytest.fixture
def target(tmp_path: Path) -> str:
    return str(tmp_path / "sp")


def run(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "160"}).invoke(main, arguments)


def test_for_people(location: str, target: str, tmp_path: Path) -> None:
    outcome = run("savepoint", location, target, "--name", "before the upgrade")
    assert outcome.exit_code == 0, outcome.output
    for part in ("before the upgrade", "symmetricHashJoin", "left, right"):
        assert part in outcome.output
    assert f"Go on from the savepoint with: sparkckpt restore {target} " in outcome.output
    assert "savepoint" in run("list", target).output
    assert "before the upgrade" in run("show", target).output
    assert run("verify", target).exit_code == 0
    restored = str(tmp_path / "restored")
    assert run("restore", target, restored, "--parallelism", "5", "--mode=copy").exit_code == 0
    assert loaded_rows(Storage.at(restored)) == (5, loaded_rows(Storage.at(location))[1])
    assert run("dispose", target).exit_code == 0
    assert not Path(target).exists()


def test_for_programs(location: str, target: str) -> None:
    shown = json.loads(run("savepoint", location, target, "--output=json").stdout)
    assert (shown["name"], shown["batch_id"]) == ("sp", 6)
    assert [operator["files"] for operator in shown["operators"]] == [2, 4]
    assert json.loads(run("dispose", target, "--output=json").stdout)["complete"] is True


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--stop", "--checkpoint-id", "6"], "goes without --checkpoint-id"),
        (["--master", "local[2]"], "are for --spark"),
        (["--spark", "--conf", "x"], "NAME=VALUE"),
        (["--checkpoint-id", "99"], "no checkpoint 99. It has 5, 6, 7"),
        (["--stop"], "No query can be seen to run on"),
    ],
)
def test_what_is_refused(location: str, target: str, options: list[str], message: str) -> None:
    outcome = run("savepoint", location, target, *options)
    assert outcome.exit_code in (1, 2)
    assert message in " ".join(outcome.output.split())
    assert not Path(target).exists()
