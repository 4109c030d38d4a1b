"""Errors of stateful Python functions that run with their state in-band."""

from sparkckpt.errors.base import SparkckptError


class WireVersionError(SparkckptError):
    """The JVM and the Python worker belong to different versions of sparkckpt."""

    def __init__(self, found: object, known: int) -> None:
        super().__init__(
            f"The executor exchanges state with Python in version {found}, and the Python worker "
            f"knows version {known}. Install the same version of sparkckpt for the driver and for "
            "the Python workers, and restart the application."
        )


class NotInBandError(SparkckptError):
    """A function that only our operator can run was run by Spark's own."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} runs only on sparkckpt's operator, and this query does not use it: its "
            "checkpoint was begun with another state store, or it is not a streaming query. Start "
            "it with a new checkpointLocation, or bring the old one over with `sparkckpt import`."
        )


class OperatorStateNotInBandError(SparkckptError):
    """A processor has operator state, which Spark's own operator would leave out."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(
            f"{what} has operator state, which only sparkckpt's operator keeps, and cannot run on "
            f"it: {why}. Remove the cause, or the methods initialize_state and snapshot_state."
        )


class UnsupportedTypeError(SparkckptError):
    """A schema has a type whose values cannot travel beside the rows."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(
            f"{what} cannot run: {why}. Cast it to a type that Arrow has, text to one without such "
            "a collation, or use Spark's transformWithState."
        )


class StateFetchError(SparkckptError):
    """State could not be fetched from the executor."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"State could not be fetched from the executor: {why}. The task fails and is tried "
            "again; the executor's log has more."
        )


class UndeclaredStateError(SparkckptError):
    """A processor asks for another state variable in a task than on the driver."""

    def __init__(self, name: str, known: list[str]) -> None:
        super().__init__(
            f"init() asks for state variable {name!r}, which it did not ask for when the query was "
            f"defined; then it asked for {known}. The variables of a processor must not depend on "
            "where it is initialized."
        )


class VectorizedResultError(SparkckptError):
    """A VectorizedProcessor returned what cannot be its result."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(
            f"The result of a VectorizedProcessor cannot be used: its {what} {why}. Return "
            "sparkckpt.Changes(output=..., state=...) with Arrow tables of the schemas that "
            "apply_vectorized was given."
        )


class FoldError(SparkckptError):
    """A fold is asked for something that cannot be folded."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"sparkckpt.fold cannot compute {name!r}: {why}.")


class OperatorStateModeError(SparkckptError):
    """An operator state is asked for in another mode than it has."""

    def __init__(self, name: str, stored: str, asked: str) -> None:
        super().__init__(
            f"Operator state {name!r} is kept as {stored} state, and was asked for as {asked}. Ask "
            "for it as it is kept, or use another name."
        )
