import re
from pathlib import Path
from types import ModuleType

import pytest

from sparkckpt import jar
from sparkckpt.errors import JarNotFoundError, UnsupportedSparkError
from sparkckpt.jar import SUPPORTED_MINORS, SparkInstallation, jar_path


def spark_home(path: Path, version: str) -> Path:
    (path / "jars").mkdir(parents=True)
    (path / "jars" / f"spark-core_2.13-{version}.jar").touch()
    return path


def test_the_installation_is_the_one_that_spark_home_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = spark_home(tmp_path, "4.2.7-SNAPSHOT")
    monkeypatch.setenv("SPARK_HOME", str(home))
    assert SparkInstallation.in_use() == SparkInstallation(home, "4.2.7-SNAPSHOT")
    assert SparkInstallation.in_use().minor == "4.2"


def test_without_spark_home_it_is_the_pyspark_package(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyspark

    monkeypatch.delenv("SPARK_HOME", raising=False)
    assert SparkInstallation.in_use().version == pyspark.__version__


def test_a_spark_home_without_spark_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    with pytest.raises(UnsupportedSparkError, match=re.escape(f"no Spark in {tmp_path}")):
        jar_path()


@pytest.mark.parametrize("version", ["3.5.6", "4.1.0", "4.4.0", "5.0.0"])
def test_another_spark_is_refused_by_its_version(version: str, tmp_path: Path) -> None:
    with pytest.raises(
        UnsupportedSparkError, match=f"Spark {version} .* runs on Spark 4.2 and 4.3"
    ):
        jar_path(SparkInstallation(tmp_path, version))


def test_the_jar_of_the_minor_is_chosen_and_never_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jar, "JARS", tmp_path)
    spark = SparkInstallation(tmp_path, "4.2.1")
    with pytest.raises(JarNotFoundError, match=r"no jar for Spark 4\.2.* has no jar at all"):
        jar_path(spark)
    (tmp_path / "sparkckpt-spark-4.3.jar").touch()
    with pytest.raises(JarNotFoundError, match=r"only jars for Spark 4\.3\. .*jvm-shim/build\.py"):
        jar_path(spark)
    (tmp_path / "sparkckpt-spark-4.2.jar").touch()
    assert jar_path(spark) == tmp_path / "sparkckpt-spark-4.2.jar"


def test_the_package_and_the_build_agree_on_the_supported_minors(jvm_build: ModuleType) -> None:
    assert jvm_build.SUPPORTED_MINORS == SUPPORTED_MINORS
