"""Damaged, missing and foreign files: the query stops with an error that names what and where.

Nothing is lost by it. Each test damages something, sees the query fail, puts it back, and sees the
query go on with exactly the result it must have.
"""

import contextlib
import errno
import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from sparkckpt.format import StateFileRef, write_handle
from tests.spark.streams import (
    ROCKSDB_PROVIDER,
    STATE_STORE,
    open_sources,
    session_for,
    unload_state,
)
from tests.spark.totals import CONFS, NO_INLINING, TOTALS, RunningTotals, totals_after
from tests.unit.format_samples import flipped, with_footer

PARTITION = 1


@pytest.fixture(scope="module")
def victim(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> RunningTotals:
    """A query whose state lies in a base and deltas."""
    query = RunningTotals(spark, tmp_path_factory.mktemp("victim"), NO_INLINING)
    query.advance(6)
    while not any(ref.base for ref in query.handles()[PARTITION].files_of()):
        query.advance(5)  # Merges run beside batches, which may be faster.
    return query


def handle_path(query: RunningTotals) -> Path:
    return query.checkpoint / "state" / query.handles()[PARTITION].path


def file_path(query: RunningTotals, base: bool) -> Path:
    """The newest delta, or the base."""
    refs = [ref for ref in query.handles()[PARTITION].files_of() if ref.base == base]
    return query.checkpoint / "state" / refs[-1].path


def newest_delta(query: RunningTotals) -> Path:
    return file_path(query, base=False)


def base(query: RunningTotals) -> Path:
    return file_path(query, base=True)


def backend_file(query: RunningTotals) -> Path:
    return query.checkpoint / "_sparkckpt" / "backend.json"


@contextlib.contextmanager
def replaced(path: Path, content: bytes | None) -> Iterator[None]:
    """Other bytes at a path, or none, for a while. Hadoop's own checksum file goes with them."""
    crc = path.with_name(f".{path.name}.crc")
    saved = {p: p.read_bytes() for p in (path, crc) if p.exists()}
    crc.unlink(missing_ok=True)
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    try:
        yield
    finally:
        for p, original in saved.items():
            p.write_bytes(original)


def assert_fails(query: RunningTotals, *words: str, confs: Mapping[str, str] | None = None) -> None:
    with pytest.raises(StreamingQueryException) as failure:
        query.run(confs)
    message = str(failure.value)
    assert [word for word in words if word not in message] == [], message[:3000]


Find = Callable[[RunningTotals], Path]
Edit = Callable[[bytes], bytes | None]

DAMAGES: Mapping[str, tuple[Find, Edit, str]] = {
    "delta truncated": (newest_delta, lambda d: d[: len(d) // 2], "SPARKCKPT_CORRUPT_FILE"),
    "delta's rows damaged": (
        newest_delta,
        lambda d: flipped(d, len(d) // 3),
        "SPARKCKPT_CORRUPT_FILE",
    ),
    "delta's footer damaged": (
        newest_delta,
        lambda d: flipped(d, len(d) - 200),
        "SPARKCKPT_CORRUPT_FILE",
    ),
    "delta missing": (newest_delta, lambda d: None, "SPARKCKPT_UNREADABLE_FILE"),
    "base damaged": (base, lambda d: flipped(d, len(d) // 3), "SPARKCKPT_CORRUPT_FILE"),
    "handle truncated": (handle_path, lambda d: d[:-20], "SPARKCKPT_CORRUPT_FILE"),
    "handle empty": (handle_path, lambda d: b"", "SPARKCKPT_CORRUPT_FILE"),
    "handle damaged": (handle_path, lambda d: flipped(d, len(d) // 2), "SPARKCKPT_CORRUPT_FILE"),
    "handle missing": (handle_path, lambda d: None, "SPARKCKPT_UNREADABLE_FILE"),
    "handle newer": (
        handle_path,
        lambda d: d[:8] + b"\x03\0\0\0" + d[12:],
        "SPARKCKPT_NEWER_FORMAT",
    ),
    "handle of another version": (
        handle_path,
        lambda d: d[:8] + b"\x02\0\0\0" + d[12:],
        "SPARKCKPT_CORRUPT_FILE",
    ),
    "backend file damaged": (backend_file, lambda d: d[:5], "SPARKCKPT_UNREADABLE_BACKEND_FILE"),
    "backend file newer": (
        backend_file,
        lambda d: b'{"formatVersion": 2, "maxParallelism": 32768}',
        "SPARKCKPT_NEWER_FORMAT",
    ),
    "backend file of other key groups": (
        backend_file,
        lambda d: b'{"formatVersion": 1, "maxParallelism": 4096}',
        "SPARKCKPT_OTHER_MAX_PARALLELISM",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_named_and_costs_nothing(victim: RunningTotals, name: str) -> None:
    find, edit, condition = DAMAGES[name]
    path = find(victim)
    where = "state/0" if condition == "SPARKCKPT_OTHER_MAX_PARALLELISM" else path.name
    victim.feed()
    with replaced(path, edit(path.read_bytes())):
        assert_fails(victim, condition, where)
    victim.run()
    assert victim.result == totals_after(victim.batches)


def test_hadoop_finds_damage_too(victim: RunningTotals) -> None:
    """On storage with checksums of its own the damage is found below us, and named all the same."""
    path = newest_delta(victim)
    original = path.read_bytes()
    victim.feed()
    path.write_bytes(flipped(original, len(original) // 3))
    assert_fails(victim, "SPARKCKPT_", path.name)
    path.write_bytes(original)
    victim.run()
    assert victim.result == totals_after(victim.batches)


def test_a_newer_state_file_is_refused(victim: RunningTotals) -> None:
    handle = victim.handles()[PARTITION]
    (family,) = handle.families
    delta = victim.checkpoint / "state" / family.files[-1].path
    newer, ref = with_footer(
        delta.read_bytes(),
        family.files[-1],
        lambda footer: footer.update({"sparkckpt.formatVersion": "2"}),
    )
    refs: tuple[StateFileRef, ...] = (*family.files[:-1], ref)
    edited = write_handle(replace(handle, families=(replace(family, files=refs),)))
    victim.feed()
    with replaced(delta, newer), replaced(handle_path(victim), edited):
        assert_fails(victim, "SPARKCKPT_NEWER_FORMAT", delta.name, "version 2")
    victim.run()
    assert victim.result == totals_after(victim.batches)


def test_the_handle_of_another_store_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    query = RunningTotals(spark, tmp_path, NO_INLINING)
    query.advance()
    mine, other = (query.checkpoint / "state" / query.handles()[p].path for p in (PARTITION, 0))
    query.feed()
    with replaced(mine, other.read_bytes()):
        assert_fails(query, "SPARKCKPT_", mine.name)
    query.run()
    assert query.result == totals_after(query.batches)


def test_a_lost_backend_file_is_written_again(victim: RunningTotals) -> None:
    backend_file(victim).unlink()
    victim.advance()
    assert json.loads(backend_file(victim).read_text())["maxParallelism"] == 32768


def test_another_max_parallelism_is_refused(victim: RunningTotals) -> None:
    victim.feed()
    confs = {STATE_STORE + "sparkckpt.maxParallelism": "128"}
    assert_fails(victim, "SPARKCKPT_OTHER_MAX_PARALLELISM", "32768", "128", confs=confs)
    victim.run()
    assert victim.result == totals_after(victim.batches)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named(victim: RunningTotals) -> None:
    path = newest_delta(victim)
    victim.feed()
    path.chmod(0)
    assert_fails(victim, "SPARKCKPT_UNREADABLE_FILE", path.name)
    path.chmod(0o644)
    victim.run()
    assert victim.result == totals_after(victim.batches)


@pytest.mark.parametrize("version", [1, 2])
def test_a_checkpoint_of_sparks_own_provider(
    spark: SparkSession, tmp_path: Path, version: int
) -> None:
    """Spark pins the provider in a checkpoint: such a query goes on with it, and not with ours."""
    query = RunningTotals(spark, tmp_path, {})
    query.advance(
        confs={
            STATE_STORE + "providerClass": ROCKSDB_PROVIDER,
            STATE_STORE + "checkpointFormatVersion": str(version),
            STATE_STORE + "rocksdb.changelogCheckpointing.enabled": "true",
        }
    )
    if version == 1 and spark.version.startswith("4.2"):
        # There Spark itself would go on in format 2.
        with pytest.raises(StreamingQueryException, match="SPARKCKPT_FOREIGN_PROVIDER_FORMAT"):
            query.advance()
    else:
        query.advance()
    assert not list(tmp_path.rglob("*.handle"))


def test_two_queries_on_one_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    """Both compute the same batch; one of them is stopped, and the state is that of the other."""
    query = RunningTotals(spark, tmp_path / "one", NO_INLINING)
    query.advance(2)
    query.feed()
    twin = twin_of(query.checkpoint, tmp_path / "twin")
    results = []

    def collect(rows: DataFrame, batch: int) -> None:
        results.append({(r.k, r.g): (r.n, r.sum) for r in rows.collect()})

    def collect_and_be_overtaken(rows: DataFrame, batch: int) -> None:
        collect(rows, batch)
        run_on(spark, query, twin, collect)

    with pytest.raises(StreamingQueryException, match="CONCURRENT_STREAM_LOG_UPDATE"):
        run_on(spark, query, query.checkpoint, collect_and_be_overtaken)
    unload_state(spark)
    assert results == [totals_after(3)] * 2
    written = list((query.checkpoint / "state" / "0" / "0").glob("3_*.handle"))
    assert len(written) == 2, "both have written their state, each under its own name"
    query.advance()


def twin_of(checkpoint: Path, twin: Path) -> Path:
    """The same checkpoint under another name and query id: Spark stops no query in its favour."""
    twin.mkdir()
    for path in checkpoint.iterdir():
        if path.is_dir():
            (twin / path.name).symlink_to(path)
    (twin / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
    return twin


def run_on(
    spark: SparkSession,
    query: RunningTotals,
    checkpoint: Path,
    on_batch: Callable[[DataFrame, int], None],
) -> None:
    session = session_for(spark, {**CONFS, **query.confs})
    stream = TOTALS.transform(open_sources(session, TOTALS, query.workdir)).writeStream
    stream.outputMode("complete").option("checkpointLocation", str(checkpoint)).trigger(
        availableNow=True
    ).foreachBatch(on_batch).start().awaitTermination()


@contextlib.contextmanager
def full_disk(directory: Path) -> Iterator[None]:
    """The directory on a small disk of its own, without a byte to spare."""
    saved = directory.with_name("saved")
    directory.rename(saved)
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(directory)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        directory.rmdir()
        saved.rename(directory)
        pytest.skip("a disk to fill cannot be mounted here")
    try:
        shutil.copytree(saved, directory, dirs_exist_ok=True)
        with (directory / "ballast").open("wb", buffering=0) as ballast:
            with pytest.raises(OSError) as full:
                while True:
                    ballast.write(bytes(4096))
            assert full.value.errno == errno.ENOSPC
        yield
        (directory / "ballast").unlink()
        shutil.rmtree(saved)
        # Tasks of the failed stage may still be removing what they could not write.
        shutil.copytree(directory, saved, ignore=shutil.ignore_patterns(".*.tmp*"))
    finally:
        # Lazily: Hadoop leaves the file open that it could not finish.
        subprocess.run(["umount", "--lazy", str(directory)], check=True)
        directory.rmdir()
        saved.rename(directory)


@pytest.mark.parametrize("confs", [{}, NO_INLINING], ids=["inlined", "in files"])
def test_a_full_disk(spark: SparkSession, tmp_path: Path, confs: Mapping[str, str]) -> None:
    query = RunningTotals(spark, tmp_path, confs)
    query.advance(2)
    query.feed()
    with full_disk(query.checkpoint / "state"):
        assert_fails(query, "No space left on device")
    query.run()
    assert query.result == totals_after(query.batches)
