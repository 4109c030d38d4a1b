"""Merges the parts of a savepoint as the tasks of a Spark job.

Each task reads and writes the storage by itself, through fsspec, in Spark's Python; nothing but the
descriptions of parts passes the driver. Executors need not have sparkckpt installed: it is sent
along. What it needs there is pyarrow, fsspec, zstandard and the fsspec driver of the storage.
"""

import os
import sys
import threading
import uuid
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import sparkckpt
from sparkckpt.errors import ClassicSessionNeededError, SavepointFailedError
from sparkckpt.jar import SparkInstallation
from sparkckpt.launch import MASTER_KEY, LaunchSettings
from sparkckpt.savepoints.merging import MergePart, Progress
from sparkckpt.savepoints.writer import WrittenStore
from sparkckpt.storage import Storage

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_QUIET = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
_POLL_SECONDS = 0.1


@contextmanager
def savepoint_session(
    given: "SparkSession | None", confs: Mapping[str, str]
) -> "Iterator[SparkSession]":
    """The session given, or the running one, or else one that ends with this."""
    from pyspark.sql import SparkSession

    running = given or SparkSession.getActiveSession()
    if running is not None:
        if not hasattr(running, "_jsparkSession"):
            raise ClassicSessionNeededError("A savepoint by a Spark job")
        yield running
        return
    launch = LaunchSettings.read(os.environ, SparkInstallation.in_use().home)
    if (launch.value_of(MASTER_KEY, confs) or "local").startswith("local"):
        # Workers beside this process are to have what it has; PySpark takes them from here alone.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder: Any = SparkSession.builder
    settings = {**_QUIET, **confs}
    made = builder.appName("sparkckpt-savepoint").config(map=settings).getOrCreate()
    try:
        yield made
    finally:
        made.stop()


def merge_with_spark(
    spark: "SparkSession",
    parts: Sequence[MergePart],
    source_url: str,
    target_url: str,
    progress: Progress,
) -> list[WrittenStore]:
    """Merges the parts, between two state roots given by URL; in the order of the parts."""
    if not parts:
        return []
    context = spark.sparkContext
    with TemporaryDirectory(prefix="sparkckpt-") as directory:
        context.addPyFile(str(_package(Path(directory))))
        group = f"sparkckpt-savepoint-{uuid.uuid4()}"
        job = _Job(context, group, parts, source_url, target_url)
        try:
            job.watch(progress)
        except BaseException:
            context.cancelJobGroup(group)
            raise
    if job.failure is not None:
        raise SavepointFailedError(target_url, str(job.failure)) from job.failure
    return job.merged


class _Job:
    """The Spark job, on a thread of its own, so that it can be watched."""

    def __init__(
        self,
        context: "SparkContext",
        group: str,
        parts: Sequence[MergePart],
        source_url: str,
        target_url: str,
    ) -> None:
        from pyspark import InheritableThread

        self.merged: list[WrittenStore] = []
        self.failure: Exception | None = None
        self._context, self._group, self._count = context, group, len(parts)

        def merge(part: MergePart) -> WrittenStore:
            return part.merge(Storage.at(source_url), Storage.at(target_url))

        def run() -> None:
            try:
                context.setJobGroup(group, "sparkckpt savepoint", interruptOnCancel=True)
                self.merged = context.parallelize(parts, len(parts)).map(merge).collect()
            except Exception as error:
                self.failure = error

        self._thread: threading.Thread = InheritableThread(target=run, session=None)
        self._thread.start()

    def watch(self, progress: Progress) -> None:
        """Waits for the end, and tells how many tasks are done."""
        while self._thread.is_alive():
            progress(self._done(), self._count)
            self._thread.join(_POLL_SECONDS)
        progress(len(self.merged), self._count)

    def _done(self) -> int:
        tracker: Any = self._context.statusTracker()
        jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(self._group)]
        stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
        return sum(stage.numCompletedTasks for stage in stages if stage)


def _package(directory: Path) -> Path:
    """This package, without the jars, as a file that Python can import from."""
    root = Path(sparkckpt.__file__).parent
    path = directory / f"sparkckpt-{sparkckpt.__version__}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for module in sorted(root.rglob("*.py")):
            archive.write(module, str(Path("sparkckpt") / module.relative_to(root)))
    return path
