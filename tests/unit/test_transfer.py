"""What an import or export decides before and after Spark has moved the state."""

import json
import os
import re
import shutil
import socket
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

import sparkckpt
from sparkckpt.coordinator.lease import Lease
from sparkckpt.errors import (
    AlreadyOnSparkckptError,
    CorruptStateError,
    ForeignCheckpointError,
    InvalidConfError,
    InvalidParallelismError,
    NotACheckpointError,
    OperatorMetadataMissingError,
    QueryRunningError,
    RestorePendingError,
    TargetNotEmptyError,
    UnsupportedProviderError,
)
from sparkckpt.restoration.markers import RESTORING_PATH, read_restoring
from sparkckpt.restoration.source import open_storage
from sparkckpt.sparklog import SparkCheckpoint, parse_commit
from sparkckpt.storage import Storage
from sparkckpt.transfer.commits import commit_with_state
from sparkckpt.transfer.job import Moved
from sparkckpt.transfer.source import (
    HDFS_BACKED,
    PROVIDER,
    ROCKSDB,
    SourceCheckpoint,
)
from sparkckpt.transfer.target import Transfer
from tests.unit.format_samples import DATA

LOGS = DATA / "sparklog"


@pytest.fixture(params=["window", "join", "processor"])
def ours(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The files of Spark's own in a checkpoint of ours."""
    return copy_of(request.param, tmp_path)


def copy_of(name: str, tmp_path: Path) -> Path:
    copy = tmp_path / "source"
    shutil.copytree(LOGS / name, copy)
    (copy / "_sparkckpt").mkdir()
    return copy


@pytest.fixture
def spark_s(tmp_path: Path) -> Path:
    """As if the join were one of Spark's RocksDB, in checkpoint format 1."""
    copy = copy_of("join", tmp_path)
    (copy / "_sparkckpt").rmdir()
    for log in (copy / "offsets").iterdir():
        if log.is_file() and not log.name.startswith("."):
            set_provider(log, ROCKSDB)
    for log in (copy / "commits").iterdir():
        if not log.name.startswith("."):
            log.write_bytes(commit_with_state(log.read_bytes(), str(log), None))
    return copy


def set_provider(log: Path, provider: str) -> None:
    version, metadata, *sources = log.read_text().splitlines()
    fields = json.loads(metadata)
    fields["conf"][PROVIDER] = provider
    log.write_text("\n".join([version, json.dumps(fields), *sources]))


def read(path: Path) -> SourceCheckpoint:
    return SourceCheckpoint.read(*open_storage(path))


def test_a_source_is_read_at_its_last_committed_batch(ours: Path) -> None:
    source = read(ours)
    spark = SparkCheckpoint(Storage.at(ours))
    last = spark.committed_batches()[-1]
    assert (source.batch_id, source.planned_batch_id) == (last, None)
    assert (source.parallelism, source.format_version) == (2, 2)
    assert list(source.offsets) == [last - 2, last - 1, last]
    (operator,) = source.operators
    assert operator.ids == spark.commit(last).state_ids[0]
    assert [len(ids) for ids in operator.ids] == [len(operator.schemas)] * 2
    for path in (path for store in operator.schemas for path in store):
        assert (ours / path).is_file()


def test_a_planned_batch_is_read_too(ours: Path) -> None:
    last = read(ours).batch_id
    assert last is not None
    (ours / "commits" / str(last)).unlink()
    source = read(ours)
    assert (source.batch_id, source.planned_batch_id) == (last - 1, last)
    assert list(source.offsets) == [last - 2, last - 1, last]


def test_before_the_first_commit_there_is_no_state(spark_s: Path) -> None:
    for log in (spark_s / "commits").iterdir():
        log.unlink()
    for batch in ("1", "2", "3"):
        (spark_s / "offsets" / batch).unlink()
    source = read(spark_s)
    assert (source.batch_id, source.planned_batch_id) == (None, 0)
    assert source.operators == ()


def test_without_ids_operators_are_found_by_their_state(spark_s: Path) -> None:
    source = read(spark_s)
    assert source.format_version == 1
    assert source.provider == ROCKSDB
    (operator,) = source.operators
    assert (operator.operator_id, list(operator.ids)) == (0, [])
    shutil.rmtree(spark_s / "state" / "0" / "_metadata")
    with pytest.raises(OperatorMetadataMissingError, match=r"operator 0.*older than 4\.0"):
        read(spark_s)


def test_batches_must_follow_each_other(ours: Path) -> None:
    planned, committed = read(ours).batches
    assert planned == committed is not None
    (ours / "offsets" / str(planned)).unlink()
    with pytest.raises(CorruptStateError, match="its last committed one is"):
        read(ours)


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with pytest.raises(NotACheckpointError, match="does not exist"):
        sparkckpt.import_checkpoint(tmp_path / "nowhere", target)
    with pytest.raises(NotACheckpointError, match="no file 'metadata'"):
        sparkckpt.export_checkpoint(tmp_path, target)
    (tmp_path / "metadata").write_text('{"id":"e7a1b6a5-9d3c-4b67-8d0e-0a4f6a3c7b11"}')
    with pytest.raises(NotACheckpointError, match="without any batch"):
        sparkckpt.import_checkpoint(tmp_path, target)
    assert not target.exists()


def test_what_cannot_be_imported(spark_s: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    for parallelism in (0, -1, 4097):
        with pytest.raises(InvalidParallelismError):
            sparkckpt.import_checkpoint(
                spark_s, target, parallelism=parallelism, max_parallelism=4096
            )
    with pytest.raises(InvalidParallelismError):
        sparkckpt.import_checkpoint(spark_s, target, max_parallelism=32769)
    set_provider(spark_s / "offsets" / "3", "org.example.StateStore")
    with pytest.raises(UnsupportedProviderError, match=r"org\.example\.StateStore"):
        sparkckpt.import_checkpoint(spark_s, target)
    with pytest.raises(ForeignCheckpointError):
        sparkckpt.export_checkpoint(spark_s, target)
    assert not target.exists()


def test_what_cannot_be_exported(ours: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    with pytest.raises(AlreadyOnSparkckptError):
        sparkckpt.import_checkpoint(ours, target)
    with pytest.raises(InvalidConfError, match="parallelism"):
        sparkckpt.export_checkpoint(ours, target, parallelism=0)
    with pytest.raises(InvalidConfError, match="checkpoint_format"):
        sparkckpt.export_checkpoint(ours, target, checkpoint_format=3)
    lease = Lease.claim(Storage.at(ours), "a-run", now_ms())
    with pytest.raises(QueryRunningError, match="a-run"):
        sparkckpt.export_checkpoint(ours, target)
    lease.release(now_ms())
    assert not target.exists()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_a_checkpoint_without_a_provider_is_that_of_sparks_old_default(spark_s: Path) -> None:
    log = spark_s / "offsets" / "3"
    version, metadata, *sources = log.read_text().splitlines()
    fields = json.loads(metadata)
    del fields["conf"][PROVIDER]
    log.write_text("\n".join([version, json.dumps(fields), *sources]))
    assert read(spark_s).provider == HDFS_BACKED


def transfer_to(target: Path, source: Path) -> Transfer:
    return Transfer("import", read(source), *open_storage(target))


def test_a_target_must_be_empty(spark_s: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    (target / "state" / "0").mkdir(parents=True)
    transfer_to(target, spark_s).begin()
    (target / RESTORING_PATH).unlink()
    (target / "state" / "0" / "precious").write_text("x")
    with pytest.raises(TargetNotEmptyError, match="state"):
        transfer_to(target, spark_s).begin()
    assert (target / "state" / "0" / "precious").exists()


def test_what_a_killed_run_left_is_swept(spark_s: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    transfer_to(target, spark_s).begin()
    (target / "state").mkdir()
    (target / "state" / "half").write_text("x")
    transfer_to(target, spark_s).begin()
    assert Storage.at(target).find("").keys() == {RESTORING_PATH}
    with pytest.raises(RestorePendingError):
        sparkckpt.list_checkpoints(target)


def test_only_what_a_killed_run_has_written_is_swept(spark_s: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    transfer_to(target, spark_s).begin()
    (target / "mine").write_text("x")
    transfer_to(target, spark_s).begin()
    assert (target / "mine").read_text() == "x"


class NameNode(LocalFileSystem):
    """A file system that, as HDFS does, knows paths without the host they are on."""

    protocol = "namenode"

    @classmethod
    def _strip_protocol(cls, path: Any) -> str:
        return re.sub(r"^namenode://[^/]*", "", str(path)).rstrip("/") or "/"

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, Any]:
        return {}

    def unstrip_protocol(self, name: str) -> str:
        return f"namenode://{self._strip_protocol(name)}"


def test_urls_keep_their_host(
    spark_s: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsspec.register_implementation("namenode", NameNode, clobber=True)
    source, target = f"namenode://nn1:8020{spark_s}", f"namenode://nn2:8020{tmp_path}/target"
    seen = []

    def move(session: None, transfer: Transfer, *rest: Any) -> Moved:
        marker = read_restoring(transfer.target)
        seen.append((transfer.source_url, transfer.target_url, marker and marker.source))
        return Moved((), {0: [["a"] * 4] * 2})

    monkeypatch.setattr("sparkckpt.transfer.moves.move_state", move)
    monkeypatch.setattr("sparkckpt.transfer.moves.transfer_session", lambda *_: nullcontext())
    report = sparkckpt.import_checkpoint(source, target)
    assert seen == [(source, target, source)]
    assert (report.source, report.target) == (source, target)
    assert (tmp_path / "target/offsets/3").is_file()


def test_sources_that_change_meanwhile(
    ours: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A source's log is compacted between its listing and its copying."""
    (ours / "sources/0").mkdir(parents=True)
    (ours / "sources/0/1").write_text("old")
    find = Storage.find

    def compacted(self: Storage, directory: str) -> dict[str, int]:
        found = find(self, directory)
        if directory == "sources" and (ours / "sources/0/1").exists():
            (ours / "sources/0/1").rename(ours / "sources/0/1.compact")
        return found

    transfer = transfer_to(tmp_path / "target", ours)
    transfer.begin()
    monkeypatch.setattr(Storage, "find", compacted)
    transfer.write_logs({}, {0: [["a"]]})
    assert (tmp_path / "target/sources/0/1.compact").read_text() == "old"


def test_another_run_is_left_alone(spark_s: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    transfer_to(target, spark_s).begin()
    marker = target / RESTORING_PATH
    fields = json.loads(marker.read_text())
    assert fields["host"] == socket.gethostname()
    marker.write_text(json.dumps({**fields, "pid": os.getppid()}))
    with pytest.raises(RestorePendingError, match=f"process {os.getppid()}"):
        transfer_to(target, spark_s).begin()
    marker.write_text(json.dumps({**fields, "source": "file:///elsewhere"}))
    with pytest.raises(RestorePendingError, match="file:///elsewhere"):
        transfer_to(target, spark_s).begin()
    assert read_restoring(Storage.at(target)) is not None


def test_logs_of_a_target(ours: Path, tmp_path: Path) -> None:
    source = read(ours)
    target = tmp_path / "target"
    (ours / "sources" / "0").mkdir(parents=True)
    (ours / "sources" / "0" / "0").write_text("v1\n...")
    transfer = Transfer("export", source, *open_storage(target))
    transfer.begin()
    transfer.write_operators(7)
    ids = {0: [["a"] * len(source.operators[0].schemas)] * 7}
    transfer.write_logs({PROVIDER: ROCKSDB, "spark.sql.shuffle.partitions": "7"}, ids)
    transfer.end()
    assert not (target / "_sparkckpt").exists()
    moved = read(target)
    assert (moved.provider, moved.parallelism, moved.batch_id) == (ROCKSDB, 7, source.batch_id)
    (operator,) = moved.operators
    assert [list(map(str, stores)) for stores in operator.ids] == ids[0]
    assert {store.partitions for store in operator.entry.stores} == {7}
    assert operator.schemas == source.operators[0].schemas
    if operator.metadata.path.endswith("/v2/2"):
        assert f'"{target.as_uri()}/state/0/_stateSchema/' in operator.metadata.content.decode()
    assert (target / "sources" / "0" / "0").read_text() == "v1\n..."
    for batch in source.offsets:
        before, after = (SparkCheckpoint(Storage.at(p)).offsets(batch) for p in (ours, target))
        assert (after.sources, after.watermark_ms) == (before.sources, before.watermark_ms)


IDS = {0: [["a", "b"], ["c", "d"]]}


@pytest.mark.parametrize("version", [1, 2, 3])
def test_commits_with_and_without_ids(version: int) -> None:
    more = ',"sinkMetadataMap":{"s":{"commitOffset":"{\\"a\\": 1}"}}' if version == 3 else ""
    old = ',"stateUniqueIds":{"0":[["x"]]}' if version > 1 else ""
    data = f'v{version}\n{{"nextBatchWatermarkMs":5{old}{more}}}'.encode()
    with_ids = commit_with_state(data, "there", IDS)
    assert parse_commit(with_ids, "there", 0).state_ids == {0: (("a", "b"), ("c", "d"))}
    assert parse_commit(with_ids, "there", 0).next_watermark_ms == 5
    without = commit_with_state(with_ids, "there", None)
    assert without.decode() == f'v{3 if version == 3 else 1}\n{{"nextBatchWatermarkMs":5{more}}}'
    assert with_ids.startswith(b"v3" if version == 3 else b"v2")


def test_a_corrupt_commit() -> None:
    with pytest.raises(CorruptStateError):
        commit_with_state(b"v2\nnonsense", "there", None)
