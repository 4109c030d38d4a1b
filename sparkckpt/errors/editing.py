"""Errors of editing savepoints and of making them from tables."""

from collections.abc import Sequence

from sparkckpt.errors.base import SparkckptError


class UneditableStateError(SparkckptError):
    """A state that cannot be edited in the way that was asked for."""

    def __init__(self, state: str, what: str, why: str, instead: str) -> None:
        super().__init__(f"{what} is not possible for {state}: {why}. {instead}")


class NotASnapshotError(SparkckptError):
    """State that no checkpoint holds was to be edited."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"The last batch of {path} is in no checkpoint that could be edited. Take a savepoint "
            "first (sparkckpt.savepoint), and edit that."
        )


class EditedRowsError(SparkckptError):
    """Rows that were given for a state, or made by a function, do not fit it."""

    def __init__(self, state: str, why: str, columns: Sequence[str]) -> None:
        super().__init__(
            f"The rows for {state} do not fit it: {why}. Its columns are {', '.join(columns)}. "
            "Nothing was written."
        )


class DuplicateKeysError(SparkckptError):
    """A key has several rows where it can have one."""

    def __init__(self, state: str, key: str) -> None:
        super().__init__(
            f"The rows for {state} have a key more than once: {key}, if not others too. A key can "
            "have one row: bring its rows together first. Nothing was written."
        )


class SchemaChangeError(SparkckptError):
    """A column cannot be changed as it was asked for."""

    def __init__(self, state: str, column: str, why: str, columns: Sequence[str]) -> None:
        super().__init__(
            f"The column {column!r} of {state} was not changed: {why}. Its columns are "
            f"{', '.join(columns)}."
        )


class UnknownTypeError(SparkckptError):
    """A type is none that a column of state can have here."""

    def __init__(self, kind: object) -> None:
        super().__init__(
            f"{kind!r} is no type for a column of state. Give one of Spark's by its name, such as "
            "'long', 'string' or 'decimal(10,2)', as a pyspark DataType, or an Arrow type."
        )
