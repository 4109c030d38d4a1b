"""Errors of the coordinator and of where it registers checkpoints."""

from sparkckpt.errors.base import SparkckptError


class CheckpointNotStoredError(SparkckptError):
    """A checkpoint could not be stored; what is left of it, if anything, is not one."""

    def __init__(self, checkpoint_id: int, why: str) -> None:
        super().__init__(
            f"Checkpoint {checkpoint_id} was not stored: {why} The query goes on, and its next "
            "checkpoint makes up for this one."
        )


class PossiblyInconsistentCheckpointError(SparkckptError):
    """A checkpoint may or may not have been stored, and is left as it is."""

    def __init__(self, checkpoint_id: int, where: str, why: str) -> None:
        super().__init__(
            f"Checkpoint {checkpoint_id} may or may not have been stored: {why} {where} is kept as "
            "it is. The next start of the query finds out; until then do not rely on it."
        )


class NewerOwnerError(SparkckptError):
    """Another coordinator has taken over; this one may not complete or delete anything any more."""

    def __init__(self, where: str) -> None:
        super().__init__(
            f"A newer coordinator owns {where}; this one leaves everything there as it is. If no "
            "second run of the query is meant to be there, stop it."
        )


class OwnedElsewhereError(SparkckptError):
    """Another coordinator is at work where one that was started anew would go on."""

    def __init__(self, where: str, owner: str) -> None:
        super().__init__(
            f"{where} is owned by another coordinator ({owner}). This run of the query goes on "
            "without checkpoints until that one has ended. If no second run is meant to be there, "
            "stop it."
        )


class StoreUnavailableError(SparkckptError):
    """Where completed checkpoints are registered cannot be used; nothing was stored."""


class ZooKeeperUnavailableError(StoreUnavailableError):
    """ZooKeeper does not answer, or not as it should."""

    def __init__(self, quorum: str, why: str) -> None:
        super().__init__(
            f"ZooKeeper at {quorum} cannot be used: {why}. The query goes on without checkpoints "
            "until it can be. Check that its servers run and are reachable from Spark's driver."
        )


class ZooKeeperNotConfiguredError(StoreUnavailableError):
    """Checkpoints are to be registered in ZooKeeper, and something that it takes is missing."""

    @classmethod
    def quorum(cls, key: str, quorum: str, why: str) -> "ZooKeeperNotConfiguredError":
        return cls(
            f"store=zookeeper needs {key} with ZooKeeper's servers, as host:port,host:port, but it "
            f"is {quorum!r}: {why}. The query runs without checkpoints until it is started again "
            "with that option, or with store=files."
        )

    @classmethod
    def client(cls, python: str) -> "ZooKeeperNotConfiguredError":
        return cls(
            f"store=zookeeper needs the package kazoo, which {python} does not have. The query "
            "runs without checkpoints until `pip install 'sparkckpt[zookeeper]'` has installed it "
            "there, or until it is started again with store=files."
        )


class BrokenPipeFrameError(SparkckptError):
    """What came over the pipe between the driver and the coordinator is no frame."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"The pipe between Spark's driver and the checkpoint coordinator is broken: {why}. "
            "The driver starts a new coordinator by itself. If this goes on, check that the "
            "coordinator's Python has the same sparkckpt release as the jar."
        )
