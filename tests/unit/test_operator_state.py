"""Operator state in the life of a checkpoint: completed, shown, verified, moved, cleaned up."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import sparkckpt
from sparkckpt.cli.console import main
from sparkckpt.errors import (
    OperatorStateModesError,
    OperatorStateNotExportableError,
    OperatorStateTooLargeError,
)
from sparkckpt.format import (
    OperatorState,
    OperatorStateInfo,
    load_operator_state,
    load_operator_states,
    metadata_path,
    operator_state_path,
    read_metadata,
    redistribute,
    write_operator_state,
)
from sparkckpt.format.operatorstate import MAX_BLOB_BYTES, write_blob
from sparkckpt.restoration.plan import check_redistribution
from sparkckpt.sparklog.edits import SHUFFLE_PARTITIONS
from sparkckpt.storage import Storage
from sparkckpt.transfer.source import PROVIDER, SPARKCKPT
from tests.unit.checkpoint_samples import (
    OperatorStateQuery,
    checkpoints_at,
    operator_states,
)
from tests.unit.coordinator_samples import Run
from tests.unit.format_samples import flipped
from tests.unit.restore_samples import loaded_rows, metadata_in

WRITTEN = [operator_states(partition, 7) for partition in range(2)]
"""What the last checkpoint of the sample has."""


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    location = tmp_path_factory.mktemp("operator-state") / "sample"
    checkpoints_at(location, kind=OperatorStateQuery)
    return location


@pytest.fixture
def location(sample: Path, tmp_path: Path) -> Path:
    shutil.copytree(sample, tmp_path / "sample")
    return tmp_path / "sample"


def states_in(location: Path, operators: Sequence[OperatorState]) -> list[Any]:
    """The operator state of the first operator, partition by partition."""
    storage = Storage.at(location).below("state")
    return [
        load_operator_state(storage, handle.operator_state) if handle.operator_state else ()
        for handle in operators[0].handles
    ]


def state_at(location: Path) -> list[Any]:
    return states_in(location, metadata_in(Storage.at(location)).operator_states)


def test_a_checkpoint_has_what_its_version_carries(location: Path) -> None:
    """Version 5 carries what version 4 has written in files of their own."""
    for checkpoint_id, version in ((5, 4), (6, 4), (7, 7)):
        data = (location / metadata_path(checkpoint_id)).read_bytes()
        operators = read_metadata(data, "x").operator_states
        written = [operator_states(partition, version) for partition in range(2)]
        assert states_in(location, operators) == written
        assert all(handle.operator_state is None for handle in operators[1].handles)


def test_show_says_which_there_is(location: Path) -> None:
    rows = sparkckpt.show_checkpoint(location).operator_states.to_pylist()
    assert [(r["operator_id"], r["store"], r["partitions"]) for r in rows] == [
        (0, "default", 2)
    ] * 3
    assert [(r["name"], r["mode"], r["items"], r["bytes"]) for r in rows] == [
        ("offsets", "split", 7, 7 * 5),
        ("seen", "union", 2, 2),
        ("rules", "broadcast", 4, 12),
    ]
    files = sparkckpt.show_checkpoint(location, 6).files.to_pylist()
    own = [file for file in files if file["kind"] == "operator state"]
    assert [(f["partition"], f["offset"], f["foreign"]) for f in own] == [(0, 0, 0), (1, 0, 0)]
    assert all(f["path"].endswith(".operator-state") and f["bytes"] > 40 for f in own)
    shown = CliRunner().invoke(main, ["show", str(location)])
    assert "operator states" in shown.output and "broadcast" in shown.output
    as_json = CliRunner().invoke(main, ["--output", "json", "show", str(location)])
    assert json.loads(as_json.output)["operator_states"] == rows


@pytest.mark.parametrize("checkpoint_id", [6, 7])
def test_verify_reads_every_byte_of_it(location: Path, checkpoint_id: int) -> None:
    assert sparkckpt.verify(location).num_rows == 0
    data = (location / metadata_path(checkpoint_id)).read_bytes()
    (handle, *_) = read_metadata(data, "x").handles
    state = handle.operator_state
    assert state is not None
    path = location / "state" / state.path
    intact = path.read_bytes()
    for position in (0, state.length // 2, state.length - 1):
        path.write_bytes(flipped(intact, state.offset + position))
        problems = sparkckpt.verify(location, checkpoint_id).to_pylist()
        assert [problem["path"] for problem in problems] == [f"state/{state.path}"]
        assert "the checksum of its operator state" in problems[0]["problem"]
    path.unlink()
    (problem,) = sparkckpt.verify(location, checkpoint_id).to_pylist()
    assert problem["error"] == "FileMissingError"


def test_what_carries_it_is_kept_as_long_as_it_is_needed(tmp_path: Path) -> None:
    query = OperatorStateQuery(Storage.at(tmp_path), operators=(0, 1), min_batches=2)
    run = Run(query, retained=1)
    for batch in range(20):
        run.batch(batch)
        run.work()
        newest = read_metadata((tmp_path / metadata_path(batch + 1)).read_bytes(), "x")
        assert query.state_files() >= set(newest.files()) | query.live_files()
        for states in states_in(tmp_path, newest.operator_states):
            assert len(states) == 3
    run.coordinator.query_ended()
    run.work()
    assert query.state_files() == set(newest.files()) | query.live_files()
    for name in (
        "1_0a0a0a0a-0000-4000-8000-000000000001",
        "99_0a0a0a0a-0000-4000-8000-000000000002",
    ):
        query.write(f"state/0/0/{name}.operator-state", b"x")
    orphans = sparkckpt.clean(tmp_path, dry_run=False)["path"].to_pylist()
    assert orphans == ["state/0/0/1_0a0a0a0a-0000-4000-8000-000000000001.operator-state"]


def test_the_figures_of_a_checkpoint_count_it(tmp_path: Path) -> None:
    checkpoints_at(tmp_path / "with", kind=OperatorStateQuery)
    checkpoints_at(tmp_path / "without")
    sizes = []
    for name in ("with", "without"):
        data = (tmp_path / name / metadata_path(7)).read_bytes()
        sizes.append(read_metadata(data, "x").statistics)
    blobs = sum(len(write_blob(states)) for states in WRITTEN)
    assert sizes[0].state_bytes - sizes[1].state_bytes == blobs
    assert (sizes[0].files, sizes[0].new_files) == (sizes[1].files, sizes[1].new_files)


@pytest.mark.parametrize("mode", ["no-claim", "claim", "copy"])
@pytest.mark.parametrize("checkpoint_id", [6, 7])
def test_a_restore_takes_it_along(
    location: Path, tmp_path: Path, mode: str, checkpoint_id: int
) -> None:
    target = tmp_path / "target"
    data = (location / metadata_path(checkpoint_id)).read_bytes()
    version = read_metadata(data, "x").batch_id + 1
    written = [operator_states(p, version if version % 3 == 1 else 4) for p in range(2)]
    report = sparkckpt.restore(
        location, target, mode=mode, parallelism=3, checkpoint_id=checkpoint_id
    )
    if mode == "copy":
        source = [path for path in location.rglob("*") if path.is_file() and "state" in path.parts]
        for path in source:
            path.unlink()
        assert report.files_copied > 0
    restored = state_at(target)
    assert restored == written
    dealt = redistribute(restored, 3)
    assert [len(states[0].items) for states in dealt] == [3, 2, 2]
    assert sparkckpt.restore(target, tmp_path / "again", parallelism=2).parallelism == 2
    assert state_at(tmp_path / "again") == written


def test_a_rescale_in_place_keeps_it(location: Path) -> None:
    _, rows = loaded_rows(Storage.at(location))
    for parallelism in (3, 5, 2):
        sparkckpt.rescale(location, parallelism)
        assert state_at(location) == WRITTEN
        assert loaded_rows(Storage.at(location)) == (parallelism, rows)


def test_operators_are_mapped_and_dropped_with_it(location: Path, tmp_path: Path) -> None:
    sparkckpt.restore(location, tmp_path / "swapped", map_operators={0: 1, 1: 0})
    swapped = metadata_in(Storage.at(tmp_path / "swapped")).operator_states
    assert states_in(tmp_path / "swapped", swapped) == [(), (), (), ()]
    assert states_in(tmp_path / "swapped", swapped[1:]) == WRITTEN
    sparkckpt.restore(
        location,
        tmp_path / "dropped",
        map_operators={1: 0},
        drop_operators=[0],
        allow_non_restored_state=True,
    )
    assert sparkckpt.verify(location).num_rows == 0
    assert state_at(tmp_path / "dropped") == [()] * 4


def operator_with(location: Path, *infos: OperatorStateInfo) -> OperatorState:
    """The first operator of the sample, whose partitions have these states."""
    data = (location / metadata_path(7)).read_bytes()
    operator = read_metadata(data, "x").operator_states[0]
    subtasks = []
    for subtask, info in zip(operator.subtasks, infos, strict=True):
        (handle,) = subtask.handles
        assert handle.operator_state is not None
        state = replace(handle.operator_state, states=(info,))
        subtasks.append(replace(subtask, handles=(replace(handle, operator_state=state),)))
    return replace(operator, subtasks=tuple(subtasks))


def test_what_could_not_be_loaded_is_refused_beforehand(location: Path) -> None:
    large = OperatorStateInfo("s", "union", 1, MAX_BLOB_BYTES)
    with pytest.raises(OperatorStateTooLargeError, match=r"With 3 partitions, each of operator 0"):
        check_redistribution(operator_with(location, large, large), 3)
    check_redistribution(operator_with(location, large, replace(large, inherited=True, bytes=0)), 3)
    split = replace(large, mode="split")
    check_redistribution(operator_with(location, split, split), 3)
    with pytest.raises(OperatorStateTooLargeError):
        check_redistribution(operator_with(location, split, split), 1)
    with pytest.raises(OperatorStateModesError):
        check_redistribution(operator_with(location, large, split), 3)


def test_an_export_refuses_to_lose_it(location: Path, tmp_path: Path) -> None:
    for log in ("offsets/5", "offsets/6"):
        version, metadata, *sources = (location / log).read_text().splitlines()
        fields = json.loads(metadata)
        assert SHUFFLE_PARTITIONS in fields["conf"]
        fields["conf"][PROVIDER] = SPARKCKPT
        (location / log).write_text("\n".join([version, json.dumps(fields), *sources]))
    target = tmp_path / "target"
    message = "'offsets' of operator 0 .*, 'seen' .*--drop-operator-state"
    with pytest.raises(OperatorStateNotExportableError, match=message):
        sparkckpt.export_checkpoint(location, target)
    refused = CliRunner().invoke(main, ["export", str(location), str(target)])
    assert refused.exit_code == 1
    assert not target.exists()


def test_it_is_taken_out_as_values_and_put_into_files_of_its_own(location: Path) -> None:
    storage = Storage.at(location).below("state")
    handles = list(metadata_in(Storage.at(location)).handles)
    found = load_operator_states(storage, handles)
    assert [(f.operator_id, f.store_name, f.partition) for f in found] == [
        (0, "default", 0),
        (0, "default", 1),
    ]
    assert [list(f.states) for f in found] == [list(states) for states in WRITTEN]
    path = operator_state_path(0, 1, 7, "0a0a0a0a-0000-4000-8000-000000000001", "left")
    assert path == "0/1/left/7_0a0a0a0a-0000-4000-8000-000000000001.operator-state"
    inherited = replace(WRITTEN[1][1], inherited=True)
    written = write_operator_state(storage, path, [WRITTEN[1][0], inherited])
    assert (written.path, written.offset) == (path, 0)
    assert load_operator_state(storage, written) == (WRITTEN[1][0], inherited)
