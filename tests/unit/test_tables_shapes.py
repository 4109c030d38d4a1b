"""What column families mean, for each operator: names, kinds, and columns that can be read."""

import json
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pytest

from sparkckpt.tables.shapes import (
    Shape,
    StateName,
    Variable,
    expected_names,
    names_of,
    shape_of,
    variables_in,
)

K = pa.field("k", pa.string())
LONG = pa.int64()
WINDOW = pa.struct([("start", pa.timestamp("us", "UTC")), ("end", pa.timestamp("us", "UTC"))])
NOTHING = pa.struct([("__dummy__", pa.null())])
TWS = "transformWithStateInPySparkExec"
VARIABLES = [
    Variable("total", "value", False),
    Variable("seen", "list", True),
    Variable("byRest", "map", True),
]


def struct(*fields: pa.Field | tuple[str, pa.DataType]) -> pa.StructType:
    return pa.struct(list(fields))


def shape(
    operator: str,
    family: str,
    key: pa.StructType,
    value: pa.StructType,
    *,
    store: str = "default",
    multi_valued: bool = False,
    confs: Mapping[str, str] | None = None,
    event_time: bool = False,
) -> Shape:
    variables = VARIABLES if operator == TWS else []
    (name,) = names_of(operator, [(store, family)], variables)
    return shape_of(
        operator,
        name,
        key,
        value,
        multi_valued=multi_valued,
        confs=confs or {},
        event_time=event_time,
        map_indexes=["byRest"],
    )


def columns(shape: Shape) -> list[str]:
    return [column.name for column in shape.columns]


def grouping(shape: Shape) -> list[tuple[str | int, ...]]:
    return [column.path for column in shape.grouping]


def test_aggregations_show_key_and_aggregates() -> None:
    key, value = struct(K, ("w", WINDOW)), struct(("k", LONG), ("sum", LONG), ("sum_0", LONG))
    found = shape("stateStoreSave", "default", key, value)
    assert columns(found) == ["k", "w", "value_k", "sum", "sum_0"]
    assert grouping(found) == [("key", 0), ("key", 1)]


def test_aggregations_in_format_1_repeat_the_key() -> None:
    confs = {"spark.sql.streaming.aggregation.stateFormatVersion": "1"}
    found = shape("stateStoreSave", "default", struct(K), struct(K, ("sum", LONG)), confs=confs)
    assert columns(found) == ["k", "sum"]
    assert found.columns[-1].path == ("value", 1)


def test_sessions_have_a_start_and_an_end() -> None:
    key = struct(K, ("sessionStartTime", pa.timestamp("us", "UTC")))
    value = struct(("session_window", WINDOW), K, ("n", LONG))
    found = shape("sessionWindowStateStoreSaveExec", "default", key, value)
    assert columns(found) == ["k", "session_start", "session_end", "n"]
    assert grouping(found) == [("key", 0)]


@pytest.mark.parametrize(
    ("operator", "value", "expected"),
    [
        ("dedupe", NOTHING, ["k"]),
        ("dedupeWithinWatermark", struct(("expiresAtMicros", LONG)), ["k", "expires_at"]),
    ],
)
def test_deduplications_show_keys(
    operator: str, value: pa.StructType, expected: Sequence[str]
) -> None:
    assert columns(shape(operator, "default", struct(K), value)) == expected
    (name,) = names_of(operator, [("default", "default")], [])
    assert name.kind == "keys"


def test_a_limit_has_a_number_of_rows() -> None:
    found = shape("globalLimit", "default", struct(("key", pa.null())), struct(("value", LONG)))
    assert columns(found) == ["rows"]
    assert found.grouping == ()


@pytest.mark.parametrize(
    ("timeout", "expected"),
    [(False, ["k", "state_k", "n"]), (True, ["k", "state_k", "n", "timeout"])],
)
def test_the_state_of_groups_is_unpacked(timeout: bool, expected: Sequence[str]) -> None:
    state = pa.field("groupState", struct(K, ("n", LONG)))
    value = struct(state, ("timeoutTimestamp", LONG)) if timeout else struct(state)
    for operator in ("applyInPandasWithState", "flatMapGroupsWithState"):
        found = shape(operator, "default", struct(K), value)
        assert columns(found) == expected
        assert found.presence == (("value", 0) if timeout else None)


def test_joins_in_stores_of_their_own() -> None:
    key, value = struct(("field0", LONG), ("index", LONG)), struct(K, ("matched", pa.bool_()))
    found = shape("symmetricHashJoin", "default", key, value, store="left-keyWithIndexToValue")
    assert columns(found) == ["field0", "index", "k", "matched"]
    assert grouping(found) == [("key", 0)]
    key, value = struct(("field0", LONG)), struct(("value", LONG))
    found = shape("symmetricHashJoin", "right-keyToNumValues", key, value)
    assert columns(found) == ["field0", "value"]
    assert grouping(found) == [("key", 0)]


