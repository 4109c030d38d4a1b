"""Finds the Spark installation in use and the jar of ours that fits it.

Spark's traits differ between minors, so the package carries one jar per minor and the choice is
made here, by the jars that Spark will really start with. It must never import pyspark or start a
JVM, and never fall back to a jar of another minor.
"""

import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path

from sparkckpt.errors import JarNotFoundError, UnsupportedSparkError

SUPPORTED_MINORS = ("4.2", "4.3")
JARS = Path(__file__).parent / "jars"
JAR_NAME = re.compile(r"sparkckpt-spark-(\d+\.\d+)\.jar")


@dataclass(frozen=True)
class SparkInstallation:
    """A directory with Spark's jars: a SPARK_HOME or the pyspark package."""

    home: Path
    version: str

    @property
    def minor(self) -> str:
        return ".".join(self.version.split(".")[:2])

    @staticmethod
    def in_use() -> "SparkInstallation":
        """The installation that pyspark would start, looked for where pyspark looks."""
        candidates = _candidate_homes()
        for home in candidates:
            for core in sorted((home / "jars").glob("spark-core_*.jar")):
                return SparkInstallation(home, core.stem.rpartition("_")[2].partition("-")[2])
        looked_in = ", ".join(map(str, candidates)) or "SPARK_HOME and the installed packages"
        raise UnsupportedSparkError(
            f"There is no Spark in {looked_in}: no jars/spark-core_*.jar was found. "
            "Install pyspark, or correct or unset SPARK_HOME."
        )


def _candidate_homes() -> list[Path]:
    if home := os.environ.get("SPARK_HOME"):
        return [Path(home)]
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        return []
    package = Path(spec.origin).parent
    return [package / "spark-distribution", package]


def jar_path(spark: SparkInstallation | None = None) -> Path:
    """The jar for the given Spark installation, by default for the one in use."""
    spark = spark or SparkInstallation.in_use()
    if spark.minor not in SUPPORTED_MINORS:
        raise UnsupportedSparkError.version(spark.version, str(spark.home), SUPPORTED_MINORS)
    jar = JARS / f"sparkckpt-spark-{spark.minor}.jar"
    if not jar.is_file():
        found = (JAR_NAME.fullmatch(path.name) for path in sorted(JARS.glob("*.jar")))
        raise JarNotFoundError(jar, spark.minor, [match[1] for match in found if match])
    return jar
