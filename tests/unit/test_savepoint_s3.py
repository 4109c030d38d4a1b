"""Savepoints on a real S3 API: moto's server on loopback, and s3fs as a user has it."""

import os
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from moto.server import ThreadedMotoServer

import sparkckpt
from sparkckpt.errors import SavepointExistsError, UnfinishedSavepointError
from sparkckpt.storage import Storage
from tests.unit.restore_samples import loaded_rows, sample


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    settings = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setitem(os.environ, name, value)
        filesystem = fsspec.filesystem("s3")
        filesystem.mkdir("bucket")
        yield "s3://bucket"
        fsspec.filesystem("s3").clear_instance_cache()
    server.stop()


def test_there_and_back(bucket: str, tmp_path: Path) -> None:
    source = sample(tmp_path)
    rows = loaded_rows(Storage.at(source))[1]
    report = sparkckpt.savepoint(source, f"{bucket}/backups/sp")
    assert report.name == "sp"
    assert sparkckpt.verify(f"{bucket}/backups/sp").to_pylist() == []
    with pytest.raises(SavepointExistsError, match="is a savepoint already"):
        sparkckpt.savepoint(source, f"{bucket}/backups/sp")
    # Copied by other means, and restored from there on the same storage and on another.
    fsspec.filesystem("s3").copy("bucket/backups/sp", "bucket/copy", recursive=True)
    sparkckpt.dispose(f"{bucket}/backups/sp")
    assert not fsspec.filesystem("s3").find("bucket/backups")
    for target in (f"{bucket}/restored", str(tmp_path / "restored")):
        sparkckpt.restore(f"{bucket}/copy", target, parallelism=3)
        assert loaded_rows(Storage.at(target)) == (3, rows)
    again = sparkckpt.savepoint(f"{bucket}/restored", tmp_path / "local")
    assert again.rows == report.rows


def test_one_that_was_broken_off(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = sample(tmp_path), f"{bucket}/broken"
    write = Storage.write_atomic

    def failing(self: Storage, path: str, data: bytes, overwrite: bool = False) -> None:
        if path.endswith("_metadata"):
            raise KeyboardInterrupt
        write(self, path, data, overwrite)

    monkeypatch.setattr(Storage, "write_atomic", failing)
    with pytest.raises(KeyboardInterrupt):
        sparkckpt.savepoint(source, target)
    monkeypatch.undo()
    with pytest.raises(UnfinishedSavepointError, match="is not a savepoint yet"):
        sparkckpt.restore(target, tmp_path / "restored")
    before = set(fsspec.filesystem("s3").find("bucket/broken/state"))
    sparkckpt.savepoint(source, target)
    assert not before & set(fsspec.filesystem("s3").find("bucket/broken/state"))
    assert sparkckpt.verify(target).to_pylist() == []
