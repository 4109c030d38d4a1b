"""The hash that decides a key's group: what Spark's SQL `hash(...)` gives for the same values."""

from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from math import nan
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkckpt.errors import UnhashableKeyError
from sparkckpt.murmur3 import hash_columns

INSTANT = datetime(1969, 12, 31, 23, 59, 59, 999999, timezone.utc)
PAIR = pa.struct([("a", pa.int32()), ("b", pa.string())])
OF_SPARK: list[tuple[pa.DataType, Any, int]] = [
    (pa.int32(), 1, -559580957),
    (pa.int8(), 1, -559580957),
    (pa.bool_(), True, -559580957),
    (pa.int64(), -7, 222034016),
    (pa.int16(), -7, -1618159745),
    (pa.string(), "Spark", 228093765),
    (pa.string(), "", 142593372),
    (pa.string(), "ü€😀", -934424899),
    (pa.string(), "long" * 100, 1099749566),
    (pa.float64(), 1.5, 1290763749),
    (pa.float64(), nan, -1281358385),
    (pa.float64(), -0.0, -1670924195),
    (pa.float32(), nan, -349261430),
    (pa.float32(), -0.0, 933211791),
    (pa.decimal128(3, 2), Decimal("1.25"), 1910520950),
    (pa.decimal128(21, 1), Decimal("-99999999999999999999.5"), 564454047),
    (pa.int32(), None, 42),
    (pa.null(), None, 42),
    (pa.binary(), bytes.fromhex("00FF80"), -2052482636),
    (pa.date32(), date(2024, 2, 29), 653915859),
    (pa.timestamp("us", "UTC"), INSTANT, -939490007),
    (pa.list_(pa.int32()), [1, None, 3], 1066699649),
    (PAIR, {"a": 1, "b": "x"}, -1305545736),
    (pa.duration("us"), timedelta(1, 7384, 500_000), 1326975016),
]


@pytest.mark.parametrize(("kind", "value", "expected"), OF_SPARK, ids=str)
def test_hashes_are_those_of_spark(kind: pa.DataType, value: Any, expected: int) -> None:
    """Wherever in a column the value stands, and whatever stands beside it."""
    column = pa.array([value, None, value], kind)
    assert hash_columns([column], 3).tolist() == [expected, 42, expected]
    assert hash_columns([column.slice(2)], 1).tolist() == [expected]


def test_the_columns_of_a_key_are_hashed_in_order() -> None:
    one, two = pa.array([1], pa.int32()), pa.array([2], pa.int64())
    assert hash_columns([one, pa.nulls(1), two], 1).tolist() == [965479175]
    assert hash_columns([pa.array(["a"]), pa.array(["b"])], 1).tolist() == [190734147]
    assert hash_columns([], 2).tolist() == [42, 42]


@given(st.lists(st.none() | st.binary(max_size=600), max_size=12))
def test_texts_are_hashed_alike_alone_and_together(texts: list[bytes | None]) -> None:
    """Long ones go another way than short ones."""
    together = hash_columns([pa.array(texts, pa.binary())], len(texts))
    alone = [int(hash_columns([pa.array([text], pa.binary())], 1)[0]) for text in texts]
    assert together.tolist() == alone


def test_lists_of_structs_in_a_slice() -> None:
    kind = pa.list_(PAIR)
    values = [[{"a": 1, "b": "x"}], None, [], [{"a": None, "b": None}, None, {"a": 2, "b": "y"}]]
    whole = hash_columns([pa.array(values, kind)], 4)
    assert whole[0] == -1305545736
    assert whole[1] == whole[2] == 42
    assert hash_columns([pa.array(values, kind).slice(1, 3)], 3).tolist() == whole[1:].tolist()


def test_what_spark_does_not_hash_by_value_is_refused() -> None:
    with pytest.raises(UnhashableKeyError, match="month_day_nano"):
        hash_columns([pa.array([(1, 2, 3)], pa.month_day_nano_interval())], 1)
    assert hash_columns([pa.array([], pa.int32())], 0).dtype == np.int32
