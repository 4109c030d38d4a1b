"""What the tests of imports and exports share: jobs whose checkpoint moves while they rest."""

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from sparkckpt.restoration.markers import BACKEND_PATH
from tests.spark import jobs, python_jobs
from tests.spark.leases import await_release
from tests.spark.streams import (
    PARTITIONS,
    ROCKSDB_PROVIDER,
    STATE_STORE,
    Backend,
    Job,
    Output,
    canonical_rows,
    checkpoint_of,
    feed,
    session_for,
    start,
    unload_state,
)

HDFS_PROVIDER = ROCKSDB_PROVIDER.replace("RocksDB", "HDFSBacked")


def rocksdb(format_version: int = 1, changelog: bool = True) -> Backend:
    return Backend(
        f"Spark's RocksDB, format {format_version}",
        {
            STATE_STORE + "providerClass": ROCKSDB_PROVIDER,
            STATE_STORE + "checkpointFormatVersion": str(format_version),
            STATE_STORE + "rocksdb.changelogCheckpointing.enabled": str(changelog).lower(),
            STATE_STORE + "minDeltasForSnapshot": "2",
        },
    )


HDFS_BACKED = Backend(
    "Spark's HDFS-backed store",
    {
        STATE_STORE + "providerClass": HDFS_PROVIDER,
        STATE_STORE + "checkpointFormatVersion": "1",
    },
)


def _named(kind: str, catalogue: Mapping[str, Job]) -> dict[str, Job]:
    return {f"{kind}: {name}": job for name, job in catalogue.items()}


WITHOUT_FAMILIES: Mapping[str, Job] = {
    **_named("aggregation", jobs.AGGREGATIONS),
    **_named("session window", jobs.SESSION_WINDOWS),
    **_named("deduplication", jobs.DEDUPLICATIONS),
    **_named("limit", jobs.LIMITS),
    **_named("combination", jobs.COMBINATIONS),
    **{f"join 2: {kind}": jobs.time_range_join(kind, 2) for kind in jobs.JOIN_TYPES},
    "join 2: unbounded": jobs.unbounded_join(2),
    "join 2: on a window": jobs.window_join("left_outer", 2),
    **_named("applyInPandasWithState", python_jobs.PANDAS_WITH_STATE),
}
"""Those that Spark's HDFS-backed store can keep too."""

WITH_FAMILIES: Mapping[str, Job] = {
    **{
        f"join {version}: {kind}": jobs.time_range_join(kind, version)
        for kind in jobs.JOIN_TYPES
        for version in (3, 4)
    },
    "join 3: unbounded": jobs.unbounded_join(3),
    "join 4: unbounded": jobs.unbounded_join(4),
    "join 4: on a window": jobs.window_join("left_outer", 4),
    **_named("rows", python_jobs.transform_with_state(pandas=False)),
    **_named("frames", python_jobs.transform_with_state(pandas=True)),
}
JOBS: Mapping[str, Job] = {**WITHOUT_FAMILIES, **WITH_FAMILIES}


def run_on(
    spark: SparkSession,
    job: Job,
    workdir: Path,
    backend: Backend,
    batches: range,
    partitions: int,
) -> Output:
    """Runs some batches of a job on the checkpoint in `workdir`."""
    output: Output = {}

    def collect(rows: DataFrame, batch: int) -> None:
        output[batch] = canonical_rows(rows.collect())

    feed(job, workdir, batches)
    confs = {**backend.confs_of(0), PARTITIONS: str(partitions), **job.confs}
    query = start(session_for(spark, confs), job, workdir, collect)
    query.awaitTermination()
    unload_state(spark)
    if (checkpoint_of(workdir) / BACKEND_PATH).exists():
        await_release(checkpoint_of(workdir), query.runId)
    assert sorted(output) == list(batches)
    return output


def move_checkpoint(workdir: Path, name: str, move: Callable[[Path, Path], object]) -> Path:
    """Puts the job's checkpoint aside under this name and moves it to where it was. Its source
    must come out of that as it was."""
    aside = workdir / name
    checkpoint_of(workdir).rename(aside)
    before = contents(aside)
    move(aside, checkpoint_of(workdir))
    after = contents(aside)
    changed = {path for path, _ in before.items() ^ after.items()}
    assert not changed, f"{aside} was changed: {sorted(changed)}"
    return aside


def contents(directory: Path) -> dict[str, str]:
    return {
        str(path.relative_to(directory)): hashlib.sha256(path.read_bytes()).hexdigest()
        if path.is_file()
        else "directory"
        for path in directory.rglob("*")
    }
