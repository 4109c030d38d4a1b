"""Which operators a restored query has, and what state they get: decisions only."""

import random
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkckpt.errors import (
    InvalidParallelismError,
    NonRestoredStateError,
    OperatorMappingError,
)
from sparkckpt.format import OperatorState, OperatorSubtaskState
from sparkckpt.format.metadata import write_metadata
from sparkckpt.keygroups import DEFAULT_MAX_PARALLELISM
from sparkckpt.restoration.additions import JOIN_FORMAT, NewOperator, new_operator
from sparkckpt.restoration.plan import (
    OperatorChanges,
    OperatorPlan,
    check_max_parallelism,
    check_parallelism,
    ids_of,
    plan_operators,
    shares,
    state_of,
)
from tests.unit.metadata_samples import JOIN_STORES, metadata_of, random_operator

MANIFEST = "manifest-11111111-1111-4111-8111-111111111111"


def operator(operator_id: int, parallelism: int = 3, keyed: bool = True) -> OperatorState:
    made = random_operator(
        random.Random(operator_id),
        parallelism=parallelism,
        operator_id=operator_id,
        stores=("default",),
    )
    if keyed:
        return made
    handles = tuple(replace(handle, keyed=False) for handle in made.handles)
    return replace(made, keyed=False, subtasks=(OperatorSubtaskState(0, handles),))


THREE = [operator(0), operator(1, parallelism=1, keyed=False), operator(2)]
NEW = NewOperator("dedupe", ("default",))


def plan(
    mapped: Mapping[int, int] | None = None,
    dropped: Collection[int] = (),
    added: Mapping[int, NewOperator] | None = None,
    allowed: bool = False,
) -> tuple[OperatorPlan, ...]:
    changes = OperatorChanges(mapped or {}, dropped, added or {}, allowed)
    return plan_operators(THREE, 5, changes)


def moves(plans: tuple[OperatorPlan, ...]) -> dict[int, int | None]:
    return {one.operator_id: one.restored_from for one in plans}


def test_operators_stay_who_they_are() -> None:
    plans = plan()
    assert moves(plans) == {0: 0, 1: 1, 2: 2}
    assert [(p.former_parallelism, p.parallelism) for p in plans] == [(3, 5), (1, 1), (3, 5)]
    assert [p.keyed for p in plans] == [True, False, True]


def test_operators_may_change_places() -> None:
    assert moves(plan({0: 2, 2: 0})) == {0: 2, 1: 1, 2: 0}
    assert moves(plan({0: 1, 1: 2, 2: 0})) == {0: 2, 1: 0, 2: 1}


def test_dropping_needs_leave_and_moves_the_rest_up() -> None:
    with pytest.raises(NonRestoredStateError, match=r"operator 1 \(symmetricHashJoin\) would not"):
        plan(dropped=[1], mapped={2: 1})
    assert moves(plan(dropped=[1], mapped={2: 1}, allowed=True)) == {0: 0, 1: 2}
    assert moves(plan(dropped=[2], allowed=True)) == {0: 0, 1: 1}
    assert plan(dropped=[0, 1, 2], allowed=True) == ()


def test_the_mapping_that_is_needed_is_printed() -> None:
    with pytest.raises(OperatorMappingError) as error:
        plan(dropped=[0], allowed=True)
    assert "the ids [1, 2]" in str(error.value)
    assert str(error.value).endswith("with: --map-operator 1=0 --map-operator 2=1")
    with pytest.raises(OperatorMappingError, match=r"with: --add-operator 3=dedupe"):
        plan(added={5: NEW})
    with pytest.raises(OperatorMappingError, match=r"with: --map-operator 2=0$") as e:
        plan(dropped=[0], mapped={1: 7}, allowed=True)
    assert "the ids [2, 7]" in str(e.value)
    with pytest.raises(OperatorMappingError, match="with: no option at all"):
        plan(mapped={2: 9})


def test_what_the_error_prints_works() -> None:
    mapped = {1: 0, 2: 1}
    assert moves(plan(dropped=[0], mapped=mapped, allowed=True)) == {0: 1, 1: 2}


