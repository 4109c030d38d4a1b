"""How a checkpoint is to be restored, and whether it can be: the whole decision, before any write.

Pure: what the source has comes in as values.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sparkckpt.coordinator.restored import CLAIM, COPY, NO_CLAIM
from sparkckpt.errors import InvalidConfError
from sparkckpt.keygroups import DEFAULT_MAX_PARALLELISM
from sparkckpt.restoration.additions import new_operator
from sparkckpt.restoration.plan import (
    OperatorChanges,
    OperatorPlan,
    check_max_parallelism,
    check_parallelism,
    plan_operators,
)
from sparkckpt.restoration.source import Snapshot
from sparkckpt.restoration.state import parallelism_in
from sparkckpt.sparklog import offsets_path

MODES = (NO_CLAIM, CLAIM, COPY)


@dataclass(frozen=True)
class RestoreOptions:
    """How a checkpoint is restored; see `restore`."""

    parallelism: int | None = None
    mode: str = NO_CLAIM
    allow_non_restored_state: bool = False
    map_operators: Mapping[int, int] = field(default_factory=dict)
    drop_operators: Sequence[int] = ()
    add_operators: Mapping[int, str] = field(default_factory=dict)
    max_parallelism: int | None = None

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise InvalidConfError.value("mode", self.mode, f"it must be {', '.join(MODES)}")


@dataclass(frozen=True)
class RestorePlan:
    """What is to be done, before anything is."""

    snapshot: Snapshot
    operators: tuple[OperatorPlan, ...]
    changes: OperatorChanges
    former_parallelism: int
    parallelism: int
    max_parallelism: int
    former_max_parallelism: int

    @property
    def not_restored(self) -> tuple[str, ...]:
        kept = {plan.restored_from for plan in self.operators}
        return tuple(
            f"{operator.operator_id} ({operator.operator_name})"
            for operator in self.snapshot.metadata.operator_states
            if operator.operator_id not in kept
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(_warnings(self.snapshot))


def plan_restore(
    snapshot: Snapshot, key_groups: int | None, options: RestoreOptions
) -> RestorePlan:
    """What is to be done; raises if it is not possible. `key_groups` are those that the source is
    bound to, if that is known."""
    metadata = snapshot.metadata
    operators = metadata.operator_states
    former_max = key_groups or max(
        (operator.max_parallelism for operator in operators), default=DEFAULT_MAX_PARALLELISM
    )
    if options.max_parallelism is not None:
        check_max_parallelism(options.max_parallelism)
    max_parallelism = options.max_parallelism or former_max
    former = _former_parallelism(snapshot)
    parallelism = former if options.parallelism is None else options.parallelism
    check_parallelism(parallelism, max_parallelism)
    changes = OperatorChanges(
        mapped=options.map_operators,
        dropped=options.drop_operators,
        added={
            operator_id: new_operator(operator_id, text, metadata.confs)
            for operator_id, text in options.add_operators.items()
        },
        allow_non_restored_state=options.allow_non_restored_state,
    )
    plans = plan_operators(operators, parallelism, changes)
    return RestorePlan(snapshot, plans, changes, former, parallelism, max_parallelism, former_max)


def _former_parallelism(snapshot: Snapshot) -> int:
    """What the source would go on with; of an older checkpoint, what it ran with."""
    metadata, newest = snapshot.metadata, snapshot.newest_offsets
    if newest is not None:
        stated = parallelism_in(newest.content, newest.where, metadata.batch_id)
    else:
        path = offsets_path(metadata.batch_id)
        stated = parallelism_in(metadata.master_state(path), path, metadata.batch_id)
    keyed = (o.parallelism for o in metadata.operator_states if o.keyed)
    return stated or max(keyed, default=1)


def _warnings(snapshot: Snapshot) -> Iterator[str]:
    batch_id, last = snapshot.metadata.batch_id, snapshot.last_committed
    if snapshot.damage is not None:
        yield (
            f"The newest checkpoint cannot be used, so the last committed batch, {batch_id}, was "
            f"restored from its handles instead. {snapshot.damage}"
        )
    if last is not None and last > batch_id:
        first = batch_id + 1
        again = f"batch {last}" if last == first else f"batches {first} to {last}"
        yield (
            f"The source has gone on to batch {last}: {again} will be run again. A sink that takes "
            "each batch exactly once, by its number, ignores what it has had (files with "
            "_spark_metadata; tables with a transaction id where the query keeps its id), and any "
            "other has that output twice. Give the query a new sink, or remove their output."
        )
