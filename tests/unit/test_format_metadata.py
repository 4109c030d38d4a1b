"""Metadata comes back as it was written, takes little room, and is refused when it cannot be."""

import json
import random
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from sparkckpt.errors import CorruptStateError, UnsupportedFormatVersionError
from sparkckpt.format import (
    CheckpointMetadata,
    MasterState,
    OperatorState,
    OperatorStateHandle,
    OperatorStateInfo,
    OperatorSubtaskState,
    StateFileRef,
    metadata_path,
    read_description,
    read_metadata,
    write_description,
    write_metadata,
)
from sparkckpt.format.metadata import MAGIC
from sparkckpt.keygroups import KeyGroupRange
from tests.unit.format_samples import DATA, description_of, flipped, handle_of, puts, state_file
from tests.unit.metadata_samples import (
    JOIN_STORES,
    metadata_of,
    random_handle,
    random_operator,
    with_handle,
)

SEED = 20_240_229
JOIN = random_operator(random.Random(SEED))
SAMPLE = metadata_of(JOIN)
WRITTEN = write_metadata(SAMPLE)
OPERATOR_STATE = OperatorStateHandle(
    path="4/0/9_x.handle",
    offset=90,
    length=200,
    crc32=7,
    states=(
        OperatorStateInfo("offsets", "split", 3, 12),
        OperatorStateInfo("seen", "union", 1, 4, inherited=True),
    ),
)
WITH_OPERATOR_STATE = metadata_of(
    with_handle(JOIN, 1, replace(JOIN.subtasks[1].handles[0], operator_state=OPERATOR_STATE))
)


def with_json(description: object) -> bytes:
    """Metadata with another description and a checksum that vouches for it."""
    packed = zstandard.compress(json.dumps(description).encode())
    trailer = len(packed).to_bytes(4, "little") + zlib.crc32(packed).to_bytes(4, "little")
    return MAGIC + (1).to_bytes(4, "little") + packed + trailer + MAGIC


def test_round_trip() -> None:
    assert read_metadata(WRITTEN, "x") == SAMPLE


def test_metadata_of_every_version_is_read() -> None:
    assert read_metadata((DATA / "metadata" / "version-1").read_bytes(), "x") == SAMPLE
    assert read_metadata((DATA / "metadata" / "version-2").read_bytes(), "x") == WITH_OPERATOR_STATE


def test_it_has_version_2_only_if_there_is_operator_state() -> None:
    newer = write_metadata(WITH_OPERATOR_STATE)
    assert (WRITTEN[8], newer[8]) == (1, 2)
    for data in (WRITTEN, newer):
        other = data[:8] + bytes([data[8] ^ 3]) + data[9:]
        with pytest.raises(CorruptStateError, match="what it says is not of format version"):
            read_metadata(other, "x")


def test_a_stateless_query_has_a_checkpoint_too() -> None:
    metadata = replace(metadata_of(), master_states=())
    assert read_metadata(write_metadata(metadata), "x") == metadata
    assert list(metadata.files()) == []


def test_several_operators_families_and_operator_states() -> None:
    seed = random.Random(SEED)
    families = ("default", "$ttl_x", "b")
    operators = [JOIN, random_operator(seed, stores=["default"], families=families, operator_id=4)]
    first, *others = operators[1].subtasks
    handle = replace(first.handles[0], operator_state=OPERATOR_STATE)
    operators[1] = replace(operators[1], subtasks=(replace(first, handles=(handle,)), *others))
    metadata = metadata_of(*operators)
    assert read_metadata(write_metadata(metadata), "x") == metadata
    assert OPERATOR_STATE.path in metadata.files()


def test_files_of_any_name_and_place_come_back() -> None:
    paths = [
        "0/0/12_x.handle",
        "1/2/other store/012_A.%24f.delta.arrow",
        "/old/state/0/0/1_a.merge.arrow",
        "s3://bucket/péché/ /x",
        "..",
    ]
    handle = random_handle(random.Random(SEED))
    file = handle.files_of()[0]
    files = tuple(replace(file, path=path, offset=12) for path in paths)
    moved = replace(handle, families=(replace(handle.families[0], files=files),))
    operator = random_operator(random.Random(SEED), parallelism=1, stores=["default"])
    metadata = metadata_of(with_handle(operator, 0, moved))
    assert read_metadata(write_metadata(metadata), "x") == metadata
    assert list(metadata.files()) == [moved.path, *paths]