def test_an_operator_that_is_overwritten_is_one_that_is_dropped() -> None:
    with pytest.raises(NonRestoredStateError, match="operator 0 "):
        plan(mapped={2: 0})
    assert moves(plan(mapped={2: 0}, allowed=True)) == {0: 2, 1: 1}
    with pytest.raises(NonRestoredStateError, match="operator 1 "):
        plan(added={1: NEW}, dropped=[1])
    assert moves(plan(added={1: NEW}, allowed=True)) == {0: 0, 1: None, 2: 2}


def test_an_operator_in_front_moves_the_others_up() -> None:
    with pytest.raises(OperatorMappingError) as error:
        plan(added={0: NEW})
    assert "operator 0 (symmetricHashJoin) by the new dedupe" in str(error.value)
    moving = "with: --map-operator 0=1 --map-operator 1=2 --map-operator 2=3. If it replaces"
    assert moving in str(error.value)
    assert str(error.value).endswith("with: --drop-operator 0 --allow-non-restored-state")
    assert moves(plan(added={0: NEW}, mapped={0: 1, 1: 2, 2: 3})) == {0: None, 1: 0, 2: 1, 3: 2}
    with pytest.raises(
        OperatorMappingError, match=r"with: --map-operator 1=2 --map-operator 2=3\."
    ):
        plan(added={1: NEW})
    with pytest.raises(OperatorMappingError, match=r"with: --map-operator 0=2 --map-operator 1=3 "):
        plan(added={0: NEW, 1: NEW})
    with pytest.raises(OperatorMappingError, match=r"with: --map-operator 1=0\. If"):
        plan(added={1: NEW}, dropped=[0])


def test_the_modes_of_an_addition_are_printed_too() -> None:
    text = "transformWithStateExec:EventTime:Append"
    for wanted in (text, "stateStoreSave:global", "dedupe"):
        with pytest.raises(OperatorMappingError, match=f"with: --add-operator 3={wanted}$"):
            plan(added={5: new_operator(5, wanted, {})})


@pytest.mark.parametrize("text", ["globalLimit", "stateStoreSave:global"])
def test_an_added_operator_in_one_place(text: str) -> None:
    plans = plan(added={3: new_operator(3, text, {})})
    assert (plans[3].keyed, plans[3].parallelism) == (False, 1)
    assert len(ids_of(plans, MANIFEST, 9)[3]) == 1
    state = state_of(plans[3], THREE, MANIFEST, 12, DEFAULT_MAX_PARALLELISM)
    assert not state.keyed and not any(handle.keyed for handle in state.handles)
    write_metadata(metadata_of(*THREE, state))


def test_two_onto_one_id() -> None:
    with pytest.raises(OperatorMappingError, match=r"operator 2 .* and operator 0 .* operator 1"):
        plan(mapped={0: 1, 2: 1}, allowed=True)
    with pytest.raises(OperatorMappingError, match="and the new dedupe cannot both become operat"):
        plan(mapped={0: 1}, added={1: NEW}, allowed=True)
    with pytest.raises(OperatorMappingError, match="which is dropped"):
        plan(mapped={0: 1}, dropped=[0], allowed=True)


def test_an_operator_that_does_not_exist() -> None:
    for changes in ({"mapped": {7: 0}}, {"dropped": [7]}):
        with pytest.raises(OperatorMappingError, match=r"no operator 7.*operator 2 \(symm"):
            plan(**changes)  # type: ignore[arg-type]


def test_an_added_operator_starts_empty() -> None:
    plans = plan(added={3: NEW})
    assert moves(plans)[3] is None
    states = [state_of(one, THREE, MANIFEST, 12, DEFAULT_MAX_PARALLELISM) for one in plans]
    assert states[:3] == THREE
    (handle,) = states[3].handles
    assert (handle.families, handle.id, handle.version) == ((), MANIFEST, 12)
    write_metadata(metadata_of(*states))
    assert all(share.families == () for share in shares(states[3], 7))


