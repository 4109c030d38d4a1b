"""What the driver does to storage for the coordinator, on file systems of several kinds."""

from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

SCHEMES = ["file", "unreplacing", "putting"]


@pytest.fixture(scope="module")
def harness(spark: SparkSession) -> Any:
    jvm: Any = spark._jvm
    return jvm.org.apache.spark.sql.sparkckpt.coordinator.StorageHarness()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_file_is_replaced_as_a_whole(harness: Any, tmp_path: Path, scheme: str) -> None:
    file = tmp_path / "file"
    for text in ("old", "new"):
        assert harness.replace(f"{scheme}://{file}", text) == ""
        assert file.read_text() == text
    with pytest.raises(Py4JJavaError, match="the source has ended"):
        harness.replaceInPart(f"{scheme}://{file}", "half")
    assert file.read_text() == "new"
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".crc"] == ["file"]


def test_a_local_file_is_never_missing(harness: Any, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("old")
    assert harness.timesMissing(str(file), 100) == 0
    assert file.read_text() == "content 100"


def test_a_file_is_left_alone_where_it_cannot_be_replaced(harness: Any, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "child").write_text("kept")
    for scheme in ("file", "unreplacing"):
        assert "taken" in harness.replace(f"{scheme}://{tmp_path}/taken", "new")
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
    assert (tmp_path / "taken" / "child").read_text() == "kept"


@pytest.mark.parametrize(
    "error",
    ["NoClassDefFoundError", "OutOfMemoryError", "InterruptedException", "StackOverflowError"],
)
def test_every_failure_is_answered(harness: Any, error: str) -> None:
    """Whoever asked waits for an answer."""
    assert error in harness.look(f"failing:///{error}")
