"""The rows of several tables come to what a dictionary of lists says they do."""

import struct
from collections.abc import Sequence
from importlib import import_module
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkckpt.errors import IncompatibleSchemasError
from sparkckpt.format import resolve
from tests.unit.format_samples import SCHEMA, Row, table_of

RESOLVE = import_module("sparkckpt.format.resolve")
PUT, DELETE, APPEND = 0, 1, 2
Model = dict[Any, tuple[int, list[int]]]
"""The key group and the values of each key; the empty list is a value."""

NAN = struct.unpack("<d", struct.pack("<Q", 0x7FF8000000000001))[0]
NAMES = [None, "", "a", "b"]
NUMBERS = [None, 0.0, -0.0, 1.5, float("nan"), NAN]


def identity(key: dict[str, Any]) -> tuple[Any, ...]:
    number = key["x"]
    return key["k"], None if number is None else struct.pack("<d", number)


def key_group_of(key: dict[str, Any]) -> int:
    """Any function of the key's exact value, with few results."""
    return sum(repr(identity(key)).encode()) % 5


keys = st.builds(
    lambda k, x: {"k": k, "x": x}, k=st.sampled_from(NAMES), x=st.sampled_from(NUMBERS)
)
changes = st.tuples(
    st.sampled_from([PUT, DELETE, APPEND]), keys, st.none() | st.integers(0, 9)
).filter(lambda change: change[0] != APPEND or change[2] is not None)


def as_rows(file: Sequence[tuple[int, dict[str, Any], int | None]]) -> list[Row]:
    rows: list[Row] = [
        (key_group_of(key), op, key, None if value is None or op == DELETE else {"n": value})
        for op, key, value in file
    ]
    return sorted(rows, key=lambda row: row[0])


def model_of(files: Sequence[Sequence[Row]]) -> Model:
    state: Model = {}
    for key_group, op, key, value in (row for file in files for row in file):
        name = identity(key)
        if op == DELETE:
            state.pop(name, None)
        else:
            kept = state[name][1] if op == APPEND and name in state else []
            state[name] = (key_group, kept + ([] if value is None else [value["n"]]))
    return state


def state_in(table: pa.Table) -> Model:
    """What a resolved table says, after checking that it has the form of a base."""
    state: Model = {}
    rows = table.to_pylist()
    assert [row["kg"] for row in rows] == sorted(row["kg"] for row in rows)
    for row in rows:
        name = identity(row["key"])
        values = [] if row["value"] is None else [row["value"]["n"]]
        if row["op"] == PUT:
            assert name not in state, "two puts of a key"
            state[name] = (row["kg"], values)
        else:
            assert row["op"] == APPEND
            assert values, "an append of nothing"
            state[name][1].extend(values)
    return state


@given(
    st.lists(st.lists(changes, max_size=12), min_size=1, max_size=5),
    st.sampled_from([1, 4, 1 << 16]),
    st.data(),
)
def test_resolve_is_what_a_dictionary_says(
    files: list[list[tuple[int, dict[str, Any], int | None]]], at_once: int, data: st.DataObject
) -> None:
    rows = [as_rows(file) for file in files]
    tables = [table_of(file) for file in rows]
    with patch.object(RESOLVE, "_ROWS_AT_ONCE", at_once):
        resolved = resolve(tables)
    assert state_in(resolved) == model_of(rows)
    assert resolved.schema == SCHEMA
    # A merge of the first files may stand in their place.
    merged = data.draw(st.integers(1, len(tables)), "files merged")
    again = resolve([resolve(tables[:merged]), *tables[merged:]])
    assert state_in(again) == model_of(rows)


texts = st.sampled_from(["", "a", "ab", "name-1", "name-2", "a-long-name-1", "a-long-name-2", None])


@given(
    st.lists(
        st.dictionaries(st.tuples(texts, st.sampled_from(NUMBERS)), st.sampled_from([PUT, DELETE])),
        max_size=5,
    ),
    st.sampled_from([2, 1 << 16]),
)
def test_single_valued_state_is_the_same_with_less_comparing(
    files: list[dict[tuple[str | None, float | None], int]], at_once: int
) -> None:
    rows = [
        as_rows([(op, {"k": k, "x": x}, number) for (k, x), op in file.items()])
        for number, file in enumerate(files)
    ]
    tables = [*map(table_of, rows), table_of([])]
    with patch.object(RESOLVE, "_ROWS_AT_ONCE", at_once):
        found = resolve(tables, single_valued=True)
    assert state_in(found) == model_of(rows)
    assert str(found.to_pylist()) == str(resolve(tables).to_pylist())