def test_what_it_says_of_the_batch() -> None:
    assert SAMPLE.source_offsets == ('{"logOffset":7}', None)
    assert SAMPLE.watermark_ms == 12
    assert SAMPLE.confs == {"spark.sql.shuffle.partitions": "3"}
    assert metadata_path(7) == "_sparkckpt/chk-7/_metadata"
    assert JOIN.subtasks[0].key_groups == KeyGroupRange(0, 10922)
    with pytest.raises(
        CorruptStateError, match=r"chk-7/_metadata is corrupt: it has no offsets/11"
    ):
        _ = replace(SAMPLE, master_states=()).watermark_ms


def test_files_are_distinct_and_include_handles() -> None:
    files = list(SAMPLE.files())
    handles = [handle.path for handle in SAMPLE.handles]
    assert len(set(files)) == len(files) == len(handles) * 3
    assert set(handles) < set(files)


@pytest.mark.parametrize(
    ("stores", "families", "version"),
    [(JOIN_STORES, ("default",), 116), (("default",), ("a", "b", "c", "$ttl_b"), 12_345_678)],
)
def test_a_reference_to_a_file_takes_less_than_60_bytes(
    stores: tuple[str, ...], families: tuple[str, ...], version: int
) -> None:
    """1,000 partitions with four lists of 16 files each, as stores or as column families."""
    seed = random.Random(SEED)
    operator = random_operator(
        seed, parallelism=1000, stores=stores, version=version, files=16, families=families
    )
    metadata = metadata_of(operator)
    data = write_metadata(metadata)
    references = sum(len(f.files) for handle in metadata.handles for f in handle.families)
    assert references == 64_000
    assert len(data) / references < 60
    assert read_metadata(data, "x") == metadata


def test_every_truncation_is_refused() -> None:
    for length in range(len(WRITTEN)):
        with pytest.raises(CorruptStateError):
            read_metadata(WRITTEN[:length], "x")


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_every_flipped_byte_is_noticed(mask: int) -> None:
    for position in range(len(WRITTEN)):
        with pytest.raises((CorruptStateError, UnsupportedFormatVersionError)):
            read_metadata(flipped(WRITTEN, position, mask), "x")


def test_a_newer_version_is_refused_by_name() -> None:
    newer = WRITTEN[:8] + (3).to_bytes(4, "little") + WRITTEN[12:]
    with pytest.raises(
        UnsupportedFormatVersionError, match=r"_metadata has format version 3.*to 2"
    ):
        read_metadata(newer, "_metadata")


def test_bytes_that_belong_to_nothing_are_refused() -> None:
    with pytest.raises(CorruptStateError, match="it has 2 bytes too many"):
        read_metadata(WRITTEN[:12] + b"xx" + WRITTEN[12:], "x")


def test_unknown_fields_are_ignored() -> None:
    description = description_of(WRITTEN)
    description["new"] = [1]
    description["operatorStates"][0]["files"]["new"] = [1]
    assert read_metadata(with_json(description), "x") == SAMPLE


Edit = Callable[[dict[str, Any]], object]


def set_field(name: str, value: object) -> Edit:
    return lambda description: {**description, name: value}


def set_in_operator(name: str, value: object) -> Edit:
    def edit(description: dict[str, Any]) -> object:
        description["operatorStates"][0][name] = value
        return description

    return edit


def set_in_column(table: str, column: str, value: object, row: int = -1) -> Edit:
    def edit(description: dict[str, Any]) -> object:
        description["operatorStates"][0][table][column][row] = value
        return description

    return edit


def set_column(table: str, column: str, values: object) -> Edit:
    def edit(description: dict[str, Any]) -> object:
        description["operatorStates"][0][table][column] = values
        return description

    return edit


def set_master_states(*states: object) -> Edit:
    return set_field("masterStates", states)


STATE_JSON = {"name": "s", "mode": "split", "items": 2, "bytes": 40}


def operator_state_json(partition: int, **fields: object) -> dict[str, object]:
    where = {"path": "p", "offset": 0, "length": 100, "crc32": 1}
    store = {"partition": partition, "storeName": JOIN_STORES[0]}
    return {**store, **where, "states": [STATE_JSON], **fields}


