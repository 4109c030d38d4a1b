"""Functions over the rows of a key, through the exchange and without Spark."""

import datetime
import itertools
from decimal import Decimal

import pytest

from sparkckpt.testing import ProcessorTester

ROWS = "k string, v long"
OUTPUT = "k string, total long"


def total(key, rows, state):
    sum_ = (state.get() or (0,))[0] + sum(v for _, v in rows if v is not None)
    state.update((sum_,))
    return [(key[0], sum_)]


def kit(function, rows=ROWS, keys=("k",), output=OUTPUT, state="total long", **options):
    return ProcessorTester.of_rows(function, rows, list(keys), output, state, **options)


def test_state_is_kept_between_batches():
    tester = kit(total)
    assert tester.process([("a", 1), ("b", 2), ("a", 3)]) == [("a", 4), ("b", 2)]
    assert tester.process([("a", 1), (None, 5), ("b", None)]) == [("a", 5), (None, 5), ("b", 2)]
    assert tester.state("a") == {"total": 5}
    assert tester.state(None) == {"total": 5}
    assert tester.state("c") is None


@pytest.mark.parametrize("batch_rows", [1, 2, 3, 7])
def test_keys_span_record_batches(batch_rows):
    tester = kit(total, batch_rows=batch_rows)
    rows = [("a", 1), *[("b", i) for i in range(20)], ("c", 2), *[("d", i) for i in range(5)]]
    assert tester.process(rows) == [("a", 1), ("b", 190), ("c", 2), ("d", 10)]


@pytest.mark.parametrize("taken", [0, 1, 3, 8])
def test_rows_that_are_not_taken_are_skipped(taken):
    def some(key, rows, state):
        return [(key[0], sum(v for _, v in itertools.islice(rows, taken)))]

    tester = kit(some, batch_rows=2)
    output = tester.process([*[("a", 1)] * 9, *[("b", 1)] * 9, ("c", 1)])
    assert output == [("a", taken), ("b", taken), ("c", min(taken, 1))]


def test_rows_kept_beyond_a_call_end():
    kept = []

    def keep(key, rows, state):
        kept.append(rows)
        return [(key[0], sum(1 for _ in kept[0]) if len(kept) == 2 else 0)]

    assert kit(keep, batch_rows=1).process([*[("a", 1)] * 9, *[("b", 1)] * 9])[1][1] <= 2


def test_output_larger_than_a_batch_is_sent_while_a_key_goes_on():
    def many(key, rows, state):
        state.update((1,))
        for _ in range(25_000):
            yield (key[0], 1)

    tester = kit(many)
    assert len(tester.process([("a", 1), ("b", 1)])) == 50_000
    assert tester.state("b") == {"total": 1}


def test_state_is_removed():
    def remove(key, rows, state):
        state.remove()
        assert not state.exists
        return ()

    tester = kit(total)
    tester.process([("a", 1)])
    tester._run = kit(remove)._run
    assert tester.process([("a", 1), ("b", 1)]) == []
    assert tester.state("a") is None


def test_timeouts():
    def expire(key, rows, state):
        if state.timed_out:
            assert list(rows) == []
            (count,) = state.get()
            state.remove()
            yield (key[0], -count)
        else:
            state.update((len(list(rows)),))
            state.set_timeout_duration(100)

    tester = kit(expire, timeout="ProcessingTimeTimeout")
    tester.set_processing_time(1000)
    assert tester.process([("a", 1), ("b", 1), ("b", 1)]) == []
    assert tester.timeout("a") == 1100
    tester.set_processing_time(1100)
    assert tester.process([("a", 1)]) == []
    tester.set_processing_time(1101)
    assert tester.process() == [("b", -2)]
    assert tester.state("b") is None
    assert tester.timeout("b") is None
    assert tester.timeout("a") == 1200


def test_a_timeout_that_is_not_enabled_is_refused():
    def wrong(key, rows, state):
        state.set_timeout_duration(1)
        return ()

    with pytest.raises(RuntimeError, match="ProcessingTimeTimeout"):
        kit(wrong).process([("a", 1)])


def test_a_timeout_before_the_watermark_is_refused():
    def wrong(key, rows, state):
        state.set_timeout_timestamp(99)
        return ()

    tester = kit(wrong, timeout="EventTimeTimeout")
    tester.set_watermark(100)
    with pytest.raises(ValueError, match="99"):
        tester.process([("a", 1)])


def test_types_travel_both_ways():
    zone = "Europe/Berlin"
    schema = (
        "k string, d decimal(10,2), t timestamp, n timestamp_ntz, day date, b binary, "
        "list array<int>, m map<string, long>, s struct<x: int, y: array<string>>, f float, "
        "ok boolean"
    )

    def echo(key, rows, state):
        for row in rows:
            assert row[2] is None or row[2].utcoffset() == datetime.timedelta(hours=1)
            if not state.exists:
                state.update(row)
            yield state.get()

    tester = kit(echo, rows=schema, output=schema, state=schema, timezone=zone)
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=datetime.timezone.utc)
    row = (
        "a",
        Decimal("1.25"),
        moment,
        datetime.datetime(2026, 1, 2, 3, 4, 5),
        datetime.date(1960, 2, 29),
        b"\x00\xff",
        [1, None, 3],
        [("x", 1), ("y", None)],
        {"x": 1, "y": ["p", None]},
        0.5,
        True,
    )
    nothing = ("b", *[None] * 10)
    assert tester.process([row, nothing]) == [row, nothing]
    assert tester.process([row, nothing]) == [row, nothing]


def test_a_naive_timestamp_is_in_the_sessions_time_zone():
    def give(key, rows, state):
        yield (datetime.datetime(2026, 1, 1),)

    tester = kit(give, output="t timestamp", timezone="Asia/Tokyo")
    ((moment,),) = tester.process([("a", 1)])
    assert moment == datetime.datetime(2025, 12, 31, 15, tzinfo=datetime.timezone.utc)


def test_an_error_shows_the_users_frame():
    def fail(key, rows, state):
        raise KeyError("the user's mistake")

    with pytest.raises(KeyError, match="the user's mistake") as caught:
        kit(fail).process([("a", 1)])
    assert caught.traceback[-1].name == "fail"


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match="3 values where the schema has 2 fields"):
        kit(lambda key, rows, state: [(1, 2, 3)]).process([("a", 1)])


def test_none_is_no_state():
    def wrong(key, rows, state):
        state.update(None)

    with pytest.raises(TypeError, match="remove"):
        kit(wrong).process([("a", 1)])


def test_lists_may_be_reused():
    kept = []

    def collect(key, rows, state):
        kept.clear()
        kept.extend(v for _, v in rows)
        state.update((kept,))
        yield (key[0], kept)

    output = "k string, all array<long>"
    tester = ProcessorTester.of_rows(collect, "k string, v long", ["k"], output, "all array<long>")
    assert tester.process([("a", 1), ("b", 2)]) == [("a", [1]), ("b", [2])]
    tester.state("a")["all"].append(2)
    assert tester.state("a") == {"all": [1]}