def test_appends_keep_their_order_across_files() -> None:
    key = {"k": "a", "x": None}
    files = [
        [(1, PUT, key, {"n": 5}), (1, APPEND, key, {"n": 3})],
        [(1, APPEND, key, {"n": 9}), (1, APPEND, key, {"n": 1})],
    ]
    resolved = resolve([table_of(file) for file in files])
    assert [row["n"] for row in resolved["value"].to_pylist()] == [5, 3, 9, 1]
    assert resolved["op"].to_pylist() == [PUT, APPEND, APPEND, APPEND]


def test_nothing_comes_to_nothing() -> None:
    assert resolve([table_of([]), table_of([])]) == table_of([])


KEYS_OF_EVERY_KIND = [
    (pa.bool_(), [True, False, None]),
    (pa.int8(), [1, 2, None]),
    (pa.decimal128(38, 3), [1, 2, None]),
    (pa.date32(), [1, 2, None]),
    (pa.timestamp("us", "UTC"), [1, 2, None]),
    (pa.timestamp("us"), [1, 2, None]),
    (pa.duration("us"), [1, 2, None]),
    (pa.binary(), [b"\0", b"", None]),
    (pa.float32(), [0.0, -0.0, None]),
    (pa.list_(pa.int32()), [[1], [], None]),
    (pa.map_(pa.string(), pa.float64()), [[("a", 0.0)], [("a", -0.0)], None]),
    (pa.struct({"a": pa.int32()}), [{"a": 1}, {"a": None}, None]),
]


@pytest.mark.parametrize(("kind", "values"), KEYS_OF_EVERY_KIND, ids=lambda value: str(value)[:24])
def test_keys_of_every_kind(kind: pa.DataType, values: list[Any]) -> None:
    schema = SCHEMA.set(2, pa.field("key", pa.struct({"k": kind})))
    older = table_of([(1, PUT, {"k": v}, {"n": i}) for i, v in enumerate(values)], schema)
    newer = table_of([(1, PUT, {"k": values[0]}, {"n": 9})], schema)
    resolved = resolve([older, newer])
    assert [row["n"] for row in resolved["value"].to_pylist()] == [9, 1, 2]
    assert resolve([older, newer], single_valued=True) == resolved


def test_keys_of_raw_bytes() -> None:
    schema = SCHEMA.set(2, pa.field("key", pa.binary()))
    older = table_of([(1, PUT, b"a", {"n": 1}), (1, PUT, b"b", {"n": 2})], schema)
    newer = table_of([(1, DELETE, b"a", None)], schema)
    assert resolve([older, newer])["key"].to_pylist() == [b"b"]
    assert resolve([older, newer], single_valued=True)["key"].to_pylist() == [b"b"]


def with_value(kind: pa.DataType, *rows: tuple[str, Any]) -> pa.Table:
    schema = SCHEMA.set(3, pa.field("value", kind))
    return table_of([(1, PUT, {"k": key, "x": None}, value) for key, value in rows], schema)


def test_older_values_take_the_newest_schema() -> None:
    inner_old, inner_new = (
        pa.struct({"p": pa.int32()}),
        pa.struct({"p": pa.int32(), "q": pa.bool_()}),
    )
    older = with_value(
        pa.struct({"gone": pa.string(), "n": pa.int32(), "inner": inner_old}),
        ("a", {"gone": "x", "n": 1, "inner": {"p": 7}}),
        ("b", None),
    )
    newer = with_value(
        pa.struct({"n": pa.int64(), "new": pa.string(), "inner": inner_new}),
        ("c", {"n": 2, "new": "y", "inner": {"p": 8, "q": True}}),
    )
    assert resolve([older, newer])["value"].to_pylist() == [
        {"n": 1, "new": None, "inner": {"p": 7, "q": None}},
        None,
        {"n": 2, "new": "y", "inner": {"p": 8, "q": True}},
    ]


def test_renamed_fields_are_matched_by_position() -> None:
    older = with_value(pa.struct({"x": pa.int64(), "y": pa.int64()}), ("a", {"x": 1, "y": 2}))
    newer = with_value(pa.struct({"y": pa.int64(), "x": pa.int64()}), ("b", {"y": 3, "x": 4}))
    assert resolve([older, newer])["value"].to_pylist() == [{"y": 1, "x": 2}, {"y": 3, "x": 4}]


def test_types_that_cannot_be_brought_together_are_named() -> None:
    older = with_value(pa.binary(), ("a", b"row"))
    newer = with_value(pa.struct({"n": pa.int64()}), ("b", {"n": 1}))
    with pytest.raises(IncompatibleSchemasError, match="'value' has type binary in an older"):
        resolve([older, newer])
