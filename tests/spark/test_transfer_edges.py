"""Imports and exports that are interrupted, refused, or meet an unusual checkpoint."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import sparkckpt
from sparkckpt.errors import RestorePendingError, SourceChangedError, TransferFailedError
from sparkckpt.restoration.markers import BACKEND_PATH, RESTORING_PATH
from sparkckpt.sparklog import SparkCheckpoint
from sparkckpt.storage import Storage
from tests.conftest import ROOT
from tests.spark import jobs
from tests.spark.leases import await_release
from tests.spark.streams import (
    FULL,
    ORACLE,
    PARTITIONS,
    ROCKSDB_PROVIDER,
    SPARKCKPT,
    STATE_STORE,
    Backend,
    Job,
    Output,
    checkpoint_of,
    feed,
    run,
    session_for,
    start,
    unload_state,
)
from tests.spark.transfers import (
    HDFS_BACKED,
    JOBS,
    contents,
    move_checkpoint,
    rocksdb,
    run_on,
)

WINDOWS = "aggregation: window append"


def fail_in(
    spark: SparkSession, job: Job, workdir: Path, backend: Backend, batch: int, partitions: int
) -> None:
    """Plans a batch that is not committed."""

    def refuse(rows: DataFrame, number: int) -> None:
        rows.collect()
        raise ValueError("not this batch")

    feed(job, workdir, range(batch, batch + 1))
    confs = {**backend.confs_of(0), PARTITIONS: str(partitions), **job.confs}
    query = start(session_for(spark, confs), job, workdir, refuse)
    with pytest.raises(Exception, match="not this batch"):
        query.awaitTermination()
    unload_state(spark)
    if (checkpoint_of(workdir) / BACKEND_PATH).exists():
        await_release(checkpoint_of(workdir), query.runId)


def planned_offsets(checkpoint: Path) -> list[str]:
    """All of the newest entry but the settings."""
    spark = SparkCheckpoint(Storage.at(checkpoint))
    newest = spark.latest_offsets()
    assert newest is not None
    return [str(newest.watermark_ms), str(newest.timestamp_ms), *map(str, newest.sources)]


@pytest.mark.parametrize("format_version", [1, 2])
def test_planned_batches_are_kept(spark: SparkSession, tmp_path: Path, format_version: int) -> None:
    job = JOBS["join 2: left_outer"]
    expected = run(spark, job, tmp_path / "oracle", ORACLE)
    subject = tmp_path / "subject"
    plain = rocksdb(format_version)
    output = run_on(spark, job, subject, plain, range(1), 3)
    fail_in(spark, job, subject, plain, 1, 3)

    def bring_in(source: Path, target: Path) -> None:
        report = sparkckpt.import_checkpoint(source, target, parallelism=4, spark=spark)
        assert (report.batch_id, report.planned_batch_id) == (0, 1)
        assert planned_offsets(target) == planned_offsets(source)

    def bring_out(source: Path, target: Path) -> None:
        report = sparkckpt.export_checkpoint(source, target, spark=spark)
        assert (report.batch_id, report.planned_batch_id, report.parallelism) == (1, 2, 4)
        assert planned_offsets(target) == planned_offsets(source)

    move_checkpoint(subject, "plain", bring_in)
    output |= run_on(spark, job, subject, SPARKCKPT, range(1, 2), 9)
    fail_in(spark, job, subject, SPARKCKPT, 2, 9)
    move_checkpoint(subject, "ours", bring_out)
    output |= run_on(spark, job, subject, rocksdb(1), range(2, len(job.batches)), 9)
    assert output == expected


def test_a_first_batch_that_was_only_planned(spark: SparkSession, tmp_path: Path) -> None:
    job = JOBS[WINDOWS]
    expected = run(spark, job, tmp_path / "oracle", ORACLE)
    subject = tmp_path / "subject"
    fail_in(spark, job, subject, rocksdb(), 0, 3)

    def bring_in(source: Path, target: Path) -> None:
        report = sparkckpt.import_checkpoint(source, target, parallelism=4, spark=spark)
        assert (report.batch_id, report.planned_batch_id, report.rows) == (None, 0, 0)

    move_checkpoint(subject, "plain", bring_in)
    assert run_on(spark, job, subject, SPARKCKPT, range(len(job.batches)), 9) == expected
    owner = sparkckpt.show_checkpoint(checkpoint_of(subject)).operators.to_pylist()
    assert [operator["parallelism"] for operator in owner] == [4]


def test_a_query_without_state(spark: SparkSession, tmp_path: Path) -> None:
    job = Job.of(jobs.EVENTS, jobs.events(), lambda df: df.select("k", "v"))
    there_and_back(spark, tmp_path, job, HDFS_BACKED)


def test_rescale_right_after_an_import(spark: SparkSession, tmp_path: Path) -> None:
    """Before any batch, and so without a completed checkpoint."""
    job = JOBS["rows: value, list and map"]
    expected = run(spark, job, tmp_path / "oracle", ORACLE)
    output = run_on(spark, job, tmp_path, rocksdb(), range(2), 3)

    def bring_in(source: Path, target: Path) -> None:
        sparkckpt.import_checkpoint(source, target, max_parallelism=64, spark=spark)
        assert sparkckpt.rescale(target, 2).former_parallelism == 3

    move_checkpoint(tmp_path, "plain", bring_in)
    output |= run_on(spark, job, tmp_path, SPARKCKPT, range(2, len(job.batches)), 3)
    assert output == expected
    (operator,) = sparkckpt.show_checkpoint(checkpoint_of(tmp_path)).operators.to_pylist()
    assert (operator["parallelism"], operator["max_parallelism"]) == (2, 64)


def test_avro_encoding(spark: SparkSession, tmp_path: Path) -> None:
    job = JOBS["rows: value, list and map"]
    job = replace(job, confs={STATE_STORE + "encodingFormat": "avro"})
    there_and_back(spark, tmp_path, job, rocksdb(2))


def test_join_in_state_format_1(spark: SparkSession, tmp_path: Path) -> None:
    """Spark starts no new query in this format outside its own tests, and only inner joins."""
    system = spark._jvm.java.lang.System
    system.setProperty("spark.testing", "true")
    try:
        there_and_back(spark, tmp_path, jobs.time_range_join("inner", 1), HDFS_BACKED)
    finally:
        system.clearProperty("spark.testing")


@pytest.mark.parametrize(
    ("name", "parallelism"),
    [
        ("join 2: left_outer", 5),
        ("rows: ttl", 2),
        *([("join 2: left_outer", 2), ("rows: ttl", 5)] if FULL else []),
    ],
)
def test_export_after_a_rescale(
    spark: SparkSession, tmp_path: Path, name: str, parallelism: int
) -> None:
    """No batch has run since: the commit names a manifest."""
    job = JOBS[name]
    expected = run(spark, job, tmp_path / "oracle", ORACLE)
    subject = tmp_path / "subject"
    output = run_on(spark, job, subject, SPARKCKPT, range(2), 3)
    sparkckpt.rescale(checkpoint_of(subject), parallelism)

    def bring_out(source: Path, target: Path) -> None:
        report = sparkckpt.export_checkpoint(source, target, spark=spark)
        assert (report.former_parallelism, report.parallelism) == (parallelism, parallelism)

    move_checkpoint(subject, "ours", bring_out)
    output |= run_on(spark, job, subject, rocksdb(), range(2, len(job.batches)), 3)
    assert output == expected


def test_export_after_a_restore_with_other_key_groups(spark: SparkSession, tmp_path: Path) -> None:
    """The state lies in another directory, cut into another number of key groups."""
    job = JOBS["rows: ttl"]
    expected = run(spark, job, tmp_path / "oracle", ORACLE)
    subject = tmp_path / "subject"
    output = run_on(spark, job, subject, SPARKCKPT, range(2), 3)
    first, restored = subject / "first", subject / "restored"
    checkpoint_of(subject).rename(first)
    sparkckpt.restore(first, restored, parallelism=4, max_parallelism=100)
    first.rename(subject / "away")
    with pytest.raises(TransferFailedError, match="UNREADABLE_FILE"):
        sparkckpt.export_checkpoint(restored, subject / "lost", spark=spark)
    (subject / "away").rename(first)
    sparkckpt.export_checkpoint(restored, checkpoint_of(subject), spark=spark)
    output |= run_on(spark, job, subject, rocksdb(), range(2, len(job.batches)), 3)
    assert output == expected


def there_and_back(spark: SparkSession, workdir: Path, job: Job, backend: Backend) -> None:
    expected = run(spark, job, workdir / "oracle", ORACLE)
    subject = workdir / "subject"
    output = run_on(spark, job, subject, backend, range(2), 3)
    move_checkpoint(
        subject,
        "plain",
        lambda source, target: sparkckpt.import_checkpoint(
            source, target, parallelism=4, spark=spark
        ),
    )
    output |= run_on(spark, job, subject, SPARKCKPT, range(2, 3), 3)
    move_checkpoint(
        subject,
        "ours",
        lambda source, target: sparkckpt.export_checkpoint(
            source, target, parallelism=3, spark=spark
        ),
    )
    output |= run_on(spark, job, subject, rocksdb(), range(3, len(job.batches)), 3)
    assert output == expected


# Errors


@pytest.fixture
def plain(spark: SparkSession, tmp_path: Path) -> Path:
    """A checkpoint of Spark's RocksDB store, and the beginning of a job."""
    run_on(spark, JOBS[WINDOWS], tmp_path, rocksdb(changelog=False), range(2), 3)
    checkpoint_of(tmp_path).rename(tmp_path / "plain")
    return tmp_path / "plain"


