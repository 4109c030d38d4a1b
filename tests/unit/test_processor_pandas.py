"""Unchanged functions of applyInPandasWithState, through the exchange and without Spark."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import PySparkRuntimeError, PySparkTypeError
from pyspark.sql.types import StructType

from sparkckpt.processor.pandasframes import Frames, PandasConfs
from sparkckpt.testing import ProcessorTester

ROWS = "k string, v long"
OUTPUT = "k string, total long"


def total(key, frames, state):
    sum_ = state.get[0] if state.exists else 0
    for frame in frames:
        sum_ += int(frame["v"].sum())
    state.update((np.int64(sum_),))
    yield pd.DataFrame({"total": [sum_], "k": [key[0]]})


def kit(function, rows=ROWS, keys=("k",), output=OUTPUT, state="total long", **options):
    return ProcessorTester.of_pandas(function, rows, list(keys), output, state, **options)


def test_state_is_kept_between_batches():
    tester = kit(total)
    assert tester.process([("a", 1), ("b", 2), ("a", 3)]) == [("a", 4), ("b", 2)]
    assert tester.process([("a", 1), (None, 5)]) == [("a", 5), (None, 5)]
    assert tester.state("a") == {"total": 5}


def test_a_key_that_spans_record_batches_gets_several_frames():
    lengths = []

    def count(key, frames, state):
        seen = list(frames)
        lengths.append([len(frame) for frame in seen])
        assert all(list(frame.index) == list(range(len(frame))) for frame in seen)
        yield pd.DataFrame({"k": [key[0]], "total": [sum(f["v"].sum() for f in seen)]})

    tester = kit(count, batch_rows=2)
    output = tester.process([("a", 1), *[("b", i) for i in range(9)], ("c", 1)])
    assert output == [("a", 1), ("b", 36), ("c", 1)]
    assert [sum(of_key) for of_key in lengths] == [1, 9, 1]
    assert len(lengths[1]) > 1


def test_several_frames_and_empty_ones_are_put_out():
    def several(key, frames, state):
        yield pd.DataFrame({"k": [key[0]] * 2, "total": [1, 2]})
        yield pd.DataFrame()
        yield pd.DataFrame({"k": [], "total": []})
        yield pd.DataFrame([[key[0], 3]])

    assert kit(several).process([("a", 1)])[:2] == [("a", 1), ("a", 2)]


def test_a_timed_out_key_gets_one_empty_frame():
    def expire(key, frames, state):
        if state.hasTimedOut:
            (frame,) = frames
            assert frame.empty
            assert list(frame.columns) == ["k", "v"]
            assert state.get == (3,)
            state.remove()
            yield pd.DataFrame({"k": [key[0]], "total": [-1]})
        else:
            state.update((3,))
            state.setTimeoutTimestamp(1000)

    tester = kit(expire, timeout="EventTimeTimeout")
    tester.set_watermark(0)
    assert tester.process([("a", 1)]) == []
    tester.set_watermark(1000)
    assert tester.process() == []
    tester.set_watermark(1001)
    assert tester.process() == [("a", -1)]
    assert tester.state("a") is None


def test_state_that_does_not_fit_is_read_back_as_spark_does():
    seen = []

    def store(key, frames, state):
        seen.append(state.getOption)
        state.update((1.5, 7, 2**40, b"x"))
        yield from ()

    tester = kit(store, state="l long, d double, i int, b binary")
    tester.process([("a", 1)])
    tester.process([("a", 1)])
    assert seen == [None, (None, None, 0, b"x")]


def test_what_is_no_frame_is_refused():
    with pytest.raises(PySparkTypeError, match=r"iterable of pandas\.DataFrame"):
        kit(lambda key, frames, state: pd.DataFrame()).process([("a", 1)])
    with pytest.raises(PySparkTypeError, match="iterable, but is NoneType"):
        kit(lambda key, frames, state: None).process([("a", 1)])
    with pytest.raises(PySparkTypeError, match="iterator of int"):
        kit(lambda key, frames, state: [1]).process([("a", 1)])
    with pytest.raises(PySparkRuntimeError, match="RESULT_COLUMN_SCHEMA_MISMATCH"):
        kit(lambda key, frames, state: [pd.DataFrame({"k": ["a"]})]).process([("a", 1)])


def test_keys_are_what_indexing_a_series_gives():
    seen = []

    def keep(key, frames, state):
        seen.append(key)
        yield from ()

    rows = "i int, b boolean, t timestamp, s string"
    tester = kit(keep, rows=rows, keys=("i", "b", "t", "s"))
    moment = pd.Timestamp("2026-01-01", tz="UTC").to_pydatetime()
    tester.process([(1, True, moment, "x"), (None, None, None, None)])
    assert [type(value) for value in seen[0]] == [np.int32, np.bool_, pd.Timestamp, str]
    assert np.isnan(seen[1][0])
    assert seen[1][1] is None
    assert seen[1][2] is pd.NaT
    assert seen[1][3] is None


CONFS = PandasConfs({}, "UTC")


def columns(**values):
    return pa.RecordBatch.from_pydict(values)


@pytest.mark.parametrize(
    "batch",
    [
        columns(
            i=pa.array([1, 2, None, 4, None, None], pa.int32()), s=["a", None, "b", "c", "", "d"]
        ),
        columns(b=[True, None, False, True, None, None], f=[1.0, None, 2.0, 3.0, None, None]),
        columns(l=[[1], [None], None, [2, 3], [], [4]]),
        columns(s=[{"x": 1}, {"x": None}, None, {"x": 2}, {"x": 3}, {"x": 4}]),
        columns(t=pa.array([1, None, 2, 3, 4, 5], pa.timestamp("us", "UTC"))),
        columns(d=pa.array([1, None, 2, 3, 4, 5], pa.date32())),
        columns(**{c: pa.array([1, None, 2, 3, None, None]) for c in "abcdef"}),
    ],
)
def test_each_frame_is_the_one_of_its_rows_alone(batch):
    frames = Frames(batch, CONFS)
    for start in range(6):
        for end in range(start + 1, 7):
            alone = pd.concat(CONFS.to_series(batch.slice(start, end - start)), axis=1)
            pd.testing.assert_frame_equal(frames.cut(start, end), alone)


def test_frames_can_be_changed_without_touching_each_other():
    frames = Frames(columns(v=[1, 2, 3, 4]), CONFS)
    one, other = frames.cut(0, 2), frames.cut(2, 4)
    one["v"] = one["v"] + 1
    one.loc[0, "v"] = 9
    one["w"] = 1
    assert other["v"].tolist() == [3, 4]
    assert list(other.columns) == ["v"]
    assert one["v"].tolist() == [9, 3]


def test_fields_that_must_not_be_null_are_put_out():
    output = StructType().add("k", "string", nullable=False).add("total", "long", nullable=False)
    assert kit(total, output=output).process([("a", 1)]) == [("a", 1)]


def test_without_a_key_there_is_one_group():
    def count(key, frames, state):
        assert key == ()
        yield pd.DataFrame({"k": ["all"], "total": [sum(map(len, frames))]})

    assert kit(count, keys=()).process([("a", 1), ("b", 2)]) == [("all", 2)]


def test_what_one_frame_is_made_to_be_does_not_show_in_the_next():
    def count(key, frames, state):
        for frame in frames:
            names = (frame.index.name, frame.columns.name)
            frame.index.name = frame.columns.name = "mine"
            frame.loc[:, "v"] = 0
            frame.drop(columns="v", inplace=True)
            yield pd.DataFrame({"k": [key[0]], "names": [str(names)]})

    schemas = ("k string, v long", ["k"], "k string, names string", "n long")
    tester = ProcessorTester.of_pandas(count, *schemas)
    rows = [("a", 1), ("b", 2)]
    assert tester.process(rows) == [("a", "(None, None)"), ("b", "(None, None)")]
    assert tester.process(rows) == [("a", "(None, None)"), ("b", "(None, None)")]
