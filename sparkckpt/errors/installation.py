"""Errors of how Spark, Java, the jar and the session were set up."""

from collections.abc import Sequence
from pathlib import Path

from sparkckpt.errors.base import SparkckptError


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
