"""Unchanged StatefulProcessors, through the exchange and without Spark."""

import datetime
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from pyspark.errors import PySparkRuntimeError, PySparkValueError
from pyspark.sql import Row
from pyspark.sql.streaming import StatefulProcessor
from pyspark.sql.types import StringType, StructType

from sparkckpt.testing import ProcessorTester

ROWS = "k string, v long"
OUTPUT = "k string, total long"


class Base(StatefulProcessor):
    def init(self, handle):
        self.handle = handle

    def handleInputRows(self, key, rows, timerValues):
        return iter(())

    def close(self):
        pass


class Totals(Base):
    def init(self, handle):
        self.total = handle.getValueState("total", "total long")

    def handleInputRows(self, key, rows, timerValues):
        total = self.total.get()[0] if self.total.exists() else 0
        for row in rows:
            total += row.v
        self.total.update((np.int64(total),))
        assert self.total.get() == (total,)
        assert type(self.total.get()[0]) is int
        yield Row(k=key[0], total=total)


def kit(processor, rows=ROWS, keys=("k",), output=OUTPUT, **options):
    return ProcessorTester.of_processor(processor, rows, list(keys), output, **options)


def test_value_state():
    tester = kit(Totals())
    assert tester.process([("a", 1), ("b", 2), ("a", 3)]) == [("a", 4), ("b", 2)]
    assert tester.process([("a", 1)]) == [("a", 5)]
    assert tester.state("a") == {"total": {"total": 5}}


@pytest.mark.parametrize("batch_rows", [1, 2, 5])
def test_keys_span_record_batches(batch_rows):
    tester = kit(Totals(), batch_rows=batch_rows)
    rows = [("a", 1), *[("b", i) for i in range(9)], ("c", 2)]
    assert tester.process(rows) == [("a", 1), ("b", 36), ("c", 2)]


class Lists(Base):
    """What is done to the list is told by the rows."""

    def init(self, handle):
        self.items = handle.getListState("items", "x int, s string")

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            if row.op == "append":
                self.items.appendValue((row.v, str(row.v)))
            elif row.op == "extend":
                self.items.appendList([(row.v, "e"), (row.v + 1, None)])
            elif row.op == "put":
                self.items.put([(row.v, "p")])
            elif row.op == "clear":
                self.items.clear()
            elif row.op == "empty":
                self.items.put([])
            elif row.op == "get":
                yield Row(k=key[0], items=str([x for x, _ in self.items.get()]))
            elif row.op == "exists":
                yield Row(k=key[0], items=str(self.items.exists()))


def operate(tester, *operations):
    rows = [("a", op, v) for op, v in (o if isinstance(o, tuple) else (o, 0) for o in operations)]
    return [value for _, value in tester.process(rows)]


@pytest.mark.parametrize("sent", [False, True])
def test_list_state(sent):
    tester = kit(Lists(), "k string, op string, v int", output="k string, items string")
    tester.send_all_state(sent)
    assert operate(tester, "exists", "get", ("append", 1), "get") == ["False", "[]", "[1]"]
    assert operate(tester, ("extend", 2), "get") == ["[1, 2, 3]"]
    assert operate(tester, ("append", 4)) == []
    assert operate(tester, "get", "clear", "get", "exists") == ["[1, 2, 3, 4]", "[]", "False"]
    assert operate(tester, "exists", ("append", 5), "clear", ("append", 6), "get") == [
        "False",
        "[6]",
    ]
    assert operate(tester, ("put", 7), ("append", 8), "get") == ["[7, 8]"]
    assert operate(tester, "get") == ["[7, 8]"]
    assert tester.state("a") == {"items": [{"x": 7, "s": "p"}, {"x": 8, "s": "8"}]}
    assert (tester.fetches == 0) == sent


def test_appending_and_replacing_fetch_nothing():
    tester = kit(Lists(), "k string, op string, v int", output="k string, items string")
    operate(tester, ("append", 1), ("put", 2), "clear", ("append", 3))
    operate(tester, ("append", 4))
    assert tester.fetches == 0
    assert [item["x"] for item in tester.state("a")["items"]] == [3, 4]


def test_an_empty_list_is_refused():
    tester = kit(Lists(), "k string, op string, v int", output="k string, items string")
    with pytest.raises(PySparkRuntimeError, match="EMPTY_LIST_VALUE"):
        operate(tester, "empty")


class Maps(Base):
    def init(self, handle):
        self.map = handle.getMapState("map", "x int, l array<int>", "v long")

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            user_key = (row.v, [row.v])
            if row.op == "put":
                self.map.updateValue(user_key, (row.v * 10,))
            elif row.op == "remove":
                self.map.removeKey(user_key)
            elif row.op == "clear":
                self.map.clear()
            else:
                value = self.map.getValue(user_key)
                assert self.map.containsKey(user_key) == (value is not None)
                assert value is None or value.v == value[0]
                assert [v for _, v in self.map.iterator()] == list(self.map.values())
                assert self.map.exists() == bool(list(self.map.keys()))
                yield Row(k=key[0], items=str(sorted(k[0] for k, _ in self.map.iterator())))


