"""What an import or export has done, in figures."""

from dataclasses import dataclass


@dataclass(frozen=True)
class MovedOperator:
    """A stateful operator; `rows` are those of all its stores and column families."""

    operator_id: int
    name: str
    stores: tuple[str, ...]
    parallelism: int
    rows: int


@dataclass(frozen=True)
class TransferReport:
    """The query of `source` can be started on `target`."""

    source: str
    target: str
    batch_id: int | None
    """The last committed batch, whose state was moved; None: there is none yet."""
    planned_batch_id: int | None
    """The batch that was planned but not committed: it runs next, with the same offsets."""
    former_parallelism: int
    parallelism: int
    operators: tuple[MovedOperator, ...]
    seconds: float

    @property
    def rows(self) -> int:
        return sum(operator.rows for operator in self.operators)
