"""Errors of operator state."""

from collections.abc import Sequence

from sparkckpt.errors.base import SparkckptError


class OperatorStateModesError(SparkckptError):
    """Partitions have written an operator state in different modes."""

    def __init__(self, name: str, modes: Sequence[str]) -> None:
        super().__init__(
            f"The operator state {name!r} was written by different partitions as "
            f"{' and '.join(modes)}, so that it cannot be dealt out to others. Run the query as it "
            "is until all partitions have written it anew; then try again."
        )


class OperatorStateTooLargeError(SparkckptError):
    """A partition would get more operator state than there can be in one place."""

    def __init__(self, operator: str, size: int, parallelism: int, limit: int) -> None:
        super().__init__(
            f"With {parallelism} partitions, each of {operator} would get {size} bytes of operator "
            f"state, and there can be at most {limit}. Nothing was changed. Choose more partitions "
            "if it is split among them; of union state, which every partition gets whole, let the "
            "query keep less."
        )


class OperatorStateNotExportableError(SparkckptError):
    """Spark's own state stores have no place for operator state."""

    def __init__(self, path: str, states: Sequence[str]) -> None:
        super().__init__(
            f"{path} has operator state, which Spark's own state stores cannot hold: "
            f"{', '.join(states)}. Nothing was written. If it may be lost, export with "
            "--drop-operator-state."
        )
