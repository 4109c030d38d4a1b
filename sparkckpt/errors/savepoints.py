"""Errors of taking, using and disposing of savepoints."""

from collections.abc import Sequence

from sparkckpt.errors.base import SparkckptError


class UnfinishedSavepointError(SparkckptError):
    """A directory has the beginning of a savepoint."""

    def __init__(self, path: str, source: str) -> None:
        of = f" of {source}" if source else ""
        super().__init__(
            f"{path} is not a savepoint yet: it is being taken, or was broken off. Nothing can be "
            f"restored from it. Take the savepoint{of} again, with the same target, or remove what "
            f"there is with: sparkckpt dispose {path}"
        )


class NotASavepointError(SparkckptError):
    """A directory that is not a savepoint was to be treated as one."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path} is not a savepoint, and nothing was deleted: {why}.")


class IsASavepointError(SparkckptError):
    """A savepoint was taken for the checkpointLocation of a query."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} is a savepoint, which belongs to you and is never changed. Restore it into a "
            "new directory with `sparkckpt restore`, or delete it with `sparkckpt dispose`."
        )


class SavepointExistsError(SparkckptError):
    """The target of a savepoint cannot be written to."""

    @classmethod
    def complete(cls, path: str, name: str) -> "SavepointExistsError":
        return cls(
            f"{path} is a savepoint already ({name}). Give another target, or delete that one with "
            "`sparkckpt dispose` first."
        )

    @classmethod
    def not_empty(cls, path: str, names: Sequence[str]) -> "SavepointExistsError":
        some = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        return cls(
            f"{path} is not empty: it holds {some}. Give a directory for the savepoint that does "
            "not exist or is empty."
        )

    @classmethod
    def inside_state(cls, path: str) -> "SavepointExistsError":
        return cls(
            f"{path} lies among the query's own state files, where its coordinator would delete a "
            "savepoint as orphaned. Give a directory elsewhere."
        )

    @classmethod
    def under_way(cls, path: str, source: str, by: str) -> "SavepointExistsError":
        return cls(
            f"A savepoint of {source} is being taken in {path}, by {by}, or was broken off there. "
            "Give another target; or, if it was broken off, remove what there is with: "
            f"sparkckpt dispose {path}"
        )


class SavepointInUseError(SparkckptError):
    """A query still reads files of a savepoint."""

    def __init__(self, path: str, targets: Sequence[str]) -> None:
        super().__init__(
            f"{path} was not deleted: what was restored from it without a copy still needs its "
            f"files: {', '.join(targets)}. A query gives them up once its own merges have replaced "
            "them, some batches after it has started: try again then, or delete with --force "
            "(force=True) what no query needs any more."
        )


class SavepointFailedError(SparkckptError):
    """The Spark job that merges state has failed."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"No savepoint was taken in {path}, as the Spark job has failed: {why}")


class StopRefusedError(SparkckptError):
    """A query was not stopped with a savepoint."""

    @classmethod
    def goes_on(cls, query: str, why: str) -> "StopRefusedError":
        return cls(f"{query} was not stopped, and goes on: {why}")

    @classmethod
    def not_running(cls, path: str) -> "StopRefusedError":
        return cls(
            f"No query can be seen to run on {path}: it has ended, or its coordinator is off or "
            "has not begun yet. Of a query that has ended, take the savepoint without --stop "
            "(sparkckpt.savepoint)."
        )

    @classmethod
    def asked_already(cls, query: str) -> "StopRefusedError":
        return cls(f"{query} is being stopped with a savepoint by somebody else already.")

    @classmethod
    def went_on(cls, query: str, path: str, batch_id: int) -> "StopRefusedError":
        return cls(
            f"{query} was not stopped at the state of the savepoint: it has gone on after batch "
            f"{batch_id}, or cannot be stopped. The savepoint in {path} is sound. Dispose of it "
            "and try again, or stop the query by other means."
        )
