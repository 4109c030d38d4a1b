"""Spark's files with one thing changed: everything else is what Spark has written."""

import json
from pathlib import Path

import pytest

from sparkckpt.errors import CorruptStateError, UnsupportedFormatVersionError
from sparkckpt.sparklog import parse_commit, parse_offsets, parse_operator
from sparkckpt.sparklog.edits import (
    SHUFFLE_PARTITIONS,
    commit_with_ids,
    moved_operator,
    new_operator,
    new_query,
    offsets_with_conf,
)
from sparkckpt.sparklog.spans import elements, members, replaced, with_member
from tests.unit.format_samples import DATA

LOGS = DATA / "sparklog"
ODD = (
    'v1\n { "batchWatermarkMs" : 0,"batchTimestampMs":1e0 , "conf": {\t"a\\u0062": "\\"}{\\u00e9é",'
    ' "spark.sql.shuffle.partitions" :"3" } }\n{"offset": {"conf":{}}, "n": 1.50}\n-\n'
).encode()


@pytest.mark.parametrize("name", ["processor/offsets/1", "window/offsets/1", "join/offsets/3"])
def test_another_parallelism_in_the_offset_log(name: str) -> None:
    data = (LOGS / name).read_bytes()
    changed = offsets_with_conf(data, "x", SHUFFLE_PARTITIONS, "77")
    assert parse_offsets(changed, "x", 1).confs[SHUFFLE_PARTITIONS] == "77"
    setting = b'"spark.sql.shuffle.partitions":"%s"'
    assert changed == data.replace(setting % b"2", setting % b"77")
    assert offsets_with_conf(changed, "x", SHUFFLE_PARTITIONS, "2") == data


def test_what_is_not_changed_stays_byte_for_byte() -> None:
    assert offsets_with_conf(ODD, "x", SHUFFLE_PARTITIONS, "12") == ODD.replace(b'"3"', b'"12"')


def test_a_setting_that_is_not_there_is_added() -> None:
    data = b'v2\n{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}\na:{"x":1}'
    changed = offsets_with_conf(data, "x", "k", 'v"')
    assert changed == data.replace(b"{}", b'{"k":"v\\""}')
    assert offsets_with_conf(changed, "x", "l", "w") == data.replace(b"{}", b'{"l":"w","k":"v\\""}')


@pytest.mark.parametrize("name", ["commit-v3", "join/commits/3"])
def test_other_ids_in_the_commit_log(name: str) -> None:
    data = (LOGS / name).read_bytes()
    ids = {0: (("m", "m"),) * 3, 1: (("m",),)}
    changed = commit_with_ids(data, "x", ids)
    assert parse_commit(changed, "x", 3).state_ids == ids
    before, after = (json.loads(text.split(b"\n")[1]) for text in (data, changed))
    assert {**before, "stateUniqueIds": None} == {**after, "stateUniqueIds": None}
    assert changed.split(b"\n")[0] == data.split(b"\n")[0]
    original = parse_commit(data, "x", 3).state_ids
    assert commit_with_ids(changed, "x", original) == data


def test_ids_where_there_were_none() -> None:
    changed = commit_with_ids(b'v2\n{"nextBatchWatermarkMs":5}', "x", {0: [["m"]]})
    assert changed == b'v2\n{"stateUniqueIds":{"0":[["m"]]},"nextBatchWatermarkMs":5}'
    with pytest.raises(CorruptStateError, match="version 1, which cannot name state"):
        commit_with_ids(b'v1\n{"nextBatchWatermarkMs":5}', "the file", {0: [["m"]]})


def test_an_operator_elsewhere() -> None:
    data = (LOGS / "processor/state/0/_metadata/v2/0").read_bytes()
    moved = moved_operator(data, "x", 4, 9, "s3a://b/new/state/4")
    entry = parse_operator(moved, "x")
    assert (entry.operator_id, entry.operator_name) == (4, "transformWithStateInPandasExec")
    assert [store.partitions for store in entry.stores] == [9]
    path = json.loads(moved.split(b"\n")[1])["stateStoreInfo"][0]["stateSchemaFilePaths"]
    assert path == [f"s3a://b/new/state/4/{entry.stores[0].schema_paths[0]}"]
    assert moved_operator(moved, "x", 0, 2, "file:/checkpoint/state/0") == data


def test_an_operator_of_version_1_elsewhere() -> None:
    data = (LOGS / "join/state/0/_metadata/metadata").read_bytes()
    moved = moved_operator(data, "x", 1, 5, "file:///new/state/1")
    assert moved == data.replace(b'Id":0', b'Id":1').replace(b'Partitions":2', b'Partitions":5')


def test_new_operators() -> None:
    stub = parse_operator(new_operator(2, "dedupe", ("default",), 6), "x")
    assert (stub.operator_id, stub.operator_name, len(stub.stores)) == (2, "dedupe", 1)
    assert stub.stores[0].partitions == 6
    properties = {"timeMode": "NoTime"}
    data = new_operator(2, "transformWithStateExec", ("default",), 6, properties)
    assert data.startswith(b"v2\n") and parse_operator(data, "x").stores[0].schema_paths == ()
    assert json.loads(json.loads(data.split(b"\n")[1])["operatorPropertiesJson"]) == properties


def test_a_new_query_has_its_id_as_spark_writes_it(tmp_path: Path) -> None:
    like = json.loads((LOGS / "window/metadata").read_bytes())
    assert new_query(like["id"]) == (LOGS / "window/metadata").read_bytes().rstrip(b"\n")


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"v1\n",
        b"v1\n{}\n-",
        b'v1\n{"conf":3}\n-',
        b'v1\n{"conf":{"a"}}\n-',
        b'v1\n{"conf":{\n-',
    ],
)
def test_damage_is_named(damaged: bytes) -> None:
    with pytest.raises(CorruptStateError, match="the file is corrupt"):
        offsets_with_conf(damaged, "the file", "k", "v")


def test_newer_versions_are_refused() -> None:
    with pytest.raises(UnsupportedFormatVersionError):
        offsets_with_conf(b"v3\n{}\n-", "x", "k", "v")
    with pytest.raises(UnsupportedFormatVersionError):
        commit_with_ids(b"v4\n{}", "x", {})
    with pytest.raises(UnsupportedFormatVersionError):
        moved_operator(b"v3\n{}", "x", 0, 1, "d")


def test_spans() -> None:
    text = ' { "a" : [1, {"b": "]"} ,"x\\""], "c":{}, "d": -1.5e3 }'
    found = members(text)
    assert {name: text[s.start : s.end] for name, s in found.items()} == {
        "a": '[1, {"b": "]"} ,"x\\""]',
        "c": "{}",
        "d": "-1.5e3",
    }
    assert [text[s.start : s.end] for s in elements(text, found["a"].start)] == [
        "1",
        '{"b": "]"}',
        '"x\\""',
    ]
    assert members(text, found["c"].start) == {}
    assert json.loads(replaced(text, {found["c"]: [1], found["d"]: None})) == {
        "a": [1, {"b": "]"}, 'x"'],
        "c": [1],
        "d": None,
    }
    assert with_member("{}", 0, "a", 1) == '{"a":1}'
    for broken in ("", "[", "{", '{"a"', '{"a":', '{"a":1', '{"a":1,', '{"a":1 2}', "[]"):
        with pytest.raises(ValueError):
            members(broken)
