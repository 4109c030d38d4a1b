"""Compiles the JVM shim into one jar per Spark minor, with the Scala compiler that PySpark ships.

The wheel's build hook, the Makefile and the tests all build through this file, so that a jar is
made in one way only. Spark's traits differ between minors, hence a jar per minor, made of
`src/main/scala` and `src/main/scala-<minor>`. The digest of everything that went into a jar stands
in its manifest, and a jar whose digest still holds is left alone. It imports nothing but the
standard library (a build environment has no more) and never touches the network.
"""

import argparse
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "jvm-shim" / "src"
JARS = ROOT / "sparkckpt" / "jars"
TEST_JARS = ROOT / "build" / "test-jars"

SUPPORTED_MINORS = ("4.2", "4.3")
MINIMUM_JAVA = 17
SPARK_HOMES_VARIABLE = "SPARKCKPT_SPARK_HOMES"

JVM_OPTIONS = ("-Xss8m", "-Xmx2g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
SCALAC_OPTIONS = (
    "-encoding",
    "UTF-8",
    "-deprecation",
    "-feature",
    "-unchecked",
    "-Xlint",
    "-Werror",
)
TEST_SCALAC_OPTIONS = (*SCALAC_OPTIONS, "-Xlint:-infer-any")
"""The harness hands values of mixed types to Python: there, Any is meant."""

DIGEST_ATTRIBUTE = "Sparkckpt-Digest"
ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)


class BuildError(Exception):
    """The jar could not be built; the message says why and what to do."""


@dataclass(frozen=True)
class SparkHome:
    """A Spark installation to compile against."""

    path: Path
    version: str

    @property
    def minor(self) -> str:
        return ".".join(self.version.split(".")[:2])

    @property
    def classpath(self) -> str:
        return str(self.path / "jars" / "*")

    @staticmethod
    def at(directory: Path) -> "SparkHome":
        """The installation in `directory`, or in the `pyspark` package that lies in it."""
        for path in (directory, directory / "pyspark"):
            for jar in sorted((path / "jars").glob("spark-core_2.13-*.jar")):
                home = SparkHome(path, jar.stem.removeprefix("spark-core_2.13-"))
                if home.minor not in SUPPORTED_MINORS:
                    raise BuildError(
                        f"Spark {home.version} in {path} is not supported: sparkckpt needs Spark "
                        f"{' or '.join(SUPPORTED_MINORS)}. Install such a pyspark."
                    )
                return home
        raise BuildError(
            f"No Spark with Scala 2.13 in {directory}: there is no jars/spark-core_2.13-*.jar. "
            "Name a pyspark package directory or a SPARK_HOME."
        )


def find_spark_homes() -> list[SparkHome]:
    """The installations to build for: those the environment names, else the one in reach.

    An isolated build hides the packages of the environment it builds for from `import`, but that
    environment's own package directory still is where sysconfig says: a pyspark found there spares
    the build a second download of it.
    """
    if named := os.environ.get(SPARK_HOMES_VARIABLE):
        return [SparkHome.at(Path(directory)) for directory in named.split(os.pathsep)]
    spec = importlib.util.find_spec("pyspark")
    if spec and spec.origin:
        return [SparkHome.at(Path(spec.origin).parent)]
    installed = Path(sysconfig.get_path("purelib")) / "pyspark"
    return [SparkHome.at(installed)] if (installed / "jars").is_dir() else []


def find_java() -> Path:
    """The java launcher Spark itself would take, if it is recent enough."""
    wanted = f"Install a Java runtime {MINIMUM_JAVA} or newer, or set JAVA_HOME to one."
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home) / "bin" / "java") if home else "java")
    if java is None:
        where = f"JAVA_HOME={home}" if home else "PATH"
        raise BuildError(f"Java is needed to build sparkckpt's jar, but {where} has none. {wanted}")
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    if found is None:
        raise BuildError(
            f"{java} does not run as Java: `java -version` says {answer.stderr!r}. {wanted}"
        )
    if int(found[1]) < MINIMUM_JAVA:
        raise BuildError(f"{java} is Java {found[1]}, too old to build sparkckpt's jar. {wanted}")
    return Path(java)


def build_jar(home: SparkHome, directory: Path = JARS) -> Path:
    """The shim's jar for `home`'s minor, compiled unless it is up to date."""
    jar = directory / f"sparkckpt-spark-{home.minor}.jar"
    return _build(home, jar, "main", SCALAC_OPTIONS, [home.classpath])


