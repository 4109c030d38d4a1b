"""Takes the package's Python along to executors that may not have it installed."""

import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import sparkckpt

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_shipped: set[str] = set()


def ship_to_executors(spark: "SparkSession") -> None:
    """Once per application; workers of a local master import what the driver has imported."""
    context = spark.sparkContext
    application = str(context.applicationId)
    if application in _shipped or _is_local(context.master or ""):
        return
    directory = tempfile.mkdtemp(prefix="sparkckpt-", dir=context._temp_dir)
    context.addPyFile(str(write_package(Path(directory) / "sparkckpt.zip")))
    _shipped.add(application)


def write_package(path: Path) -> Path:
    """A zip of all modules, to be put on a Python path."""
    root = Path(sparkckpt.__file__).parent
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for module in sorted(root.rglob("*.py")):
            archive.write(module, module.relative_to(root.parent))
    return path


def _is_local(master: str) -> bool:
    return master == "local" or master.startswith("local[")
