"""Every error sparkckpt raises, by name; each message says what is wrong, where, and what to do.

Callers catch `SparkckptError` or one of its subclasses. A message must never need the reader to
open the source, and no code here may decide anything: it only puts known facts into words.
"""

from collections.abc import Sequence
from pathlib import Path


class SparkckptError(Exception):
    """Base of all errors that sparkckpt raises on purpose."""


class JarNotFoundError(SparkckptError):
    """No jar of ours fits the Spark in use."""

    def __init__(self, jar: Path, minor: str, available: Sequence[str]) -> None:
        has = f"only jars for Spark {', '.join(available)}" if available else "no jar at all"
        super().__init__(
            f"sparkckpt has no jar for Spark {minor}: {jar} does not exist, this installation has "
            f"{has}. Install a sparkckpt wheel that carries it, or in a source tree run "
            "`python jvm-shim/build.py` in an environment with that pyspark."
        )


class JavaNotFoundError(SparkckptError):
    """Spark cannot start because there is no Java."""

    def __init__(self, where: str) -> None:
        super().__init__(
            f"Spark needs a Java runtime, but there is none in {where}. "
            "Install Java 17 or newer, or set JAVA_HOME to one."
        )


class UnsupportedSparkError(SparkckptError):
    """The Spark in use is one sparkckpt does not know, or used in a way it cannot serve."""

    @classmethod
    def version(cls, version: str, where: str, supported: Sequence[str]) -> "UnsupportedSparkError":
        return cls(
            f"Spark {version} ({where}) is not supported: sparkckpt runs on Spark "
            f"{' and '.join(supported)}. Install one of these, or a sparkckpt made for {version}."
        )

    @classmethod
    def remote(cls, url: str) -> "UnsupportedSparkError":
        return cls(
            f"The session builder points to a Spark Connect server ({url}), where a client cannot "
            "add a jar or a plugin. Start the server with what `sparkckpt submit-args` prints, and "
            "leave configure() out of the client."
        )


class SessionAlreadyRunningError(SparkckptError):
    """A session or its JVM runs already, without the plugin, and plugins load only at start."""

    @classmethod
    def without_plugin(cls, app_id: str, plugin: str) -> "SessionAlreadyRunningError":
        return cls(
            f"The running Spark application {app_id} was started without spark.plugins={plugin}, "
            "and Spark loads plugins only when it starts. Call sparkckpt.configure(builder) before "
            "the first getOrCreate(), in a new process if this one has started Spark already."
        )

    @classmethod
    def without_jar(cls, jar: Path) -> "SessionAlreadyRunningError":
        return cls(
            f"This process's JVM was started without {jar.name}, and a running driver takes no "
            "further jars. Under spark-submit add what `sparkckpt submit-args` prints; in a "
            "notebook or shell restart the Python process and call sparkckpt.configure(builder) "
            "before anything starts Spark."
        )


class InvalidConfError(SparkckptError):
    """An option has an impossible value or does not exist."""

    @classmethod
    def value(cls, key: str, value: object, why: str) -> "InvalidConfError":
        return cls(
            f"The option {key} has the value {value!r}, which is not valid: {why}. "
            "Correct it or remove it to use the default."
        )

    @classmethod
    def unknown(cls, name: str, similar: Sequence[str]) -> "InvalidConfError":
        hint = f"Did you mean {' or '.join(similar)}?" if similar else "See `sparkckpt options`."
        return cls(f"sparkckpt has no option {name!r}. {hint}")


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


class UnreachableStorageError(SparkckptError):
    """There is nothing that could open a path."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(
            f"{path} cannot be opened: {why}. Check its scheme, and that this Python has the "
            "fsspec package for it (s3fs for s3://, gcsfs for gs://, adlfs for abfs://)."
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


class CorruptStateError(SparkckptError):
    """A file of a checkpoint, ours or Spark's, does not hold what was written to it."""

    def __init__(self, path: str, what: str) -> None:
        self.path, self.what = path, what
        super().__init__(
            f"{path} is corrupt: {what}. Nothing of it was used. Restore the file from a copy, or "
            "restart the query from an older checkpoint or savepoint."
        )


class UnsupportedFormatVersionError(SparkckptError):
    """A file was written by a newer sparkckpt, or by a newer Spark."""

    def __init__(self, path: str, version: int, newest_known: int) -> None:
        self.path = path
        self.what = f"it has format version {version}, newer than {newest_known}"
        super().__init__(
            f"{path} has format version {version}, but this sparkckpt reads versions up to "
            f"{newest_known}. Upgrade sparkckpt to a release that reads it."
        )


class UnreadableFileError(SparkckptError):
    """Storage does not hand out a file that a checkpoint refers to."""

    def __init__(self, path: str, why: str) -> None:
        self.path, self.what = path, f"it cannot be read: {why}"
        super().__init__(
            f"{path} cannot be read: {why}. Check that it exists, that its storage is reachable "
            "and that this user may read it."
        )


class FileMissingError(UnreadableFileError):
    """A file that a checkpoint should have does not exist."""


class UnwritableFileError(SparkckptError):
    """Storage does not let a file be written or deleted."""

    @classmethod
    def write(cls, path: str, why: str) -> "UnwritableFileError":
        return cls(
            f"{path} cannot be written: {why}. Check that its storage is reachable and has room, "
            "and that this user may write there."
        )

    @classmethod
    def delete(cls, path: str, why: str) -> "UnwritableFileError":
        return cls(
            f"{path} cannot be deleted: {why}. Check that its storage is reachable and that this "
            "user may delete there."
        )


class FileExistsAlreadyError(SparkckptError):
    """A file that must be new is there already."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} exists already and was left as it is. Something else has created it: check "
            "that no second query runs on the same checkpoint directory."
        )


class UnknownFamilyError(SparkckptError):
    """A store has no column family of that name."""

    def __init__(self, where: str, family: str, available: Sequence[str]) -> None:
        has = f"It has {', '.join(available)}." if available else "It has none yet."
        super().__init__(f"The state {where} has no column family {family!r}. {has}")


class IncompatibleSchemasError(SparkckptError):
    """Files of one column family hold types that cannot be brought together."""

    def __init__(self, column: str, older: str, newer: str) -> None:
        super().__init__(
            f"The column {column!r} has type {older} in an older state file and {newer} in a newer "
            "one, and the older rows cannot be converted. Read the files one by one instead."
        )


class BrokenPipeFrameError(SparkckptError):
    """What came over the pipe between the driver and the coordinator is no frame."""

    def __init__(self, why: str) -> None:
        super().__init__(
            f"The pipe between Spark's driver and the checkpoint coordinator is broken: {why}. "
            "The driver starts a new coordinator by itself. If this goes on, check that the "
            "coordinator's Python has the same sparkckpt release as the jar."
        )


class ClassicSessionNeededError(SparkckptError):
    """Something that works inside the driver was asked for from a Spark Connect client."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} needs a classic Spark session, in the driver's own process; this one is a "
            "Spark Connect client. Call it in a driver program that is started with spark-submit "
            "or with sparkckpt.configure(builder)."
        )


class PluginNotActiveError(SparkckptError):
    """The session belongs to an application without the plugin."""

    def __init__(self, what: str, plugin: str) -> None:
        super().__init__(
            f"{what} needs sparkckpt's plugin, and this application was started without "
            f"spark.plugins={plugin}. Call sparkckpt.configure(builder) before the first "
            "getOrCreate(), or add what `sparkckpt submit-args` prints to spark-submit."
        )


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