def build_test_jar(home: SparkHome, main_jar: Path, directory: Path = TEST_JARS) -> Path:
    """The jar of the test harness, which never enters a wheel."""
    jar = directory / f"sparkckpt-spark-{home.minor}-tests.jar"
    return _build(home, jar, "test", TEST_SCALAC_OPTIONS, [str(main_jar), home.classpath])


def _build(
    home: SparkHome, jar: Path, tree: str, options: Sequence[str], classpath: Sequence[str]
) -> Path:
    sources = [
        path
        for directory in ("scala", f"scala-{home.minor}")
        for path in sorted((SOURCES / tree / directory).rglob("*.scala"))
    ]
    resources = SOURCES / tree / "resources"
    resource_files = sorted(path for path in resources.rglob("*") if path.is_file())
    upstream = [Path(entry) for entry in classpath if not entry.endswith("*")]
    digest = _digest(home, [Path(__file__), *sources, *resource_files], upstream)
    if _digest_of_jar(jar) == digest:
        return jar
    java = find_java()
    with tempfile.TemporaryDirectory(prefix="sparkckpt-classes-") as directory:
        classes = Path(directory)
        if sources:
            print(f"compiling {jar.name} against Spark {home.version}", file=sys.stderr)
            settings = [*options, "-classpath", os.pathsep.join(classpath), "-d", str(classes)]
            _compile(java, home, settings, sources)
        entries = {path.relative_to(classes).as_posix(): path for path in classes.rglob("*.class")}
        entries |= {path.relative_to(resources).as_posix(): path for path in resource_files}
        manifest = (
            "Manifest-Version: 1.0\n"
            "Implementation-Title: sparkckpt\n"
            f"Sparkckpt-Spark: {home.minor}\n"
            f"{DIGEST_ATTRIBUTE}: {digest}\n\n"
        )
        _write_jar(jar, manifest, entries)
    return jar


def _compile(java: Path, home: SparkHome, settings: Sequence[str], sources: Sequence[Path]) -> None:
    compiler = [str(java), *JVM_OPTIONS, "-cp", home.classpath, "scala.tools.nsc.Main"]
    with tempfile.NamedTemporaryFile("w", prefix="sparkckpt-", suffix=".args") as arguments:
        arguments.write("\n".join(f'"{word}"' for word in (*settings, *sources)))
        arguments.flush()
        outcome = subprocess.run([*compiler, f"@{arguments.name}"], check=False)
    if outcome.returncode != 0:
        raise BuildError(
            f"The Scala sources under {SOURCES} do not compile against Spark {home.version} "
            f"({home.path}); the compiler's messages stand above."
        )


def _digest(home: SparkHome, files: Iterable[Path], upstream: Iterable[Path]) -> str:
    digest = hashlib.sha256(home.version.encode())
    for path in files:
        digest.update(f"\0{path.relative_to(ROOT).as_posix()}\0".encode())
        digest.update(path.read_bytes())
    for path in upstream:
        digest.update((_digest_of_jar(path) or "").encode())
    return digest.hexdigest()[:40]


def _digest_of_jar(jar: Path) -> str | None:
    if not jar.is_file():
        return None
    with zipfile.ZipFile(jar) as archive:
        manifest = archive.read("META-INF/MANIFEST.MF").decode()
    found = re.search(rf"^{DIGEST_ATTRIBUTE}: (\w+)$", manifest, re.MULTILINE)
    return found[1] if found else None


def _write_jar(jar: Path, manifest: str, entries: dict[str, Path]) -> None:
    """Writes the same bytes for the same entries, and never half a jar in the place of a whole."""
    jar.parent.mkdir(parents=True, exist_ok=True)
    partial = jar.with_suffix(f".{os.getpid()}.partial")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(_zip_entry("META-INF/MANIFEST.MF"), manifest)
        for name in sorted(entries):
            archive.writestr(_zip_entry(name), entries[name].read_bytes())
    partial.replace(jar)


def _zip_entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, ZIP_EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = 0o644 << 16
    return entry


def main() -> int:
    parser = argparse.ArgumentParser(description="Build sparkckpt's jar; prints its path.")
    parser.add_argument(
        "--spark-home",
        type=Path,
        action="append",
        help="Spark to compile against, may be repeated (default: the installed pyspark)",
    )
    parser.add_argument("--tests", action="store_true", help="also build the test harness")
    arguments = parser.parse_args()
    try:
        homes = (
            [SparkHome.at(directory) for directory in arguments.spark_home]
            if arguments.spark_home
            else find_spark_homes()
        )
        if not homes:
            raise BuildError("pyspark is not installed here. Install it or give --spark-home.")
        for home in homes:
            jar = build_jar(home)
            print(jar)
            if arguments.tests:
                print(build_test_jar(home, jar))
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
