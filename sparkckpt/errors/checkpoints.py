"""Errors of looking for, keeping and cleaning checkpoints."""

from collections.abc import Sequence

from sparkckpt.errors.base import SparkckptError


class NotACheckpointError(SparkckptError):
    """A path does not hold what a Spark checkpoint directory holds."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(
            f"{path} is not a Spark checkpoint directory: {why}. "
            "Give the directory that the query was started with as checkpointLocation."
        )


class ForeignCheckpointError(SparkckptError):
    """A checkpoint directory of Spark's whose state is not kept by sparkckpt."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} is a Spark checkpoint directory, but its state is not kept by sparkckpt: it "
            "has no _sparkckpt directory. A query that was begun with Spark's own state store "
            "stays on it until `sparkckpt import` has brought it into a new checkpointLocation."
        )


class RestorePendingError(SparkckptError):
    """A restore into a directory has begun and not ended."""

    def __init__(self, path: str, source: str = "", by: str = "", pinned: bool = False) -> None:
        what = f"A restore into {path} " + (f"from {source} " if source else "")
        if by:
            super().__init__(f"{what}is under way in {by}. Wait for it.")
            return
        clean = ""
        if pinned:
            clean = (
                f"; then `sparkckpt clean {source} --delete` removes what the source keeps for it"
            )
        super().__init__(
            f"{what}has not been finished: it is under way, or was broken off. Run the same "
            f"restore again, which goes on or starts over, or delete the directory{clean}."
        )


class ClaimedCheckpointError(SparkckptError):
    """A query that was restored from a directory owns its state now."""

    def __init__(self, path: str, by: str) -> None:
        super().__init__(
            f"{path} was claimed by a restore into {by}, which owns its state now and deletes what "
            "it does not need. Use that directory instead. If that restore never ended and is not "
            "wanted any more, delete _sparkckpt/claimed.json."
        )


class QueryRunningError(SparkckptError):
    """Something was asked for that may be done only while no query runs."""

    def __init__(self, path: str, owner: str, until: str, outcome: str) -> None:
        super().__init__(
            f"A query runs on {path} ({owner}){outcome}. Stop the query first. If it was killed, "
            f"try again after {until}, when its lease has expired."
        )


class CleaningBlockedError(SparkckptError):
    """It is not known which state files are needed."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(
            f"Nothing of {path} can be called an orphan, and nothing was deleted, since a "
            f"checkpoint there may need any file: {why}"
        )


class CheckpointNotFoundError(SparkckptError):
    """A checkpoint directory does not hold the checkpoint asked for."""

    def __init__(
        self, path: str, wanted: str, available: Sequence[str], why_none: str = ""
    ) -> None:
        has = f"It has {', '.join(available)}." if available else why_none
        super().__init__(f"{path} has no checkpoint {wanted}. {has}".rstrip())