IMPOSSIBLE: dict[str, tuple[Edit, str]] = {
    "no object": (lambda _: [], "no JSON object"),
    "negative checkpoint id": (set_field("checkpointId", -1), "'checkpointId' is -1"),
    "negative batch": (set_field("batchId", -1), "'batchId' is -1"),
    "no query": (set_field("queryId", ""), "'queryId' is ''"),
    "text for a time": (set_field("timestampMs", "1"), "'timestampMs' is '1'"),
    "no statistics": (set_field("statistics", None), "its statistics is no JSON object"),
    "no operators": (set_field("operatorStates", None), "'operatorStates' is None"),
    "an operator twice": (
        lambda d: {**d, "operatorStates": d["operatorStates"] * 2},
        "an operator occurs twice",
    ),
    "negative operator": (set_in_operator("operatorId", -1), "'operatorId' is -1"),
    "more partitions than key groups": (
        set_in_operator("parallelism", 40_000),
        "'parallelism' is 40000",
    ),
    "too many key groups": (set_in_operator("maxParallelism", 1 << 20), "'maxParallelism'"),
    "another parallelism": (set_in_operator("parallelism", 4), "partition 0 of 4 owns"),
    "all in one place, in several": (set_in_operator("keyed", False), "in 3 partitions"),
    "columns of different lengths": (set_column("files", "rows", [1]), "differ in length"),
    "a missing column": (set_column("files", "rows", None), "'rows' is None"),
    "too few files counted": (set_in_column("families", "files", 1), "counts 23, but there are 24"),
    "too many families counted": (set_in_column("handles", "families", 2), "counts 13"),
    "negative count": (set_in_column("families", "files", -1), "'files' is"),
    "too few counts": (set_column("families", "files", [24]), "differ in length"),
    "key groups that overlap": (
        set_in_column("handles", "firstKeyGroup", 0),
        r"partition 2 of 3 owns \[21846, 32767\]",
    ),
    "key groups that leave a hole": (
        set_in_column("handles", "lastKeyGroup", 30_000),
        r"the key groups are \[21846, 30000\]",
    ),
    "a partition beyond the parallelism": (
        set_in_column("handles", "partition", 3),
        "'partition' is 3",
    ),
    "another version": (set_in_column("handles", "version", 11), "has the handle 0/2/.*/11_"),
    "a store twice": (
        set_in_column("handles", "storeName", JOIN_STORES[0]),
        "partition 2 has the stores",
    ),
    "no digest": (set_in_column("handles", "changeDigest", "x"), "'changeDigest' is 'x'"),
    "negative length": (set_in_column("files", "length", -1), "'length': -1.*impossible"),
    "no path": (set_in_column("files", "path", ""), "'path': ''.*impossible"),
    "bool for a number": (set_in_column("files", "rows", True), "'rows': True.*impossible"),
    "a master state twice": (
        set_master_states({"path": "a", "text": ""}, {"path": "a", "text": ""}),
        "a master state occurs twice",
    ),
    "an absolute master state": (set_master_states({"path": "/a", "text": ""}), "'/a' does not"),
    "a master state elsewhere": (
        set_master_states({"path": "a/../../b", "text": ""}),
        "does not lie in the checkpoint directory",
    ),
    "a master state without content": (set_master_states({"path": "a"}), "'text' is None"),
    "a master state not in base64": (
        set_master_states({"path": "a", "base64": "!"}),
        "the content of a cannot be decoded",
    ),
    "a master state not in unicode": (
        set_master_states({"path": "a", "text": "\ud800"}),
        "the content of a cannot be decoded",
    ),
    "operator state of no partition": (
        set_in_operator(
            "operatorState",
            [operator_state_json(3)],
        ),
        "the stores .* do not exist",
    ),
    "operator state of no store": (
        set_in_operator("operatorState", [operator_state_json(0, storeName="s")]),
        "the stores .* do not exist",
    ),
    "operator state twice": (
        set_in_operator("operatorState", [operator_state_json(0)] * 2),
        "occurs twice",
    ),
    **{
        f"operator state whose {name} is {value!r}": (
            set_in_operator("operatorState", [operator_state_json(0, **{name: value})]),
            message,
        )
        for name, value, message in [
            ("path", "", "'path' is ''"),
            ("offset", -1, "'offset' is -1"),
            ("length", 7, "'length' is 7"),
            ("length", 30, "more bytes than all of it"),
            ("crc32", 1 << 32, "'crc32' is"),
            ("states", [], "there are no states"),
            ("states", [{**STATE_JSON, "mode": "even-split"}], "the mode 'even-split'"),
            ("states", [{**STATE_JSON, "name": "x" * 1025}], "has the name"),
            ("states", [{**STATE_JSON, "inherited": True}], "is split, and inherited"),
            ("states", [STATE_JSON] * 2, "an operator state occurs twice"),
        ]
    },
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_metadata_that_cannot_be_is_refused(name: str) -> None:
    edit, message = IMPOSSIBLE[name]
    with pytest.raises(CorruptStateError, match=f"(?s)this place is corrupt: .*{message}"):
        read_metadata(with_json(edit(description_of(WRITTEN))), "this place")


def without_partition(operator: OperatorState, partition: int) -> OperatorState:
    subtasks = [task for task in operator.subtasks if task.partition != partition]
    return replace(operator, subtasks=tuple(subtasks))


CONTRADICTORY: dict[str, tuple[CheckpointMetadata, str]] = {
    "negative id": (replace(SAMPLE, checkpoint_id=-1), "the checkpoint_id is -1"),
    "a hole": (metadata_of(without_partition(JOIN, 1)), r"\[10923, 21845\] have 0 owners"),
    "an overlap": (
        metadata_of(replace(JOIN, subtasks=(JOIN.subtasks[0], *JOIN.subtasks))),
        r"\[0, 10922\] have 2 owners",
    ),
    "another order": (
        metadata_of(replace(JOIN, subtasks=JOIN.subtasks[::-1])),
        r"the partitions are \[2, 1, 0\]",
    ),
    "no partitions": (metadata_of(replace(JOIN, subtasks=())), "have 0 owners"),
    "no stores": (
        metadata_of(random_operator(random.Random(SEED), stores=[])),
        r"the stores are \[\]",
    ),
    "a store less": (
        metadata_of(
            replace(
                JOIN,
                subtasks=(
                    *JOIN.subtasks[:2],
                    OperatorSubtaskState(2, JOIN.subtasks[2].handles[1:]),
                ),
            )
        ),
        "partition 2 has the stores",
    ),
    "a handle of another operator": (
        metadata_of(
            with_handle(JOIN, 1, replace(JOIN.subtasks[1].handles[0], operator_name="other"))
        ),
        "is of another operator",
    ),
    "a handle of another partition": (
        metadata_of(with_handle(JOIN, 1, JOIN.subtasks[0].handles[0])),
        "partition 1 has the handle 0/0/",
    ),
    "a handle of another batch": (replace(SAMPLE, batch_id=12), "partition 0 has the handle"),
}


@pytest.mark.parametrize("name", CONTRADICTORY)
def test_contradictions_are_never_written(name: str) -> None:
    metadata, message = CONTRADICTORY[name]
    with pytest.raises(ValueError, match=message):
        write_metadata(metadata)


def test_a_description_is_a_handle_without_its_inlined_files() -> None:
    _, ref = state_file(puts(30), offset=12)
    handle = handle_of(replace(ref, path="0/0/1_a.handle"))
    assert read_description(write_description(handle), "x") == handle
    with pytest.raises(CorruptStateError, match="the ack is corrupt: its description is not zstd"):
        read_description(b"what", "the ack")


PATHS = st.text(st.characters(codec="utf-8"), min_size=1)
LONGS = st.integers(0, 2**63 - 1)


@st.composite
def file_refs(draw: st.DrawFn) -> StateFileRef:
    length, tail = sorted([draw(st.integers(1, 2**62)), draw(st.integers(1, 2**62))])[::-1]
    key_groups = sorted([draw(st.integers(0, 32767)), draw(st.integers(0, 32767))])
    versions = sorted([draw(st.integers(1, 2**62)), draw(st.integers(1, 2**62))])
    return StateFileRef(
        path=draw(PATHS),
        offset=draw(LONGS),
        length=length,
        tail_length=tail,
        tail_crc32=draw(st.integers(0, 2**32 - 1)),
        rows=draw(LONGS),
        first_key_group=key_groups[0],
        last_key_group=key_groups[1],
        first_version=versions[0],
        last_version=versions[1],
        level=draw(st.integers(0, 9)),
        base=draw(st.booleans()),
    )


@st.composite
def any_metadata(draw: st.DrawFn) -> CheckpointMetadata:
    seed = random.Random(draw(st.integers()))
    stores = draw(st.lists(PATHS, min_size=1, max_size=2, unique=True))
    families = draw(st.lists(PATHS, max_size=2, unique=True))
    operator = random_operator(
        seed, parallelism=draw(st.integers(1, 3)), stores=stores, families=families, files=0
    )
    for task in operator.subtasks:
        handle = task.handles[0]
        listed = tuple(
            replace(family, multi_valued=draw(st.booleans()), files=tuple(draw(FILES)))
            for family in handle.families
        )
        base_id = draw(st.none() | PATHS)
        edited = replace(handle, families=listed, base_id=base_id, changed_rows=draw(LONGS))
        operator = with_handle(operator, task.partition, edited)
    contents = draw(st.dictionaries(st.from_regex(r"[a-z]+(/[0-9_]+)*", fullmatch=True), CONTENTS))
    states = tuple(MasterState(path, content) for path, content in contents.items())
    return replace(metadata_of(operator), master_states=states, checkpoint_id=draw(LONGS))


FILES = st.lists(file_refs(), max_size=3)
CONTENTS = st.binary(max_size=20) | st.text().map(str.encode)


@given(any_metadata())
def test_any_metadata_comes_back(metadata: CheckpointMetadata) -> None:
    assert read_metadata(write_metadata(metadata), "x") == metadata
