"""Errors of rescaling and restoring."""

from collections.abc import Sequence

from sparkckpt.errors.base import SparkckptError


class CheckpointNotRestorableError(SparkckptError):
    """A checkpoint lacks something that a restore needs."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path} cannot be restored: {why}.")


class CheckpointChangedError(SparkckptError):
    """A query has run on a directory while a command was changing it."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"Spark's logs in {path} have changed meanwhile: a query runs there, which without its "
            "coordinator cannot be seen beforehand. Its parallelism was not changed. Stop the "
            "query and run the same command again."
        )


class TargetNotEmptyError(SparkckptError):
    """A restore would mix with what a directory holds already."""

    def __init__(self, path: str, names: Sequence[str]) -> None:
        some = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        super().__init__(
            f"{path} is not empty: it holds {some}. Restore into a new directory, and start the "
            "query with that one as its checkpointLocation."
        )


class InvalidParallelismError(SparkckptError):
    """A checkpoint cannot be run with so many partitions or key groups."""

    @classmethod
    def partitions(cls, parallelism: int, max_parallelism: int) -> "InvalidParallelismError":
        return cls(
            f"The parallelism cannot be {parallelism}: this checkpoint has {max_parallelism} key "
            f"groups, so it must be from 1 to {max_parallelism}."
        )

    @classmethod
    def key_groups(cls, max_parallelism: int, largest: int) -> "InvalidParallelismError":
        return cls(
            f"The number of key groups, maxParallelism, cannot be {max_parallelism}: it must be "
            f"from 1 to {largest}."
        )


class OperatorMappingError(SparkckptError):
    """Operators were mapped, dropped or added in a way that leads to no query."""

    @classmethod
    def unknown(cls, operator_id: int, known: Sequence[str]) -> "OperatorMappingError":
        has = ", ".join(known) if known else "none"
        return cls(f"The checkpoint has no operator {operator_id}. Its operators: {has}.")

    @classmethod
    def collision(cls, operator_id: int, claimants: Sequence[str]) -> "OperatorMappingError":
        return cls(
            f"{' and '.join(claimants)} cannot both become operator {operator_id}. Give one of "
            "them another id, or drop it."
        )

    @classmethod
    def holes(cls, ids: Sequence[int], options: Sequence[str]) -> "OperatorMappingError":
        return cls(
            f"The operators of the restored query would have the ids {list(ids)}, but Spark counts "
            "them from 0 without a gap. If their order is right, map and add them with: "
            f"{' '.join(options) or 'no option at all'}"
        )

    @classmethod
    def displaced(
        cls, displaced: Sequence[str], moves: Sequence[str], drops: Sequence[str]
    ) -> "OperatorMappingError":
        return cls(
            f"The place of {', and that of '.join(displaced)} would be taken. An operator that is "
            "added in front of others moves them up: if that is meant, map them with: "
            f"{' '.join(moves)}. If it replaces what was there, leave that out with: "
            f"{' '.join(drops)} --allow-non-restored-state"
        )

    @classmethod
    def addition(cls, operator_id: int, text: str, why: str) -> "OperatorMappingError":
        return cls(f"Operator {operator_id} cannot be added as {text!r}: {why}.")


class NonRestoredStateError(SparkckptError):
    """State of a checkpoint would be lost by a restore."""

    def __init__(self, operators: Sequence[str]) -> None:
        super().__init__(
            f"The state of {', '.join(operators)} would not be restored. If that is meant, allow "
            "it with --allow-non-restored-state (allow_non_restored_state=True)."
        )
