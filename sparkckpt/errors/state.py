"""Errors of reading state as tables."""

from collections.abc import Sequence

from sparkckpt.errors.base import SparkckptError


class UnhashableKeyError(SparkckptError):
    """A type that Spark does not hash, or not by its value alone."""

    def __init__(self, kind: str) -> None:
        super().__init__(
            f"Keys of the type {kind} have no key group that can be worked out here. Read all keys "
            "and filter the table instead."
        )


class UnknownOperatorError(SparkckptError):
    """A checkpoint has no operator of that id, or several to choose from."""

    def __init__(self, where: str, operator_id: int | None, operators: Sequence[str]) -> None:
        has = ", ".join(operators) or "none"
        if operator_id is None:
            super().__init__(
                f"Which operator of {where} is meant? Name one (--operator ID). It has {has}."
            )
            return
        super().__init__(f"{where} has no operator {operator_id}. It has {has}.")


class UnknownStateError(SparkckptError):
    """An operator has no state of that name, or several to choose from."""

    def __init__(self, where: str, name: str | None, states: Sequence[str]) -> None:
        has = ", ".join(states) or "none yet"
        if name is None:
            super().__init__(
                f"Which state of {where} is meant? Name one (--state NAME). It has {has}."
            )
            return
        super().__init__(f"{where} has no state {name!r}. It has {has}.")


class InvalidKeyError(SparkckptError):
    """A key to look up does not have the fields or types of the state's grouping key."""

    def __init__(self, why: str, columns: Sequence[str]) -> None:
        form = ", ".join(columns) or "no columns: all its state has one key, {}"
        super().__init__(f"The key cannot be looked up: {why}. The state's key has {form}.")


class InvalidKeyGroupsError(SparkckptError):
    """Key groups that do not exist were asked for."""

    def __init__(self, text: str, max_parallelism: int) -> None:
        super().__init__(
            f"{text} are no key groups: give one or FIRST-LAST, from 0 to {max_parallelism - 1}."
        )


class CheckpointSubsumedError(SparkckptError):
    """A running query has removed the checkpoint that was being read."""

    def __init__(self, which: str) -> None:
        super().__init__(
            f"The running query has removed {which} in the meantime, and the state it had. Read "
            "again, which takes the newest checkpoint, or have the query keep more of them "
            "(checkpoint.retained)."
        )


class ReaderNotInstalledError(SparkckptError):
    """A package that a form of reading needs is not installed."""

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(
            f"{what} needs the package {package}, which is not installed. Install it with: "
            f"pip install 'sparkckpt[{extra}]'"
        )


class DifferentStateError(SparkckptError):
    """Two checkpoints hold states that cannot be compared."""

    def __init__(self, why: str) -> None:
        super().__init__(f"The two states cannot be compared: {why}.")
