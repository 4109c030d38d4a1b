"""Spark's own files, written by Spark 4.3, say what they say, and damage to them is named."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from sparkckpt.errors import (
    CorruptStateError,
    FileMissingError,
    NotACheckpointError,
    UnsupportedFormatVersionError,
)
from sparkckpt.sparklog import (
    MasterState,
    SparkCheckpoint,
    StoreEntry,
    parse_commit,
    parse_offsets,
    parse_operator,
)
from sparkckpt.storage import Storage
from tests.unit.format_samples import DATA

LOGS = DATA / "sparklog"


def checkpoint(name: str) -> SparkCheckpoint:
    return SparkCheckpoint.at(Storage.at(LOGS / name))


def test_offsets_by_position() -> None:
    entry = checkpoint("join").offsets(1)
    assert entry.batch_id == 1
    assert entry.watermark_ms == 1709251195000
    assert entry.timestamp_ms > 1_700_000_000_000
    assert entry.confs["spark.sql.shuffle.partitions"] == "2"
    assert entry.sources == ('{"logOffset":1}', '{"logOffset":1}')
    assert entry.names == ("0", "1")


def test_offsets_by_name() -> None:
    entry = checkpoint("processor").offsets(2)
    assert (entry.names, entry.sources) == (("0",), ('{"logOffset":2}',))
    assert entry.confs["spark.sql.shuffle.partitions"] == "2"


def test_a_source_without_offset() -> None:
    by_position = b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}\n-\n{"a:b":1}'
    assert parse_offsets(by_position, "x", 0).sources == (None, '{"a:b":1}')
    by_name = b'v2\n{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}\nleft:-\nr:{"a:b":1}\n'
    entry = parse_offsets(by_name, "x", 0)
    assert dict(zip(entry.names, entry.sources, strict=True)) == {"left": None, "r": '{"a:b":1}'}


def test_commits_name_an_id_for_each_store() -> None:
    commit = checkpoint("join").commit(1)
    assert commit.next_watermark_ms == 1709251215000
    assert set(commit.state_ids) == {0}
    assert [len(stores) for stores in commit.state_ids[0]] == [4, 4]
    assert commit.state_ids[0][0][3] == "730d7a0f-4ac9-4f4e-bca0-d233492eeca6"


def test_commits_of_other_versions() -> None:
    named_sink = parse_commit((LOGS / "commit-v3").read_bytes(), "x", 0)
    assert named_sink.next_watermark_ms == 1709251197000
    assert [len(stores) for stores in named_sink.state_ids[0]] == [1, 1]
    first = parse_commit(b'v1\n{"nextBatchWatermarkMs":5}', "x", 3)
    assert (first.batch_id, first.next_watermark_ms, first.state_ids) == (3, 5, {})
    assert parse_commit(b'v2\n{"nextBatchWatermarkMs":5}', "x", 3).state_ids == {}


def test_latest_entries() -> None:
    window = checkpoint("window")
    assert window.planned_batches() == window.committed_batches() == [0, 1, 2]
    assert window.latest_offsets() == window.offsets(2)
    assert window.latest_commit() == window.commit(2)
    assert window.query_id() in (LOGS / "window" / "metadata").read_text()


def test_a_query_that_has_not_begun(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_text('{"id":"q"}')
    begun = SparkCheckpoint.at(Storage.at(tmp_path))
    assert begun.query_id() == "q"
    assert (begun.latest_offsets(), begun.latest_commit()) == (None, None)


def test_only_batches_are_entries(tmp_path: Path) -> None:
    shutil.copytree(LOGS / "window", tmp_path, dirs_exist_ok=True)
    for name in (".3.crc", ".3.5f0c.tmp", "3.crc", "-3", "x", "٣"):
        (tmp_path / "commits" / name).write_text("")
    assert SparkCheckpoint.at(Storage.at(tmp_path)).committed_batches() == [0, 1, 2]


def test_operators() -> None:
    join = checkpoint("join").operator(0, 3)
    assert (join.operator_id, join.operator_name) == (0, "symmetricHashJoin")
    assert join.stores[1] == StoreEntry(
        "left-keyWithIndexToValue", 2, ("0/left-keyWithIndexToValue/_metadata/schema",)
    )
    assert checkpoint("window").operator(0, 2).stores[0].schema_paths == ("0/_metadata/schema",)
    (store,) = checkpoint("processor").operator(0, 2).stores
    (schema,) = store.schema_paths
    assert schema.startswith("_stateSchema/default/0_")


SCHEMA = "state/0/_stateSchema/default/0_10206714-1927-4d09-a7a6-330ad20bce46"


@pytest.mark.parametrize(
    ("name", "batch", "of_operator"),
    [
        ("window", 0, ["state/0/0/_metadata/schema", "state/0/_metadata/metadata"]),
        ("window", 2, ["state/0/0/_metadata/schema", "state/0/_metadata/metadata"]),
        ("processor", 1, ["state/0/_metadata/v2/0", SCHEMA]),
        ("processor", 2, ["state/0/_metadata/v2/2", SCHEMA]),
    ],
)
def test_master_states(name: str, batch: int, of_operator: list[str]) -> None:
    states = checkpoint(name).master_states(batch)
    before = [f"offsets/{batch - 1}"] if batch else []
    of_batch = [f"commits/{batch}", "metadata", *before, f"offsets/{batch}"]
    assert [state.path for state in states] == of_batch + of_operator
    assert all(state.content == (LOGS / name / state.path).read_bytes() for state in states)


def test_a_join_has_a_schema_for_each_store() -> None:
    paths = [state.path for state in checkpoint("join").master_states(3)]
    assert sum(path.endswith("/_metadata/schema") for path in paths) == 4


def test_known_files_are_not_read_again(tmp_path: Path) -> None:
    shutil.copytree(LOGS / "processor", tmp_path, dirs_exist_ok=True)
    spark = SparkCheckpoint.at(Storage.at(tmp_path))
    first = spark.master_states(0)
    shutil.rmtree(tmp_path / "state")
    for path in ("metadata", "offsets/0", "commits/1"):
        (tmp_path / path).unlink()
    commit = MasterState("commits/1", (LOGS / "processor/commits/1").read_bytes())
    assert spark.master_states(1, (*first, commit)) == checkpoint("processor").master_states(1)


def test_the_offsets_before_may_have_been_purged(tmp_path: Path) -> None:
    shutil.copytree(LOGS / "window", tmp_path, dirs_exist_ok=True)
    (tmp_path / "offsets" / "0").unlink()
    paths = [state.path for state in SparkCheckpoint.at(Storage.at(tmp_path)).master_states(1)]
    assert "offsets/0" not in paths and "offsets/1" in paths


def test_no_checkpoint_here(tmp_path: Path) -> None:
    with pytest.raises(NotACheckpointError, match=f"{tmp_path} is not a Spark checkpoint"):
        SparkCheckpoint.at(Storage.at(tmp_path))


def test_missing_entries_are_named(tmp_path: Path) -> None:
    for missing in (checkpoint("window").commit, checkpoint("window").offsets):
        with pytest.raises(FileMissingError, match=r"/9 cannot be read: No such file"):
            missing(9)
    with pytest.raises(FileMissingError, match="commits/9 cannot be read"):
        checkpoint("window").master_states(9)


OFFSETS = b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{"a":"b"}}\n{"x":1}'
NAMED = OFFSETS.replace(b"v1", b"v2").replace(b'\n{"x"', b'\nname:{"x"')
COMMIT = b'v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":{"0":[["a","b"],["c","d"]]}}'
OPERATOR = (
    b'v2\n{"operatorInfo":{"operatorId":0,"operatorName":"o"},"stateStoreInfo":[{"storeName":'
    b'"default","numColsPrefixKey":0,"numPartitions":2,"stateSchemaFilePaths":["/c/_stateSchema/s"'
    b']}],"operatorPropertiesJson":""}'
)


def offsets(data: bytes) -> object:
    return parse_offsets(data, "the file", 0)


def commit(data: bytes) -> object:
    return parse_commit(data, "the file", 0)


def operator(data: bytes) -> object:
    return parse_operator(data, "the file")


DAMAGED: dict[str, tuple[Callable[[bytes], object], bytes, str]] = {
    "empty": (commit, b"", "its first line is '', not a version"),
    "not a version": (commit, COMMIT[1:], "its first line is '2', not a version"),
    "version 0": (commit, COMMIT.replace(b"v2", b"v0"), "its first line is 'v0'"),
    "not UTF-8": (commit, b"\xff" + COMMIT, "it is not UTF-8"),
    "a commit cut off": (commit, COMMIT[:40], "its entry is not JSON"),
    "a commit with only its version": (commit, b"v2\n", "its entry is not JSON"),
    "no watermark": (commit, b"v2\n{}", "'nextBatchWatermarkMs' is None"),
    "negative watermark": (
        commit,
        COMMIT.replace(b'Ms":0', b'Ms":-1'),
        "'nextBatchWatermarkMs' is -1",
    ),
    "ids of no operator": (commit, COMMIT.replace(b'"0":', b'"x":'), "'x' is no operator"),
    "ids that are numbers": (commit, COMMIT.replace(b'"d"', b"1"), "operator 0 has other than ids"),
    "empty ids": (commit, COMMIT.replace(b'"d"', b'""'), "operator 0 has other than ids"),
    "ids not in lists": (commit, COMMIT.replace(b'["c","d"]', b'"cd"'), "other than ids"),
    "ids no object": (commit, b'v2\n{"nextBatchWatermarkMs":0,"stateUniqueIds":3}', "no JSON obj"),
    "offsets cut off": (offsets, OFFSETS[:50], "it ends before the offset of a source"),
    "metadata cut off": (offsets, OFFSETS.replace(b"}}", b"}"), "its metadata is not JSON"),
    "no timestamp": (offsets, OFFSETS.replace(b"Timestamp", b""), "'batchTimestampMs' is None"),
    "confs not text": (offsets, OFFSETS.replace(b'"b"', b"1"), "'conf' is"),
    "a source without name": (offsets, NAMED + b"\nx", "the line 'x' names no source"),
    "a source twice": (offsets, NAMED + b"\nname:1", "two offsets of one source"),
    "operator cut off": (operator, OPERATOR[:80], "its entry is not JSON"),
    "no operator": (operator, OPERATOR.replace(b"Info", b"", 1), "its operatorInfo is no JSON"),
    "no partitions": (operator, OPERATOR.replace(b'ons":2', b'ons":0'), "'numPartitions' is 0"),
    "schema elsewhere": (operator, OPERATOR.replace(b"_stateSchema", b""), "no path of a schema"),
    "schema no path": (operator, OPERATOR.replace(b'"/c/_stateSchema/s"', b"1"), "1 is no path"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_named(name: str) -> None:
    parse, data, message = DAMAGED[name]
    with pytest.raises(CorruptStateError, match=f"^the file is corrupt: .*{message}"):
        parse(data)


def test_the_undamaged_ones_are_read() -> None:
    assert all((offsets(OFFSETS), offsets(NAMED), commit(COMMIT), operator(OPERATOR)))


@pytest.mark.parametrize(
    ("parse", "data", "newest"),
    [(offsets, OFFSETS, 2), (commit, COMMIT, 3), (operator, OPERATOR, 2)],
)
def test_newer_versions_are_refused(
    parse: Callable[[bytes], object], data: bytes, newest: int
) -> None:
    newer = b"v%d" % (newest + 1) + data[2:]
    with pytest.raises(UnsupportedFormatVersionError, match=f"the file has .* up to {newest}"):
        parse(newer)
