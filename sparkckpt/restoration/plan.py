"""What a restored or rescaled query gets: which operators, how many partitions, which state.

Pure decisions on values, made before anything is written. State moves between operators only as
asked for, none is left behind unless that is allowed, and every key group goes to one partition.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from sparkckpt.errors import (
    InvalidParallelismError,
    NonRestoredStateError,
    OperatorMappingError,
    OperatorStateTooLargeError,
)
from sparkckpt.format.handle import FamilyFiles, StateHandle
from sparkckpt.format.metadata import OperatorState, OperatorSubtaskState
from sparkckpt.format.operatorstate import MAX_BLOB_BYTES
from sparkckpt.format.redistribution import bytes_of_largest
from sparkckpt.format.slices import slices_of
from sparkckpt.keygroups import DEFAULT_MAX_PARALLELISM, KeyGroupRange, range_of
from sparkckpt.restoration.additions import NewOperator

StateIds = dict[int, list[list[str]]]
"""Operator to partition to one id for each store, as in an entry of the commit log."""


@dataclass(frozen=True)
class OperatorPlan:
    """An operator of the restored query, and where its state comes from."""

    operator_id: int
    name: str
    stores: tuple[str, ...]
    keyed: bool
    parallelism: int
    restored_from: int | None
    """Its id in the checkpoint; None: it is new and starts empty."""
    former_parallelism: int | None


@dataclass(frozen=True)
class OperatorChanges:
    """What is to become of the operators of a checkpoint; all others keep their ids and state."""

    mapped: Mapping[int, int]
    """Old id to new id."""
    dropped: Collection[int]
    added: Mapping[int, NewOperator]
    allow_non_restored_state: bool


NO_CHANGES = OperatorChanges({}, (), {}, False)


def check_parallelism(parallelism: int, max_parallelism: int) -> None:
    """Raises InvalidParallelismError unless the key groups can be cut into so many ranges."""
    if not 1 <= parallelism <= max_parallelism:
        raise InvalidParallelismError.partitions(parallelism, max_parallelism)


def check_max_parallelism(max_parallelism: int) -> None:
    if not 1 <= max_parallelism <= DEFAULT_MAX_PARALLELISM:
        raise InvalidParallelismError.key_groups(max_parallelism, DEFAULT_MAX_PARALLELISM)


def plan_operators(
    operators: Sequence[OperatorState], parallelism: int, changes: OperatorChanges = NO_CHANGES
) -> tuple[OperatorPlan, ...]:
    """The operators of the restored query, by their new ids.

    Raises OperatorMappingError if the changes lead to no query, NonRestoredStateError if they
    leave state behind without leave, and what `check_redistribution` raises.
    """
    known = {operator.operator_id: operator for operator in operators}
    for operator_id in (*changes.mapped, *changes.dropped):
        if operator_id not in known:
            raise OperatorMappingError.unknown(operator_id, list(map(_in_words, operators)))
    for operator_id in changes.dropped:
        if operator_id in changes.mapped:
            raise OperatorMappingError.collision(
                changes.mapped[operator_id],
                [f"{_in_words(known[operator_id])}, which is dropped,", "it"],
            )
    moved = _claims(known, changes)
    left = [known[operator_id] for operator_id in known if operator_id not in moved.values()]
    if left and not changes.allow_non_restored_state:
        _refuse_displacement(known, changes, moved)
        raise NonRestoredStateError(list(map(_in_words, left)))
    plans = [
        _added(new_id, changes.added[new_id], parallelism)
        if old_id is None
        else _restored(new_id, known[old_id], parallelism)
        for new_id, old_id in sorted(moved.items())
    ]
    _refuse_holes(plans, changes)
    return tuple(plans)


def _claims(known: Mapping[int, OperatorState], changes: OperatorChanges) -> dict[int, int | None]:
    """New id to old id, None where an operator is added. Who was moved or added to an id takes it
    from the operator that has had it; but two that were asked for are a contradiction."""
    claims: dict[int, int | None] = {}
    for old_id, new_id in changes.mapped.items():
        if new_id in claims:
            both = (known[old_id], known[claims[new_id] or 0])
            raise OperatorMappingError.collision(new_id, list(map(_in_words, both)))
        claims[new_id] = old_id
    for new_id, added in changes.added.items():
        if new_id in claims:
            both_words = [_in_words(known[claims[new_id] or 0]), f"the new {added.name}"]
            raise OperatorMappingError.collision(new_id, both_words)
        claims[new_id] = None
    for old_id in known:
        if old_id not in changes.mapped and old_id not in changes.dropped:
            claims.setdefault(old_id, old_id)
    return claims


def _refuse_displacement(
    known: Mapping[int, OperatorState], changes: OperatorChanges, moved: Mapping[int, int | None]
) -> None:
    """An operator that is added in front of others moves them up: says how, if they were not."""
    displaced = [
        operator_id
        for operator_id in known
        if operator_id in changes.added
        and operator_id not in changes.dropped
        and operator_id not in moved.values()
    ]
    if not displaced:
        return
    places = dict(changes.mapped)
    free = (n for n in count() if n not in changes.added and n not in changes.mapped.values())
    for operator_id in sorted(known):
        if operator_id not in places and operator_id not in changes.dropped:
            places[operator_id] = next(free)
    options = [f"--map-operator {old}={new}" for old, new in sorted(places.items()) if old != new]
    raise OperatorMappingError.displaced(
        [f"{_in_words(known[one])} by the new {changes.added[one].name}" for one in displaced],
        options,
        [f"--drop-operator {one}" for one in displaced],
    )


def _refuse_holes(plans: Sequence[OperatorPlan], changes: OperatorChanges) -> None:
    ids = [plan.operator_id for plan in plans]
    if ids != list(range(len(ids))):
        options = [
            f"--add-operator {number}={changes.added[plan.operator_id].text}"
            if plan.restored_from is None
            else f"--map-operator {plan.restored_from}={number}"
            for number, plan in enumerate(plans)
            if plan.restored_from != number
        ]
        raise OperatorMappingError.holes(ids, options)


def _in_words(operator: OperatorState) -> str:
    return f"operator {operator.operator_id} ({operator.operator_name})"


def check_redistribution(operator: OperatorState, parallelism: int) -> None:
    """Raises OperatorStateModesError or OperatorStateTooLargeError if the partitions of an operator
    could not load their operator state, however small the keyed state may be."""
    for store in operator.subtasks[0].handles:
        written = [
            handle.operator_state.states if handle.operator_state else ()
            for handle in operator.handles
            if handle.store_name == store.store_name
        ]
        size = bytes_of_largest(written, parallelism)
        if size > MAX_BLOB_BYTES:
            raise OperatorStateTooLargeError(_in_words(operator), size, parallelism, MAX_BLOB_BYTES)


def _restored(new_id: int, operator: OperatorState, parallelism: int) -> OperatorPlan:
    check_redistribution(operator, parallelism if operator.keyed else 1)
    return OperatorPlan(
        operator_id=new_id,
        name=operator.operator_name,
        stores=tuple(handle.store_name for handle in operator.subtasks[0].handles),
        keyed=operator.keyed,
        parallelism=parallelism if operator.keyed else 1,
        restored_from=operator.operator_id,
        former_parallelism=operator.parallelism,
    )


def _added(new_id: int, added: NewOperator, parallelism: int) -> OperatorPlan:
    return OperatorPlan(
        operator_id=new_id,
        name=added.name,
        stores=added.stores,
        keyed=added.keyed,
        parallelism=parallelism if added.keyed else 1,
        restored_from=None,
        former_parallelism=None,
    )


def ids_of(operators: Sequence[OperatorPlan], manifest_id: str, at_least: int = 0) -> StateIds:
    """What the commit log says once every store is to be loaded from the manifest.

    Spark looks ids up by partition: there is one for each of the old parallelism and the new one,
    and `at_least` so many. Operators that are in one place have one.
    """

    def entries(plan: OperatorPlan) -> int:
        if not plan.keyed:
            return 1
        return max(plan.parallelism, plan.former_parallelism or 1, at_least)

    return {
        plan.operator_id: [[manifest_id] * len(plan.stores)] * entries(plan) for plan in operators
    }


def state_of(
    plan: OperatorPlan,
    operators: Sequence[OperatorState],
    manifest_id: str,
    version: int,
    max_parallelism: int,
) -> OperatorState:
    """The state of an operator as the manifest lists it: as it was, under its new id."""
    for operator in operators:
        if operator.operator_id == plan.restored_from:
            return _renamed(operator, plan.operator_id)
    return _empty(plan, manifest_id, version, max_parallelism)


def _renamed(operator: OperatorState, operator_id: int) -> OperatorState:
    if operator.operator_id == operator_id:
        return operator
    subtasks = (
        replace(
            subtask,
            handles=tuple(replace(handle, operator_id=operator_id) for handle in subtask.handles),
        )
        for subtask in operator.subtasks
    )
    return replace(operator, operator_id=operator_id, subtasks=tuple(subtasks))


def _empty(
    plan: OperatorPlan, manifest_id: str, version: int, max_parallelism: int
) -> OperatorState:
    """One partition that owns all key groups and has no file."""
    owned = range_of(0, 1, max_parallelism)
    handles = (
        StateHandle(
            operator_id=plan.operator_id,
            operator_name=plan.name,
            store_name=store,
            partition=0,
            version=version,
            id=manifest_id,
            base_id=None,
            keyed=plan.keyed,
            parallelism=1,
            max_parallelism=max_parallelism,
            first_key_group=owned.first,
            last_key_group=owned.last,
            changed_rows=0,
            change_digest="0" * 16,
            families=(),
        )
        for store in plan.stores
    )
    return OperatorState(
        plan.operator_id,
        plan.name,
        1,
        max_parallelism,
        plan.keyed,
        (OperatorSubtaskState(0, tuple(handles)),),
    )


@dataclass(frozen=True)
class Share:
    """What a store of one new partition is made of."""

    store_name: str
    partition: int
    key_groups: KeyGroupRange
    sources: tuple[int, ...]
    """The partitions that had these key groups."""
    families: tuple[FamilyFiles, ...]


def shares(operator: OperatorState, parallelism: int) -> Iterator[Share]:
    """What the stores of an operator are made of with another parallelism: what a load works out
    from the manifest. Key groups keep their number."""
    parallelism = parallelism if operator.keyed else 1
    by_store: dict[str, list[StateHandle]] = {}
    for handle in operator.handles:
        by_store.setdefault(handle.store_name, []).append(handle)
    for store_name, handles in by_store.items():
        for partition in range(parallelism):
            owned = range_of(partition, parallelism, operator.max_parallelism)
            first = owned.first * operator.parallelism // operator.max_parallelism
            last = owned.last * operator.parallelism // operator.max_parallelism
            sources = handles[first : last + 1]
            yield Share(
                store_name,
                partition,
                owned,
                tuple(handle.partition for handle in sources),
                slices_of(sources, owned),
            )
