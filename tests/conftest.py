"""Fixtures all tests share: the jars, a local Spark session with sparkckpt, and directories.

One JVM and one session serve the whole run, since they take seconds to start. A test that needs
another application, or to stop one, runs it in a process of its own.
"""

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

import sparkckpt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parent.parent
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For queries of some seconds: the best code comes too late for them, and its compiler takes the
processors from the other test processes."""
SESSION_CONFS = {
    "spark.master": "local[2]",
    "spark.driver.memory": "2g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.log.level": "ERROR",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "3",
    "spark.sql.timeType.enabled": "true",
}

if engine := os.environ.get("SPARKCKPT_TEST_ENGINE"):
    SESSION_CONFS["spark.sql.streaming.stateStore.sparkckpt.engine"] = engine

os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")

# How long an example takes says more about what else the machine does than about the code.
settings.register_profile("tests", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tests")

LONGEST_FIRST = (
    "test_faults",
    "test_operators",
    "test_transfer_edges",
    "test_python_operators",
    "test_plans",
    "test_types",
    "test_rescale",
    "test_restore_by_conf",
    "test_state_reader",
)
"""A file is run by one process as a whole: the last to begin should be short ones."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything under tests/spark and tests/chaos needs Spark: marked so, and run last."""
    for item in items:
        if {"spark", "chaos"} & set(item.path.relative_to(ROOT).parts[:-1]):
            item.add_marker(pytest.mark.spark)
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> tuple[bool, int]:
    needs_spark = item.get_closest_marker("spark") is not None
    name = item.path.stem
    place = LONGEST_FIRST.index(name) if name in LONGEST_FIRST else len(LONGEST_FIRST)
    return needs_spark, place if needs_spark else 0


@pytest.fixture(scope="session")
def jvm_build() -> ModuleType:
    """The script that builds the jars, as a module."""
    spec = importlib.util.spec_from_file_location(
        "sparkckpt_jvm_build", ROOT / "jvm-shim" / "build.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def jars(jvm_build: ModuleType) -> list[Path]:
    """The backend's jar and the test harness's, compiled from the sources as they are now."""
    (home,) = jvm_build.find_spark_homes()
    jar = jvm_build.build_jar(home)
    return [jar, jvm_build.build_test_jar(home, jar)]


@pytest.fixture(scope="session")
def spark(jars: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator["SparkSession"]:
    """The session with sparkckpt that all tests share: small, quiet and local."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("sparkckpt-tests")
    builder.config(map=SESSION_CONFS)
    builder.config("spark.driver.extraJavaOptions", QUICK_JVM)
    builder.config("spark.jars", ",".join(map(str, jars)))
    builder.config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
    session = sparkckpt.configure(builder).getOrCreate()
    yield session
    for query in session.streams.active:
        query.stop()
    session.stop()


@pytest.fixture
def make_dir(tmp_path: Path) -> Callable[[str], Path]:
    """Makes a named directory below the test's own: `make_dir("input")`."""

    def make(name: str) -> Path:
        path = tmp_path / name
        path.mkdir(parents=True)
        return path

    return make
