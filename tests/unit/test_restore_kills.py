"""A restore that dies at any of its steps: nobody takes what is there for whole, and it can be run
again."""

import contextlib
import itertools
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import sparkckpt
from sparkckpt.coordinator.pins import pin_names
from sparkckpt.errors import NotACheckpointError, RestorePendingError, TargetNotEmptyError
from sparkckpt.restoration.materialize import restore_into
from sparkckpt.restoration.report import RestoreReport
from sparkckpt.restoration.request import RestoreOptions
from sparkckpt.restoration.source import Source, open_storage
from sparkckpt.storage import Storage
from tests.unit.restore_samples import Killed, Rows, copy_of, killed_at, loaded_rows, sample

LATER = 10**14
OPERATORS: dict[str, Any] = {
    "drop_operators": (0,),
    "map_operators": {1: 0},
    "add_operators": {1: "dedupe"},
    "allow_non_restored_state": True,
}


def restore(source: Path, target: Path, clock: int | None = None, **options: Any) -> RestoreReport:
    timing = {} if clock is None else {"clock": lambda: clock}
    return restore_into(
        Source.at(source), *open_storage(target), RestoreOptions(**options), **timing
    )


def is_done(target: Path) -> bool:
    """Whether a query would start there; if not, every command says so."""
    try:
        sparkckpt.list_checkpoints(target)
    except (RestorePendingError, NotACheckpointError):
        assert (
            not (target / "_sparkckpt/restored.json").exists()
            or (target / "_sparkckpt/restoring.json").exists()
        )
        return False
    return True


def wanted(rows: Rows) -> Rows:
    moved = {(0, store): found for (operator, store), found in rows.items() if operator == 1}
    return {**moved, (1, "default"): []}


@pytest.mark.parametrize("mode", ["no-claim", "claim", "copy"])
@pytest.mark.parametrize("after", [False, True])
def test_killed_at_any_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, after: bool
) -> None:
    original = sample(tmp_path)
    _, rows = loaded_rows(Storage.at(original))
    done = []
    for number in range(1, 100):
        source, target = copy_of(original, f"source{number}"), tmp_path / f"target{number}"
        with killed_at(monkeypatch, number, after) as calls, contextlib.suppress(Killed):
            restore(source, target, parallelism=3, mode=mode, **OPERATORS)
        assert loaded_rows(Storage.at(source)) == (2, rows)
        done.append(is_done(target))
        if not done[-1]:
            laid = set(pin_names(Storage.at(source)))
            restore(source, target, clock=LATER, parallelism=3, mode=mode, **OPERATORS)
            assert not laid.intersection(pin_names(Storage.at(source))), "a pin was rewritten"
        else:
            with pytest.raises(TargetNotEmptyError):
                restore(source, target, clock=LATER, parallelism=3, mode=mode, **OPERATORS)
        assert is_done(target), f"killed at change {number}"
        assert loaded_rows(Storage.at(target)) == (3, wanted(rows))
        assert len(pin_names(Storage.at(source))) == (1 if mode == "no-claim" else 0)
        assert not [path for path in target.rglob("*") if "restoring" in path.name]
        manifests = list((target / "_sparkckpt/manifests").iterdir())
        assert len(manifests) == 1, "nothing is left of the first try"
        if mode == "copy":
            shutil.rmtree(source)
            assert loaded_rows(Storage.at(target)) == (3, wanted(rows))
        if calls() < number:
            break
    assert done[0] is False and done[-1] is True and done == sorted(done)


def test_killed_and_run_again_in_another_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left of a try of another kind, or with other operators, must not show through."""
    seed = 20240229
    pick = random.Random(seed)
    original = sample(tmp_path)
    _, rows = loaded_rows(Storage.at(original))
    clock = itertools.count(LATER, 100_000)
    for number in range(25):
        source, target = copy_of(original, f"source{number}"), tmp_path / f"target{number}"
        for step in (pick.randint(1, 35), pick.randint(1, 35), None):
            mode = pick.choice(["no-claim", "claim", "copy"])
            operators = pick.choice([{}, OPERATORS])
            death = killed_at(monkeypatch, step or 1000, pick.random() < 0.5)
            with death, contextlib.suppress(Killed):
                restore(source, target, clock=next(clock), mode=mode, parallelism=3, **operators)
            if is_done(target):
                break
        expected = wanted(rows) if operators else rows
        assert loaded_rows(Storage.at(target)) == (3, expected), f"seed {seed}, round {number}"
        assert (source / "_sparkckpt/claimed.json").exists() == (mode == "claim")
        assert len(pin_names(Storage.at(source))) == (1 if mode == "no-claim" else 0)
