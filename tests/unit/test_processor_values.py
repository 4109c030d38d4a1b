"""Columns as lists of Python objects: what Arrow's own conversion gives."""

import random

import pyarrow as pa
import pytest

from sparkckpt.processor.values import to_list

HOUR = 3_600_000_000
FALL_BACK_2016 = 1_478_408_400_000_000
"""01:00 for the first time, in New York."""


@pytest.mark.parametrize(
    "zone", ["America/New_York", "Australia/Lord_Howe", "Africa/Monrovia", "UTC", "+02:30", None]
)
@pytest.mark.parametrize("first", [0, -(2**51), 2**51])
def test_timestamps(zone, first):
    seed = random.randrange(10**9)
    draw = random.Random(seed)
    micros = [None, *(first + draw.randrange(2**50) for _ in range(500))]
    micros += [FALL_BACK_2016 + i * HOUR // 2 for i in range(-3, 7)] if first == 0 else []
    column = pa.array(micros, pa.timestamp("us", zone))
    for part in (column, column.slice(1, 7), column.slice(0, 1), column.slice(0, 0)):
        got, expected = to_list(part), part.to_pylist()
        assert got == expected, f"seed {seed}"
        # Times that are equal may still be another hour of the clock.
        assert list(map(repr, got)) == list(map(repr, expected)), f"seed {seed}"


def test_a_time_that_datetime_does_not_know_is_an_error():
    column = pa.array([0, 2**60], pa.timestamp("us", "America/New_York"))
    with pytest.raises(OverflowError, match="out of the range of datetime"):
        to_list(column)
