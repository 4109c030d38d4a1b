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

    def __init__(self, path: str, missing: str) -> None:
        super().__init__(
            f"{path} is not a Spark checkpoint directory: it has no {missing}. "
            "Give the directory that the query was started with as checkpointLocation."
        )


class CheckpointNotFoundError(SparkckptError):
    """A checkpoint directory does not hold the checkpoint asked for."""

    def __init__(self, path: str, wanted: str, available: Sequence[str]) -> None:
        has = f"It has {', '.join(available)}." if available else "It has none yet."
        super().__init__(f"{path} has no checkpoint {wanted}. {has}")


class CorruptStateError(SparkckptError):
    """A file of ours does not hold what was written to it."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(
            f"{path} is corrupt: {what}. Nothing of it was used. Restore the file from a copy, or "
            "restart the query from an older checkpoint or savepoint."
        )


class UnsupportedFormatVersionError(SparkckptError):
    """A file was written by a newer sparkckpt."""

    def __init__(self, path: str, version: int, newest_known: int) -> None:
        super().__init__(
            f"{path} has format version {version}, but this sparkckpt reads versions up to "
            f"{newest_known}. Upgrade sparkckpt to the release that wrote the file, or a newer one."
        )


class UnreadableFileError(SparkckptError):
    """Storage does not hand out a file that a checkpoint refers to."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(
            f"{path} cannot be read: {why}. Check that it exists, that its storage is reachable "
            "and that this user may read it."
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
