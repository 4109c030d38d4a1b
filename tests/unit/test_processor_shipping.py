"""The package as executors get it."""

import subprocess
import sys

from sparkckpt.processor.shipping import write_package

WORKER = """
import sys
sys.path.insert(0, sys.argv[1])
for name in ("fsspec", "click", "rich", "zstandard", "kazoo"):
    sys.modules[name] = None
from sparkckpt.processor import closure, folds, frames, rows, stateful, vectorized
assert ".zip" in closure.__file__
assert "pandas" not in sys.modules
"""


def test_a_worker_runs_from_the_zip_with_what_spark_needs_alone(tmp_path):
    package = write_package(tmp_path / "sparkckpt.zip")
    subprocess.run([sys.executable, "-c", WORKER, str(package)], check=True, cwd=tmp_path)