def test_an_unknown_operator(spark: SparkSession, plain: Path) -> None:
    metadata = plain / "state" / "0" / "_metadata" / "metadata"
    metadata.with_name(".metadata.crc").unlink()
    metadata.write_text(metadata.read_text().replace("stateStoreSave", "someOtherOperator"))
    target = plain.with_name("checkpoint")
    with pytest.raises(TransferFailedError, match=r"UNKNOWN_OPERATOR.*someOtherOperator"):
        sparkckpt.import_checkpoint(plain, target, spark=spark)


def test_damaged_state_is_no_checkpoint(spark: SparkSession, plain: Path) -> None:
    """The target refuses to be used; when the damage is repaired, the same call makes it whole."""
    damaged = plain / "state" / "0" / "1" / "2.zip"
    whole = damaged.read_bytes()
    checksum = damaged.with_name(".2.zip.crc")
    kept = checksum.read_bytes()
    checksum.unlink()
    damaged.write_bytes(whole[: len(whole) // 2])
    target = checkpoint_of(plain.parent)
    with pytest.raises(TransferFailedError, match="could not be moved"):
        sparkckpt.import_checkpoint(plain, target, spark=spark)
    assert (target / RESTORING_PATH).exists()
    assert not any((target / log).exists() for log in ("metadata", "offsets", "commits"))
    with pytest.raises(RestorePendingError):
        sparkckpt.list_checkpoints(target)
    damaged.write_bytes(whole)
    checksum.write_bytes(kept)
    sparkckpt.import_checkpoint(plain, target, parallelism=2, spark=spark)
    job = JOBS[WINDOWS]
    expected = run(spark, job, plain.parent / "oracle", ORACLE)
    output = run_on(spark, job, plain.parent, SPARKCKPT, range(2, len(job.batches)), 3)
    assert output == {batch: expected[batch] for batch in output}


def test_damaged_state_of_ours_is_not_exported(spark: SparkSession, tmp_path: Path) -> None:
    job = JOBS[WINDOWS]
    run_on(spark, job, tmp_path, SPARKCKPT, range(2), 3)
    source = checkpoint_of(tmp_path)
    handle = max((source / "state" / "0" / "1").glob("2_*.handle"))
    handle.with_name(f".{handle.name}.crc").unlink(missing_ok=True)
    data = bytearray(handle.read_bytes())
    data[len(data) // 2] ^= 1
    handle.write_bytes(bytes(data))
    target = tmp_path / "target"
    with pytest.raises(TransferFailedError, match="SPARKCKPT_CORRUPT_FILE"):
        sparkckpt.export_checkpoint(source, target, spark=spark)
    assert not any((target / log).exists() for log in ("metadata", "offsets", "commits"))


def test_a_source_that_goes_on(spark: SparkSession, plain: Path) -> None:
    """Nothing tells that a query of plain Spark runs, but it leaves traces."""
    commits, offsets = plain / "commits", plain / "offsets"

    def go_on(done: int, total: int) -> None:
        (offsets / "2").write_bytes((offsets / "1").read_bytes())
        (commits / "2").write_bytes((commits / "1").read_bytes())

    with pytest.raises(SourceChangedError):
        sparkckpt.import_checkpoint(
            plain, plain.with_name("checkpoint"), spark=spark, progress=go_on
        )


def test_progress_counts_partitions(spark: SparkSession, plain: Path) -> None:
    told: list[tuple[int, int]] = []
    report = sparkckpt.import_checkpoint(
        plain,
        plain.with_name("checkpoint"),
        parallelism=4,
        spark=spark,
        progress=lambda done, total: told.append((done, total)),
    )
    assert told[-1] == (7, 7)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    rows = spark.read.format("statestore").load(str(plain)).count()
    (operator,) = report.operators
    assert report.rows == operator.rows == rows > 0
    assert (operator.name, operator.stores, operator.parallelism) == (
        "stateStoreSave",
        ("default",),
        4,
    )


# Other processes


def in_process(*arguments: str, confs: Mapping[str, str] | None = None) -> str:
    settings = [f"{key}={value}" for key, value in (confs or {}).items()]
    ended = subprocess.run(
        [sys.executable, "-m", *arguments, *settings],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return ended.stdout


def plainly(workdir: Path, name: str, batches: range, confs: Mapping[str, str]) -> Output:
    """Batches of a job in an application without sparkckpt."""
    bounds = (str(batches.start), str(batches.stop))
    printed = in_process("tests.spark.plain_spark", str(workdir), name, *bounds, confs=confs)
    return {int(batch): rows for batch, rows in json.loads(printed.splitlines()[-1]).items()}


@pytest.mark.timeout(600)
def test_commands_from_plain_spark_and_back(spark: SparkSession, tmp_path: Path) -> None:
    """Nothing but the directories goes from one application to the next, and plain Spark needs no
    setting to go on with what was exported."""
    name = "session window: append"
    job = JOBS[name]
    expected = run(spark, job, tmp_path / "oracle", ORACLE)
    subject = tmp_path / "subject"
    confs = {STATE_STORE + "providerClass": ROCKSDB_PROVIDER}
    output = plainly(subject, name, range(2), confs)

    def command(operation: str, *options: str) -> dict[str, object]:
        def call(source: Path, target: Path) -> None:
            arguments = ("sparkckpt", operation, str(source), str(target), *options)
            printed.append(json.loads(in_process(*arguments, "--output", "json")))

        printed: list[dict[str, object]] = []
        move_checkpoint(subject, f"before-{operation}", call)
        return printed[0]

    report = command("import", "--parallelism", "5", "--master", "local[2]")
    assert (report["batch_id"], report["former_parallelism"], report["parallelism"]) == (1, 3, 5)
    output |= run_on(spark, job, subject, SPARKCKPT, range(2, 3), 3)
    report = command("export", "--parallelism", "2", "--conf", "spark.master=local[2]")
    assert (report["batch_id"], report["parallelism"]) == (2, 2)
    output |= plainly(subject, name, range(3, len(job.batches)), {})
    assert output == expected


@pytest.mark.parametrize("operation", ["import", "export"])
def test_killed_in_between(spark: SparkSession, tmp_path: Path, operation: str) -> None:
    """What is left refuses to be used, and the command can be run again."""
    job = JOBS[WINDOWS]
    importing = operation == "import"
    before, after = (rocksdb(), SPARKCKPT) if importing else (SPARKCKPT, rocksdb())
    expected = run(spark, job, tmp_path / "oracle", ORACLE)
    output = run_on(spark, job, tmp_path, before, range(2), 3)
    source, target = tmp_path / "source", checkpoint_of(tmp_path)
    target.rename(source)
    untouched = contents(source)
    command = [
        *(sys.executable, "-m", "sparkckpt", operation, str(source), str(target)),
        *("--parallelism", "400", "--master", "local[1]"),
    ]
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
    try:
        pattern = "state/0/*/*.handle" if importing else "state/0/*/*.zip"
        wait_for(lambda: any(target.glob(pattern)), process)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert contents(source) == untouched
    assert not any((target / log).exists() for log in ("metadata", "offsets", "commits"))
    with pytest.raises(RestorePendingError):
        sparkckpt.list_checkpoints(target)
    feed(job, tmp_path, range(2, len(job.batches)))
    with pytest.raises(Exception, match=r"(?i)restor|checkpoint.*(empty|exist)"):
        start(
            session_for(spark, {**after.confs}), job, tmp_path, lambda rows, batch: None
        ).awaitTermination()
    move = sparkckpt.import_checkpoint if importing else sparkckpt.export_checkpoint
    move(source, target, parallelism=4, spark=spark)
    output |= run_on(spark, job, tmp_path, after, range(2, len(job.batches)), 3)
    assert output == expected


def wait_for(
    condition: Callable[[], bool], process: "subprocess.Popen[bytes]", seconds: float = 200
) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, "it has ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.02)
