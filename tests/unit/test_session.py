"""What configure puts on a builder, without starting Spark."""

import os
import shlex
import sys
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from sparkckpt import configure, jar
from sparkckpt.conf import PREFIX
from sparkckpt.errors import InvalidConfError, JavaNotFoundError, UnsupportedSparkError
from sparkckpt.session import COORDINATOR_PYTHON_KEY, PACKAGE_PATH_KEY, PLUGIN

ROOT = Path(__file__).resolve().parents[2]
COORDINATOR = {COORDINATOR_PYTHON_KEY: sys.executable, PACKAGE_PATH_KEY: str(ROOT)}
"""This interpreter and, since it is not an installed one, this package."""


@pytest.fixture(autouse=True)
def jar_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A process that has set nothing, with a Spark, a jar and a java that are never started."""
    home, jars, java = tmp_path / "spark", tmp_path / "jars", tmp_path / "jre" / "bin" / "java"
    for path in (home / "jars/spark-core_2.13-4.3.0.jar", jars / "sparkckpt-spark-4.3.jar", java):
        path.parent.mkdir(parents=True)
        path.touch(mode=0o755)
    for name in ("PYSPARK_SUBMIT_ARGS", "PYSPARK_PYTHON", "SPARK_CONF_DIR", "SPARK_REMOTE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_HOME", str(home))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jre"))
    monkeypatch.setattr(jar, "JARS", jars)
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    return jars / "sparkckpt-spark-4.3.jar"


def test_jar_plugin_worker_python_and_options_are_set(jar_file: Path) -> None:
    builder = SparkSession.builder
    assert configure(builder, max_parallelism=128, compression_codec="lz4") is builder
    assert builder._options == {
        "spark.jars": str(jar_file),
        "spark.plugins": PLUGIN,
        "spark.pyspark.python": sys.executable,
        PREFIX + "maxParallelism": "128",
        PREFIX + "compression.codec": "lz4",
        **COORDINATOR,
    }
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_what_the_builder_has_is_kept_and_twice_is_once(jar_file: Path) -> None:
    builder = (
        SparkSession.builder.config("spark.jars", "/a.jar, /b.jar")
        .config("spark.plugins", "their.Plugin")
        .config("spark.pyspark.python", "/their/python")
    )
    expected = {
        "spark.jars": f"/a.jar,/b.jar,{jar_file}",
        "spark.plugins": f"their.Plugin,{PLUGIN}",
        "spark.pyspark.python": "/their/python",
        **COORDINATOR,
    }
    assert configure(builder)._options == expected
    assert configure(builder)._options == expected


def test_a_python_given_for_the_coordinator_is_kept_and_finds_the_package_itself() -> None:
    by_keyword = configure(SparkSession.builder, coordinator_python="/their/python")._options
    assert by_keyword[COORDINATOR_PYTHON_KEY] == "/their/python"
    assert PACKAGE_PATH_KEY not in by_keyword
    builder = SparkSession.builder.config(COORDINATOR_PYTHON_KEY, "/their/python")
    assert configure(builder)._options.items() >= {COORDINATOR_PYTHON_KEY: "/their/python"}.items()


def test_a_jar_of_ours_from_elsewhere_is_not_doubled() -> None:
    builder = SparkSession.builder.config("spark.jars", "s3a://jars/sparkckpt-spark-4.3.jar")
    assert configure(builder)._options["spark.jars"] == "s3a://jars/sparkckpt-spark-4.3.jar"


def test_spark_defaults_are_kept(jar_file: Path, tmp_path: Path) -> None:
    (tmp_path / "spark" / "conf").mkdir()
    (tmp_path / "spark" / "conf" / "spark-defaults.conf").write_text(
        "spark.jars /d.jar\nspark.plugins default.Plugin\n"
    )
    options = configure(SparkSession.builder)._options
    assert options["spark.jars"] == f"/d.jar,{jar_file}"
    assert options["spark.plugins"] == f"default.Plugin,{PLUGIN}"


def test_submit_arguments_that_win_over_the_builder_are_extended(
    jar_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = "--jars /s.jar --conf 'spark.plugins=submit.Plugin' pyspark-shell"
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", arguments)
    options = configure(SparkSession.builder.config("spark.jars", "/b.jar"))._options
    assert shlex.split(os.environ["PYSPARK_SUBMIT_ARGS"]) == [
        *("--jars", f"/s.jar,{jar_file}"),
        *("--conf", f"spark.plugins=submit.Plugin,{PLUGIN}"),
        "pyspark-shell",
    ]
    assert options["spark.jars"] == f"/s.jar,{jar_file}"


@pytest.mark.parametrize("master", ["yarn", "spark://host:7077", "k8s://host"])
def test_on_a_cluster_the_worker_python_is_left_to_the_user(master: str) -> None:
    assert "spark.pyspark.python" not in configure(SparkSession.builder.master(master))._options


def test_a_remote_builder_is_refused() -> None:
    with pytest.raises(UnsupportedSparkError, match="Spark Connect server \\(sc://host\\)"):
        configure(SparkSession.builder.remote("sc://host"))


def test_a_bad_option_is_refused_before_anything_is_set() -> None:
    builder = SparkSession.builder
    with pytest.raises(InvalidConfError, match="from 1 to 32768"):
        configure(builder, max_parallelism=0)
    assert builder._options == {}


def test_no_java_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "jre" / "bin" / "java").unlink()
    with pytest.raises(JavaNotFoundError, match=r"JAVA_HOME=.*Install Java 17 or newer"):
        configure(SparkSession.builder)