@pytest.mark.parametrize("sent", [False, True])
def test_map_state(sent):
    tester = kit(Maps(), "k string, op string, v int", output="k string, items string")
    tester.send_all_state(sent)
    assert operate(tester, "get", ("put", 1), ("put", 2), ("get", 1)) == ["[]", "[1, 2]"]
    assert operate(tester, ("put", 3), ("remove", 1), ("remove", 9), "get") == ["[2, 3]"]
    assert operate(tester, ("get", 3)) == ["[2, 3]"]
    assert operate(tester, "clear", "get", ("put", 4), "get") == ["[]", "[4]"]
    assert operate(tester, "get") == ["[4]"]
    assert tester.state("a") == {"map": [{"key": {"x": 4, "l": [4]}, "value": {"v": 40}}]}
    assert operate(tester, "clear") == []
    assert tester.state("a") == {"map": []}


class Timers(Base):
    def init(self, handle):
        self.handle = handle
        self.seen = handle.getValueState("seen", "n int")

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            if row.v < 0:
                self.handle.deleteTimer(-row.v)
            else:
                self.handle.registerTimer(row.v)
        yield Row(k=key[0], total=len(list(self.handle.listTimers())))

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        n = (self.seen.get() or (0,))[0] + 1
        self.seen.update((n,))
        yield Row(k=key[0], total=-expiredTimerInfo.getExpiryTimeInMs())
        if n == 1:
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 50)


def test_timers():
    tester = kit(Timers(), time_mode="ProcessingTime")
    tester.set_processing_time(5)
    assert tester.process([("a", 10), ("a", 20), ("a", 30), ("b", 15)]) == [("a", 3), ("b", 1)]
    assert tester.timers("a") == [10, 20, 30]
    assert tester.process([("a", -20)]) == [("a", 2)]
    tester.set_processing_time(30)
    assert tester.process() == [("a", -10), ("a", -30), ("b", -15)]
    assert tester.timers("a") == [80]
    assert tester.state("a") == {"seen": {"n": 2}}


def test_timers_need_a_time_mode():
    with pytest.raises(PySparkRuntimeError, match="register_timer with invalid timeMode=None"):
        kit(Timers()).process([("a", 10)])


@pytest.mark.parametrize(
    ("timestamp", "error"), [(2.5, TypeError), (2**63, ValueError), (True, TypeError)]
)
@pytest.mark.parametrize("call", ["registerTimer", "deleteTimer"])
def test_times_of_timers_are_checked_where_they_are_given(call, timestamp, error):
    class Wrong(Base):
        def handleInputRows(self, key, rows, timerValues):
            with pytest.raises(error):
                getattr(self.handle, call)(timestamp)
            self.handle.registerTimer(np.int64(100))
            return iter(())

    tester = kit(Wrong(), time_mode="ProcessingTime")
    tester.process([("a", 1)])
    assert tester.timers("a") == [100]


def test_without_a_time_mode_there_are_no_times_or_timers():
    class Times(Base):
        def handleInputRows(self, key, rows, timerValues):
            assert list(self.handle.listTimers()) == []
            yield Row(k=key[0], total=timerValues.getCurrentProcessingTimeInMs())

    tester = kit(Times())
    tester.set_processing_time(5)
    assert tester.process([("a", 1)]) == [("a", -1)]


def test_values_expire():
    class Expiring(Base):
        def init(self, handle):
            self.value = handle.getValueState("value", "n long", 100)
            self.list = handle.getListState("list", "n long", 100)

        def handleInputRows(self, key, rows, timerValues):
            values = [row.v for row in rows]
            if self.value.get() is None:
                self.value.update((values[0],))
            self.list.appendValue((values[0],))
            yield Row(k=key[0], total=self.value.get()[0] * 100 + len(list(self.list.get())))

    tester = kit(Expiring(), time_mode="ProcessingTime")
    assert tester.process([("a", 1)]) == [("a", 101)]
    tester.set_processing_time(99)
    assert tester.process([("a", 2)]) == [("a", 102)]
    tester.set_processing_time(100)
    assert tester.process([("a", 3)]) == [("a", 302)]


def test_variables_are_asked_for_in_init_only():
    class Late(Base):
        def handleInputRows(self, key, rows, timerValues):
            self.handle.getValueState("late", "n long")

    with pytest.raises(PySparkRuntimeError, match="INVALID_HANDLE_STATE"):
        kit(Late()).process([("a", 1)])