def test_moved_state_keeps_everything_but_the_id() -> None:
    (one,) = plan_operators([THREE[2]], 4, OperatorChanges({2: 0}, (), {}, False))
    moved = state_of(one, THREE, MANIFEST, 12, DEFAULT_MAX_PARALLELISM)
    assert moved.operator_id == 0
    assert [h.operator_id for h in moved.handles] == [0, 0, 0]
    assert [replace(h, operator_id=2) for h in moved.handles] == list(THREE[2].handles)
    write_metadata(metadata_of(moved))


def test_ids_for_the_commit_log() -> None:
    assert {k: len(v) for k, v in ids_of(plan(), MANIFEST).items()} == {0: 5, 1: 1, 2: 5}
    assert {k: len(v) for k, v in ids_of(plan(), MANIFEST, 9).items()} == {0: 9, 1: 1, 2: 9}
    (join,) = plan_operators([random_operator(random.Random(1))], 2)
    assert ids_of([join], MANIFEST) == {0: [[MANIFEST] * 4] * 3}, "both parallelisms are served"


@pytest.mark.parametrize("parallelism", [0, -1, 65, 1 << 40])
def test_impossible_parallelism(parallelism: int) -> None:
    with pytest.raises(InvalidParallelismError, match=f"cannot be {parallelism}: .* from 1 to 64"):
        check_parallelism(parallelism, 64)
    check_parallelism(64, 64)


@pytest.mark.parametrize("max_parallelism", [0, -5, 32769])
def test_impossible_key_groups(max_parallelism: int) -> None:
    with pytest.raises(InvalidParallelismError, match="maxParallelism, cannot be"):
        check_max_parallelism(max_parallelism)
    check_max_parallelism(32768)


def test_new_operators() -> None:
    assert new_operator(0, "dedupe", {}) == NEW
    assert new_operator(0, "symmetricHashJoin", {}).stores == JOIN_STORES
    assert new_operator(0, "symmetricHashJoin", {JOIN_FORMAT: "2"}).stores == JOIN_STORES
    columnar = new_operator(0, "symmetricHashJoin", {JOIN_FORMAT: "4"})
    assert columnar.stores == ("default",) and columnar.properties is not None
    processor = new_operator(1, "transformWithStateInPySparkExec:EventTime:Append", {})
    assert processor.properties == {
        "timeMode": "EventTime",
        "outputMode": "Append",
        "stateVariables": [],
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("aggregate", "the operators are stateStoreSave"),
        ("dedupe:NoTime:Append", "dedupe takes no NoTime:Append"),
        ("transformWithStateExec", "NAME:TIMEMODE:OUTPUTMODE"),
        ("transformWithStateExec:notime:Append", "NoTime, ProcessingTime, EventTime"),
    ],
)
def test_operators_that_cannot_be_added(text: str, message: str) -> None:
    with pytest.raises(OperatorMappingError, match=f"Operator 1 cannot be added as .*{message}"):
        new_operator(1, text, {})


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 20), st.integers(1, 40), st.integers(0, 2**32))
def test_shares_take_all_from_whom_they_must(before: int, after: int, seed: int) -> None:
    state = random_operator(
        random.Random(seed), parallelism=before, stores=("left", "right"), files=3
    )
    taken: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for share in shares(state, after):
        assert share.sources == tuple(
            subtask.partition
            for subtask in state.subtasks
            if subtask.key_groups.overlaps(share.key_groups)
        )
        for family in share.families:
            for ref in family.files:
                assert ref.key_groups.clip_to(share.key_groups) == ref.key_groups
                span = (ref.first_key_group, ref.last_key_group)
                taken.setdefault((ref.path, ref.offset), []).append(span)
    for handle in state.handles:
        for ref in (ref for family in handle.families for ref in family.files):
            spans = sorted(taken.pop((ref.path, ref.offset)))
            assert spans[0][0] == ref.first_key_group and spans[-1][1] == ref.last_key_group
            assert all(a[1] + 1 == b[0] for a, b in pairwise(spans))
    assert not taken