def test_joins_by_event_time() -> None:
    key, value = struct(("field0", LONG), ("__event_time", LONG)), struct(K, ("index", LONG))
    family = "left-keyWithTsToValues"
    found = shape("symmetricHashJoin", family, key, value, multi_valued=True, event_time=True)
    assert columns(found) == ["field0", "event_time", "k", "index_0"]
    assert found.numbered
    random = shape("symmetricHashJoin", family, key, value, multi_valued=True)
    assert columns(random) == ["field0", "__event_time", "k", "index_0"]
    index = shape("symmetricHashJoin", "left-tsWithKey", key, NOTHING, multi_valued=True)
    assert columns(index) == ["field0", "__event_time"]
    assert grouping(index) == [("key", 0)]


def test_variables_of_a_processor() -> None:
    assert columns(shape(TWS, "total", struct(K), struct(K, ("n", LONG)))) == ["k", "value_k", "n"]
    ttl = struct(("value", struct(K)), ("ttlExpirationMs", LONG))
    seen = shape(TWS, "seen", struct(K), ttl, multi_valued=True)
    assert columns(seen) == ["k", "value_k", "ttl_expiration"]
    assert seen.numbered
    by_rest = shape(TWS, "byRest", struct(("key", struct(K)), ("userKey", struct(K))), ttl)
    assert columns(by_rest) == ["k", "user_key_k", "value_k", "ttl_expiration"]
    assert grouping(by_rest) == [("key", 0, 0)]
    # A variable without TTL may have these very fields.
    own = shape(TWS, "total", struct(K), ttl)
    assert columns(own) == ["k", "value", "ttlExpirationMs"]


@pytest.mark.parametrize(
    ("family", "key", "path", "expected"),
    [
        ("$eventTimers_keyToTimestamp", [("key", struct(K)), ("t", LONG)], (0, 0), ["k", "expiry"]),
        ("$procTimers_timestampToKey", [("t", LONG), ("key", struct(K))], (1, 0), ["k", "t"]),
        ("$ttl_seen", [("t", LONG), ("elementKey", struct(K))], (1, 0), ["k", "t"]),
        (
            "$ttl_byRest",
            [("t", LONG), ("elementKey", struct(("key", struct(K)), ("userKey", struct(K))))],
            (1, 0, 0),
            ["k", "t", "userKey"],
        ),
        ("$rowCounter_seen", [K], (0,), ["k"]),
        ("$min_seen", [K], (0,), ["k"]),
    ],
)
def test_timers_and_what_spark_keeps_besides(
    family: str, key: Sequence[pa.Field], path: tuple[int, ...], expected: Sequence[str]
) -> None:
    found = shape(TWS, family, struct(*key), NOTHING)
    assert columns(found) == expected
    assert grouping(found) == [("key", *path)]


def test_names_are_those_of_people_first() -> None:
    families = ["$ttl_seen", "seen", "$eventTimers_keyToTimestamp", "$eventTimers_timestampToKey"]
    found = names_of(TWS, [("default", family) for family in families], VARIABLES)
    assert [(name.name, name.kind) for name in found] == [
        ("eventTimers", "timer"),
        ("seen", "list"),
        ("$eventTimers_timestampToKey", "internal"),
        ("$ttl_seen", "internal"),
    ]


def test_a_variable_may_have_the_name_of_the_timers() -> None:
    families = [("default", "eventTimers"), ("default", "$eventTimers_keyToTimestamp")]
    found = names_of(TWS, families, [Variable("eventTimers", "value", False)])
    assert [name.name for name in found] == ["$eventTimers_keyToTimestamp", "eventTimers"]


def test_variables_are_found_in_the_metadata_of_spark() -> None:
    properties = {
        "stateVariables": [
            {"stateName": "byRest", "stateVariableType": "MapState", "ttlEnabled": True}
        ]
    }
    text = "v2\n" + json.dumps({"operatorPropertiesJson": json.dumps(properties)})
    assert variables_in(text.encode()) == [Variable("byRest", "map", True)]
    for other in (b"", b"v1\n{}", b'v2\n{"operatorPropertiesJson":""}', b"\xff\n[]\nnull"):
        assert variables_in(other) == []


def test_states_without_any_file_are_known() -> None:
    seen = names_of(TWS, [("default", "seen")], VARIABLES)
    missing = expected_names(TWS, seen, VARIABLES)
    assert [(name.name, name.kind) for name in missing] == [("total", "value"), ("byRest", "map")]
    joined = names_of("symmetricHashJoin", [("left-keyWithIndexToValue", "default")], [])
    assert [name.name for name in expected_names("symmetricHashJoin", joined, [])] == ["right"]
    assert [name.kind for name in expected_names("dedupe", [], [])] == ["keys"]
    assert expected_names("stateStoreSave", seen, []) == []


def test_an_unknown_operator_is_shown_as_it_is() -> None:
    (name,) = names_of("ofTheFuture", [("store", "family")], [])
    assert name == StateName("store", "value", "store", "family")
    assert columns(shape("ofTheFuture", "x", struct(K), struct(("n", LONG)))) == ["k", "n"]