class Typed(Base):
    schema = (
        "d decimal(10,2), t timestamp, n timestamp_ntz, day date, b binary, list array<int>, "
        "m map<string, timestamp>, s struct<x: int, y: struct<z: timestamp>>, f float"
    )

    def init(self, handle):
        self.value = handle.getValueState("value", self.schema)

    def handleInputRows(self, key, rows, timerValues):
        before = self.value.get()
        moment = datetime.datetime(2026, 1, 2, 3, 4, 5, 6)
        value = (
            Decimal("1.5"),
            moment,
            moment,
            moment.date(),
            b"\x00\xff",
            [1, None],
            {"a": moment, "b": None},
            Row(x=1, y=(moment,)),
            0.1,
        )
        self.value.update(value)
        now = self.value.get()
        assert now[0].as_tuple().exponent == -2
        assert now[7].y.z == moment
        assert now[8] == float(np.float32(0.1))
        assert now[:7] == value[:7]
        assert type(now[4]) is bytes
        assert before in (None, now)
        self.value.update((None,) * 9)
        assert self.value.get() == (None,) * 9
        self.value.update(value)
        yield Row(k=key[0], total=0 if before is None else 1)


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_types_of_state_are_those_of_spark(zone):
    tester = kit(Typed(), timezone=zone)
    assert tester.process([("a", 1)]) == [("a", 0)]
    assert tester.process([("a", 1)]) == [("a", 1)]


def test_state_of_the_wrong_length_is_refused():
    class Wrong(Totals):
        def handleInputRows(self, key, rows, timerValues):
            self.total.update((1, 2))
            yield from ()

    with pytest.raises(PySparkValueError, match="STRUCT_ARRAY_LENGTH_MISMATCH"):
        kit(Wrong()).process([("a", 1)])


def test_output_rows_are_taken_by_name():
    class Named(Base):
        def handleInputRows(self, key, rows, timerValues):
            yield Row(total=1, k="x")
            yield Row(k="y", more=Row(a=1))
            yield Row("k", "total")("z", 3)

    assert kit(Named()).process([("a", 1)]) == [("x", 1), ("y", None), ("z", 3)]


def test_output_that_is_no_row_is_refused():
    class Tuples(Base):
        def handleInputRows(self, key, rows, timerValues):
            yield ("a", 1)

    with pytest.raises(AttributeError, match="asDict"):
        kit(Tuples()).process([("a", 1)])


def test_nested_output():
    class Nested(Base):
        def handleInputRows(self, key, rows, timerValues):
            yield Row(k=key[0], s=Row(x=1, y=[Row(z="a")]))

    output = "k string, s struct<x: int, y: array<struct<z: string>>>"
    assert kit(Nested(), output=output).process([("a", 1)]) == [("a", {"x": 1, "y": [{"z": "a"}]})]


def test_keys_that_only_a_collation_makes_equal_are_different():
    rows = StructType().add("k", StringType("UTF8_LCASE")).add("v", "long")
    tester = kit(Totals(), rows)
    assert tester.process([("A", 1), ("a", 2)]) == [("A", 1), ("a", 2)]
    assert tester.state("a") == {"total": {"total": 2}}


class PandasTotals(Totals):
    def handleInputRows(self, key, frames, timerValues):
        total = self.total.get()[0] if self.total.exists() else 0
        for frame in frames:
            assert frame["v"].dtype == ("float64" if frame["v"].isna().any() else "int64")
            total += int(frame["v"].sum())
        self.total.update((total,))
        assert type(key[0]) in (str, type(None))
        yield pd.DataFrame({"total": [total], "k": [key[0]]})
        yield pd.DataFrame()


@pytest.mark.parametrize("batch_rows", [1, 3, 100])
def test_frames(batch_rows):
    tester = kit(PandasTotals(), "k string, v int", pandas=True, batch_rows=batch_rows)
    rows = [("a", 1), ("b", None), ("b", 5), *[("c", i) for i in range(10)]]
    assert tester.process(rows) == [("a", 1), ("b", 5), ("c", 45)]
    assert tester.process([("c", 1)]) == [("c", 46)]


def test_frames_of_names_that_python_cannot_have():
    class Columns(Base):
        def handleInputRows(self, key, frames, timerValues):
            for frame in frames:
                yield pd.DataFrame({"k": [",".join(frame.columns)], "total": [1]})

    tester = kit(Columns(), "`my k` string, v int", keys=("my k",), pandas=True)
    assert tester.process([("a", 1)]) == [("_0,v", 1)]


def test_output_that_is_no_frame_is_refused():
    class Wrong(Base):
        def handleInputRows(self, key, rows, timerValues):
            yield 1

    with pytest.raises(PySparkValueError, match=r"pandas\.DataFrame"):
        kit(Wrong(), pandas=True).process([("a", 1)])


