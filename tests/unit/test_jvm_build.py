"""The build script against a stand-in for Java that writes a class file where it is told to."""

import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

FAKE_JAVA = """#!{python}
import pathlib, sys
if sys.argv[1] == "-version":
    sys.exit(print('openjdk version "{version}" 2025-01-01', file=sys.stderr))
words = [w.strip('"') for w in pathlib.Path(sys.argv[-1][1:]).read_text().splitlines()]
for source in (w for w in words if w.endswith(".scala")):
    text = pathlib.Path(source).read_text()
    if "error" in text:
        sys.exit(1)
    target = pathlib.Path(words[words.index("-d") + 1], pathlib.Path(source).stem + ".class")
    target.write_text(text)
"""


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "java" / "bin" / "java"
    path.parent.mkdir(parents=True)
    write_java(path, "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    return path


def write_java(path: Path, version: str) -> None:
    path.write_text(FAKE_JAVA.replace("{python}", sys.executable).replace("{version}", version))
    path.chmod(0o755)


@pytest.fixture
def tree(tmp_path: Path, jvm_build: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A source tree with one common file and one per minor; the script itself belongs to it."""
    root = tmp_path / "tree"
    for directory, name in (("scala", "Common"), ("scala-4.2", "Old"), ("scala-4.3", "New")):
        path = root / "jvm-shim" / "src" / "main" / directory
        path.mkdir(parents=True)
        (path / f"{name}.scala").write_text(f"object {name}")
    (root / "jvm-shim" / "build.py").touch()
    monkeypatch.setattr(jvm_build, "ROOT", root)
    monkeypatch.setattr(jvm_build, "SOURCES", root / "jvm-shim" / "src")
    monkeypatch.setattr(jvm_build, "__file__", str(root / "jvm-shim" / "build.py"))
    return root


def spark_home(jvm_build: ModuleType, path: Path, version: str) -> object:
    (path / "jars").mkdir(parents=True)
    (path / "jars" / f"spark-core_2.13-{version}.jar").touch()
    return jvm_build.SparkHome.at(path)


@pytest.mark.usefixtures("java")
def test_a_jar_holds_the_common_sources_and_its_minors_own(
    tree: Path, tmp_path: Path, jvm_build: ModuleType
) -> None:
    for version, expected in (("4.2.1", "Old.class"), ("4.3.0", "New.class")):
        home = spark_home(jvm_build, tmp_path / version, version)
        jar = jvm_build.build_jar(home, tree / "jars")
        assert jar.name == f"sparkckpt-spark-{version[:3]}.jar"
        with zipfile.ZipFile(jar) as archive:
            assert archive.namelist() == ["META-INF/MANIFEST.MF", "Common.class", expected]
            assert (
                f"Sparkckpt-Spark: {version[:3]}" in archive.read("META-INF/MANIFEST.MF").decode()
            )


def test_a_jar_is_rebuilt_when_its_sources_change_and_only_then(
    tree: Path, tmp_path: Path, jvm_build: ModuleType, java: Path
) -> None:
    home = spark_home(jvm_build, tmp_path / "spark", "4.3.0")
    jar = jvm_build.build_jar(home, tree / "jars")
    first = jar.read_bytes()
    launcher = java.read_text()
    java.unlink()
    assert jvm_build.build_jar(home, tree / "jars").read_bytes() == first
    java.write_text(launcher)
    java.chmod(0o755)
    source = tree / "jvm-shim" / "src" / "main" / "scala" / "Common.scala"
    source.write_text("object Changed")
    assert jvm_build.build_jar(home, tree / "jars").read_bytes() != first
    source.write_text("object Common")
    assert jvm_build.build_jar(home, tree / "jars").read_bytes() == first


@pytest.mark.usefixtures("java")
def test_sources_that_do_not_compile_leave_the_old_jar_alone(
    tree: Path, tmp_path: Path, jvm_build: ModuleType
) -> None:
    home = spark_home(jvm_build, tmp_path / "spark", "4.3.0")
    before = jvm_build.build_jar(home, tree / "jars").read_bytes()
    (tree / "jvm-shim" / "src" / "main" / "scala" / "Common.scala").write_text("error")
    with pytest.raises(jvm_build.BuildError, match=r"do not compile against Spark 4\.3\.0"):
        jvm_build.build_jar(home, tree / "jars")
    assert [path.name for path in (tree / "jars").iterdir()] == ["sparkckpt-spark-4.3.jar"]
    assert (tree / "jars" / "sparkckpt-spark-4.3.jar").read_bytes() == before


def test_missing_or_old_java_says_what_to_install(
    java: Path, tmp_path: Path, jvm_build: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert jvm_build.find_java() == java
    for version in ("1.8.0_402", "11.0.2"):
        write_java(java, version)
        with pytest.raises(jvm_build.BuildError, match=r"too old .* Java runtime 17 or newer"):
            jvm_build.find_java()
    java.unlink()
    with pytest.raises(jvm_build.BuildError, match=r"JAVA_HOME=.* has none"):
        jvm_build.find_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(jvm_build.BuildError, match=r"PATH has none\. Install a Java runtime 17"):
        jvm_build.find_java()


def test_spark_homes_are_those_named_and_must_be_supported(
    tmp_path: Path, jvm_build: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark_home(jvm_build, tmp_path / "a" / "pyspark", "4.2.1")
    spark_home(jvm_build, tmp_path / "b", "4.3.0")
    monkeypatch.setenv("SPARKCKPT_SPARK_HOMES", f"{tmp_path / 'a'}:{tmp_path / 'b'}")
    assert [home.minor for home in jvm_build.find_spark_homes()] == ["4.2", "4.3"]
    with pytest.raises(jvm_build.BuildError, match=r"Spark 4\.1\.0 in .* is not supported"):
        spark_home(jvm_build, tmp_path / "c", "4.1.0")
    with pytest.raises(jvm_build.BuildError, match="No Spark with Scala"):
        jvm_build.SparkHome.at(tmp_path)
