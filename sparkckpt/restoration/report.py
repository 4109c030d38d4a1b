"""What a rescale or a restore has done, in figures."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sparkckpt.format.metadata import OperatorState
from sparkckpt.restoration.plan import OperatorPlan


@dataclass(frozen=True)
class OperatorReport:
    """An operator of the query as it goes on."""

    operator_id: int
    name: str
    restored_from: int | None
    """Its id in the checkpoint; None: it starts empty."""
    former_parallelism: int | None
    parallelism: int
    files: int
    bytes: int


@dataclass(frozen=True)
class RescaleReport:
    """The query at `path` goes on with another parallelism; or with the one it had, if it had it
    already and nothing was changed."""

    path: str
    changed: bool
    checkpoint_id: int | None
    """The checkpoint that the state was found in; None: none was needed."""
    batch_id: int | None
    """The last committed batch; None: there is none yet."""
    former_parallelism: int | None
    parallelism: int
    operators: tuple[OperatorReport, ...]
    manifest: str | None
    files: int
    """So many files hold the state. None of them was changed."""
    bytes: int
    seconds: float


@dataclass(frozen=True)
class RestoreReport:
    """A query can be started on `target`, from the state that `source` had after a batch."""

    source: str
    target: str
    mode: str
    checkpoint_id: int | None
    """None: it was restored from the last committed batch, which has no checkpoint."""
    batch_id: int
    planned_batch_id: int | None
    """The batch that the source had planned but not committed: it runs next, with the same
    offsets."""
    query_id: str
    former_parallelism: int | None
    parallelism: int
    max_parallelism: int
    operators: tuple[OperatorReport, ...]
    not_restored: tuple[str, ...]
    """Operators whose state was left behind."""
    files_referenced: int
    """Files of the source that the target depends on."""
    files_copied: int
    bytes: int
    seconds: float
    pin: str | None
    """The pin in the source that keeps its files, until the target does not need them any more."""
    warnings: tuple[str, ...]


def operator_reports(
    plans: Sequence[OperatorPlan], operators: Sequence[OperatorState]
) -> tuple[OperatorReport, ...]:
    by_id = {operator.operator_id: operator for operator in operators}
    reports = []
    for plan in plans:
        state = [by_id[plan.restored_from]] if plan.restored_from is not None else []
        files, size = totals(state)
        reports.append(
            OperatorReport(
                plan.operator_id,
                plan.name,
                plan.restored_from,
                plan.former_parallelism,
                plan.parallelism,
                files,
                size,
            )
        )
    return tuple(reports)


def totals(operators: Iterable[OperatorState]) -> tuple[int, int]:
    """Files and bytes of state; what several stores refer to counts once."""
    lengths = {
        (data.path, data.offset): data.length
        for operator in operators
        for handle in operator.handles
        for data in handle.data
    }
    return len({path for path, _ in lengths}), sum(lengths.values())
