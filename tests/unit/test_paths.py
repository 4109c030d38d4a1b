"""One name for each file, however it is put."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkckpt.paths import StateRoot, canonical, is_absolute
from sparkckpt.storage import Storage

NAMES = st.lists(st.text("abc%24_.-", min_size=1, max_size=5), min_size=1, max_size=4).map("/".join)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("/a/b", "file:///a/b"),
        ("file:/a/b", "file:///a/b"),
        ("file:///a/b/", "file:///a/b"),
        ("file://localhost/a//b", "file:///a/b"),
        ("s3://bucket/k", "s3a://bucket/k"),
        ("S3N://bucket/k", "s3a://bucket/k"),
        ("hdfs://nn:8020/a", "hdfs://nn:8020/a"),
        ("abfss://c@account.dfs.core.windows.net/a", "abfss://c@account.dfs.core.windows.net/a"),
        ("memory://a/b", "memory:///a/b"),
        ("/", "file:///"),
    ],
)
def test_canonical(url: str, expected: str) -> None:
    assert canonical(url) == expected
    assert canonical(expected) == expected


@given(NAMES)
def test_a_file_below_the_root_has_its_relative_path_for_a_name(name: str) -> None:
    root = StateRoot("file:///c/state")
    for prefix in ("/c/state", "file:/c/state", "file:///c/state", "file:///c//state"):
        assert root.name_of(f"{prefix}/{name}") == name
    assert root.name_of(name) == name and not is_absolute(name)
    assert root.name_of(root.url_of(name)) == name


@given(NAMES)
def test_a_file_elsewhere_has_its_url_for_a_name(name: str) -> None:
    root, other = StateRoot("hdfs://nn/c/state"), StateRoot("hdfs://nn/c/state2")
    found = root.name_of(f"/c/state2/{name}")
    assert found == f"hdfs://nn/c/state2/{name}" and is_absolute(found)
    assert other.below(found) == name and root.below(found) is None
    assert root.name_of(f"s3://b/{name}") == f"s3a://b/{name}"


def test_the_root_of_a_storage() -> None:
    assert StateRoot.of(Storage.at("memory://a/state")).url == "memory:///a/state"
    assert StateRoot.of(Storage.at("/a/state")).checkpoint == "file:///a"


def test_storage_reads_what_hadoop_calls_a_local_file(tmp_path: object) -> None:
    storage = Storage.at(f"{tmp_path}/here")
    storage.write_atomic(f"file:{tmp_path}/there/x", b"x")
    assert storage.read_all(f"file://{tmp_path}/there/x") == b"x"
    assert storage.read_all(f"{tmp_path}/there/x") == b"x"