def test_a_frame_without_a_column_is_refused_though_another_has_it():
    class Missing(Base):
        def handleInputRows(self, key, frames, timerValues):
            yield pd.DataFrame({"k": ["a"], "total": [1]})
            yield pd.DataFrame({"k": ["a"]})

    with pytest.raises(KeyError, match="total"):
        kit(Missing(), pandas=True).process([("a", 1)])


def test_an_error_shows_the_users_frame():
    class Failing(Base):
        def handleInputRows(self, key, rows, timerValues):
            raise KeyError("the user's mistake")

    with pytest.raises(KeyError, match="the user's mistake") as caught:
        kit(Failing()).process([("a", 1)])
    assert caught.traceback[-1].name == "handleInputRows"


def test_the_life_of_a_processor():
    calls = []

    class Living(Base):
        def init(self, handle):
            calls.append("init")

        def initialize_state(self, context):
            calls.append(f"initialize {context.is_restored}")
            self.seen = context.get_list_state("seen")

        def notify_checkpoint_complete(self, checkpoint_id):
            calls.append(f"complete {checkpoint_id}")

        def handleInputRows(self, key, rows, timerValues):
            calls.append(f"rows {self.seen.get()}")
            return iter(())

        def snapshot_state(self, context):
            calls.append("snapshot")
            self.seen.add(len(calls))

        def close(self):
            calls.append("close")

    tester = kit(Living())
    calls.clear()
    tester.process([("a", 1)])
    assert calls == ["initialize False", "init", "rows []", "snapshot", "close"]
    calls.clear()
    tester.complete_checkpoint(7)
    tester.process([("a", 1)])
    assert calls == ["initialize True", "init", "complete 7", "rows [4]", "snapshot", "close"]
    assert tester.operator_states() == {"seen": [4, 5]}


class ChangesInPlace(Base):
    """Whatever is changed in place is not stored without an update."""

    def init(self, handle):
        state = "x array<long>, m map<string, array<long>>, s struct<y: array<long>>"
        self.value = handle.getValueState("value", state)
        self.list = handle.getListState("list", state)
        self.map = handle.getMapState("map", "k long", state)

    def handleInputRows(self, key, rows, timerValues):
        given = ([1], {"a": [1]}, Row(y=[1]))
        self.value.update(given)
        self.list.appendValue(given)
        self.map.updateValue((1,), given)
        pairs = [value for _, value in self.map.iterator()]
        for x, m, s in (self.value.get(), *self.list.get(), self.map.getValue((1,)), *pairs, given):
            x.append(2)
            m["a"].append(2)
            m["b"] = []
            s.y.append(2)
            assert s.__fields__ == ["y"]
        yield Row(k=str(self.value.get()))


def test_what_is_changed_in_place_is_not_stored():
    tester = kit(ChangesInPlace(), output="k string")
    tester.process([("a", 1)])
    tester.state("a")["list"][0]["x"].append(2)
    value = {"x": [1], "m": [("a", [1])], "s": {"y": [1]}}
    assert tester.state("a") == {
        "value": value,
        "list": [value],
        "map": [{"key": {"k": 1}, "value": value}],
    }


class YieldsOneFrame(Base):
    def handleInputRows(self, key, frames, timerValues):
        frame = pd.DataFrame({"k": ["x"], "n": [0]})
        for n in range(3):
            frame.loc[0, "n"] = n
            yield frame


def test_a_frame_may_be_changed_and_yielded_again():
    tester = kit(YieldsOneFrame(), pandas=True, output="k string, n long")
    assert tester.process([("a", 1)]) == [("x", 0), ("x", 1), ("x", 2)]


class MapOfNumbers(Base):
    def init(self, handle):
        self.map = handle.getMapState("map", "k struct<x: double, y: array<double>>", "v long")

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            self.map.updateValue((Row(x=float(row.x), y=[1.0]),), (row.v,))
        found = [self.map.getValue((Row(x=float(x), y=[1.0]),)) for x in ("nan", "0.0", "-0.0")]
        yield Row(k=str([value and value.v for value in found]), n=len(list(self.map.keys())))


@pytest.mark.parametrize("sends", [False, True])
def test_user_keys_are_told_apart_as_in_a_store(sends):
    tester = kit(MapOfNumbers(), "k string, x string, v long", output="k string, n long")
    tester.send_all_state(sends)
    rows = [("a", x, v) for v, x in enumerate(["nan", "nan", "0.0", "-0.0"])]
    assert tester.process(rows) == [("[1, 2, 3]", 3)]
    assert tester.process([("a", "nan", 7), ("a", "-0.0", 8)]) == [("[7, 2, 8]", 3)]
