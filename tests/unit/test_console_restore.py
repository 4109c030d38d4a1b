"""The commands `rescale` and `restore`, in both outputs."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import sparkckpt
from sparkckpt.cli.console import main
from sparkckpt.storage import Storage
from tests.unit.restore_samples import loaded_rows, sample


@pytest.fixture
def location(tmp_path: Path) -> str:
    return str(sample(tmp_path))


@pytest.fixture
def target(tmp_path: Path) -> str:
    return str(tmp_path / "target")


def run(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "160"}).invoke(main, arguments)


def test_rescale_for_people(location: str) -> None:
    outcome = run("rescale", location, "--parallelism", "6")
    assert outcome.exit_code == 0
    for part in ("symmetricHashJoin", "former parallelism  2", "parallelism         6", "90.1 KiB"):
        assert part in outcome.output
    assert outcome.output.endswith(
        f"The query on {location} goes on with 6 state partitions when it is started.\n"
    )
    assert loaded_rows(Storage.at(location))[0] == 6
    again = run("rescale", location, "--parallelism", "6")
    assert (again.exit_code, "already: nothing was changed" in again.output) == (0, True)


def test_rescale_for_programs(location: str) -> None:
    shown = json.loads(run("rescale", location, "--parallelism=3", "--output=json").stdout)
    assert (shown["changed"], shown["former_parallelism"], shown["parallelism"]) == (True, 2, 3)
    assert [operator["files"] for operator in shown["operators"]] == [8, 16]
    assert shown["manifest"].startswith("manifest-")


def test_restore_for_people(location: str, target: str) -> None:
    outcome = run("restore", location, target, "--parallelism", "5", "--mode", "copy")
    assert outcome.exit_code == 0 and outcome.stderr == ""
    for part in ("files copied        24", "planned batch       7", "stateStoreSave"):
        assert part in outcome.output
    assert "warnings" not in outcome.output
    assert f"Start the query with {target} as its checkpointLocation" in outcome.output
    assert loaded_rows(Storage.at(target)) == (5, loaded_rows(Storage.at(location))[1])


def test_restore_for_programs(location: str, target: str) -> None:
    outcome = run("--output", "json", "restore", location, target, "--mode", "claim")
    shown = json.loads(outcome.stdout)
    assert (shown["mode"], shown["checkpoint_id"], shown["warnings"]) == ("claim", 7, [])
    assert shown["files_referenced"] == 24 and shown["pin"] is None


def test_a_rollback_warns_of_exactly_once_sinks(location: str, target: str) -> None:
    outcome = run("restore", location, target, "--checkpoint-id", "6", "--output", "json")
    assert outcome.exit_code == 0
    assert "warning: The source has gone on to batch 6: batch 6 will be run again" in outcome.stderr
    assert "exactly once" in outcome.stderr
    assert len(json.loads(outcome.stdout)["warnings"]) == 1
    text = run("restore", f"{location}/_sparkckpt/chk-5", f"{target}2")
    assert "batches 5 to 6" in text.stderr


def test_restore_with_other_operators(location: str, target: str) -> None:
    dropped = ("restore", location, target, "--drop-operator", "0")
    outcome = run(*dropped)
    assert (outcome.exit_code, "--allow-non-restored-state" in outcome.stderr) == (1, True)
    allowed = (*dropped, "--allow-non-restored-state")
    outcome = run(*allowed)
    assert outcome.exit_code == 1
    *_, hint = outcome.stderr.strip().split("with: ")
    assert hint == "--map-operator 1=0"
    outcome = run(*allowed, *hint.split(), "--add-operator", "1=dedupe", "--max-parallelism", "128")
    assert outcome.exit_code == 0 and "not restored        0 (stateStoreSave)" in outcome.output
    assert "dedupe" in outcome.output and "max parallelism     128" in outcome.output


@pytest.mark.parametrize("number", ["0", "-1", "65"])
def test_impossible_parallelism(location: str, target: str, number: str) -> None:
    for command in (("rescale", location), ("restore", location, target)):
        outcome = run(*command, f"--parallelism={number}", "--output", "json")
        assert (outcome.exit_code, outcome.stdout) == (1, "")
        assert json.loads(outcome.stderr)["error"] == "InvalidParallelismError"


@pytest.mark.parametrize(
    "options",
    [
        ["--map-operator", "1"],
        ["--map-operator", "a=1"],
        ["--map-operator", "1=b"],
        ["--add-operator", "dedupe"],
        ["--add-operator", "1="],
        ["--drop-operator", "x"],
        ["--mode", "move"],
        ["--parallelism", "many"],
    ],
)
def test_wrong_options(location: str, target: str, options: list[str]) -> None:
    assert run("restore", location, target, *options).exit_code == 2
    assert not Path(target).exists()


def test_options_of_another_form(location: str, target: str) -> None:
    for options, form in (
        (["--map-operator", "1"], "OLD=NEW"),
        (["--add-operator", "x"], "ID=NAME"),
    ):
        assert f"is not of the form {form}" in run("restore", location, target, *options).stderr


def test_wrong_paths(tmp_path: Path, location: str) -> None:
    for command in (("rescale", "--parallelism", "3"), ("restore",)):
        name, *options = command
        paths = [str(tmp_path / "none")] + ([f"{tmp_path}/t"] if name == "restore" else [])
        outcome = run(name, *paths, *options, "--output", "json")
        assert outcome.exit_code == 1
        assert json.loads(outcome.stderr)["error"] == "NotACheckpointError"
    assert run("rescale", location).exit_code == 2
    outcome = run("restore", location, location, "--output", "json")
    assert json.loads(outcome.stderr)["error"] == "TargetNotEmptyError"


def test_help_says_what_happens() -> None:
    rescale, restore = run("rescale", "--help").output, run("restore", "--help").output
    assert "can be run again" in " ".join(rescale.split())
    for word in ("no-claim", "claim", "copy", "chk-41", "rollback", "OLD=NEW", "ID=NAME"):
        assert word in restore


def test_the_front_door() -> None:
    assert sparkckpt.restore.__module__.startswith("sparkckpt.restoration")
    assert {"rescale", "restore", "RescaleReport", "RestoreReport"} <= set(sparkckpt.__all__)
