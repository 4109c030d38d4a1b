"""Errors of moving checkpoints in from Spark's own state stores and out to them."""

from sparkckpt.errors.base import SparkckptError


class AlreadyOnSparkckptError(SparkckptError):
    """A checkpoint is to be imported that sparkckpt keeps already."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} is kept by sparkckpt already: there is nothing to import. To run its query "
            "with another parallelism or in another directory, use `sparkckpt rescale` or "
            "`sparkckpt restore`."
        )


class UnsupportedProviderError(SparkckptError):
    """The state of a checkpoint is kept by a provider that is neither Spark's nor ours."""

    def __init__(self, path: str, provider: str) -> None:
        super().__init__(
            f"The state of {path} is kept by {provider}, which sparkckpt cannot read. Only "
            "checkpoints of Spark's RocksDB and HDFS-backed state stores can be imported."
        )


class OperatorMetadataMissingError(SparkckptError):
    """A checkpoint has state that no operator metadata describes."""

    def __init__(self, path: str, operator_id: int) -> None:
        super().__init__(
            f"{path} has state of operator {operator_id}, but no metadata that says which: it was "
            "written by a Spark older than 4.0. Run one batch of its query on it with a newer "
            "Spark, which adds the metadata, and try again."
        )


class SourceChangedError(SparkckptError):
    """A checkpoint went on while it was being moved."""

    def __init__(self, path: str, target: str) -> None:
        super().__init__(
            f"The query of {path} has run on while its checkpoint was being moved, so {target} is "
            "not finished and cannot be used. Stop the query and run the same command again."
        )


class TransferFailedError(SparkckptError):
    """The state of a checkpoint could not be moved."""

    def __init__(self, source: str, target: str, why: str) -> None:
        super().__init__(
            f"The state of {source} could not be moved to {target}: {why.rstrip('.')}. {source} "
            f"was not changed, and {target} cannot be used. Once the cause is gone, run the same "
            "command again."
        )
