"""The queries of the suite whose state Python keeps: applyInPandasWithState, transformWithState.

The clock is out of a test's hands, so processing-time timeouts, timers and TTLs last either one
millisecond, and are over in the next batch, or an hour, and no test sees their end.
"""

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as sf
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from tests.spark.jobs import EVENTS, event, events, watermarked
from tests.spark.streams import Job

cloudpickle.register_pickle_by_value(sys.modules[__name__])

SOON_MS = 1
LATE_MS = 3_600_000
OUTPUT = "k string, what string"

Frames = Iterator[pd.DataFrame]


def keyed(df: DataFrame) -> DataFrame:
    """Rows with a value: pandas has no integer null."""
    return df.where("v is not null and ts is not null")


def frame(k: str | None, what: str) -> pd.DataFrame:
    return pd.DataFrame({"k": pd.Series([k], dtype=object), "what": [what]})


def sum_with_timeout(key: tuple[str], frames: Frames, state: GroupState) -> Frames:
    """A running sum per key, which every third key forgets at once when it times out."""
    (total, count, name) = state.get if state.exists else (0, 0, "")
    if state.hasTimedOut:
        state.remove()
        yield frame(key[0], f"timed out with {total} of {count} as {name}")
        return
    for rows in frames:
        total += int(rows["v"].sum())
        count += len(rows)
    if total % 11 == 5:
        if state.exists:
            state.remove()
        yield frame(key[0], f"removed at {total}")
        return
    state.update((total, count, f"{key[0]}/{count}"))
    state.setTimeoutDuration(SOON_MS if total % 3 == 0 else LATE_MS)
    yield frame(key[0], f"{total} of {count}")


def sum_until_event_time(key: tuple[str], frames: Frames, state: GroupState) -> Frames:
    """A running sum per key that ends a while after the key's last event."""
    (total, last) = state.get if state.exists else (0, 0)
    if state.hasTimedOut:
        state.remove()
        yield frame(key[0], f"closed with {total} after {last}")
        return
    for rows in frames:
        total += int(rows["v"].sum())
        last = max(last, int(rows["ts"].max().timestamp() * 1000))
    state.update((total, last))
    state.setTimeoutTimestamp(max(last + 15_000, state.getCurrentWatermarkMs() + 1))
    yield frame(key[0], f"{total} until {last}")


def without_timeout(key: tuple[str], frames: Frames, state: GroupState) -> Frames:
    """State of other types, and a state that is null but exists."""
    (seen, last, scaled) = state.get if state.exists else ("", None, None)
    values = [int(v) for rows in frames for v in rows["v"]]
    seen = f"{seen},{values}"
    if len(values) % 2:
        state.update((seen, None, None))
    else:
        state.update((seen, float(sum(values)), seen.encode()))
    yield frame(key[0], f"{seen} after {last} {scaled}")


def in_pandas(function: Any, state: str, timeout: str, output_mode: str = "update") -> Job:
    def transform(df: DataFrame) -> DataFrame:
        rows = (
            watermarked(keyed(df)) if timeout == GroupStateTimeout.EventTimeTimeout else keyed(df)
        )
        grouped = rows.groupBy("k")
        return grouped.applyInPandasWithState(function, OUTPUT, state, output_mode, timeout)

    return Job.of(EVENTS, events(), transform, output_mode)


PANDAS_WITH_STATE: Mapping[str, Job] = {
    "processing time": in_pandas(
        sum_with_timeout,
        "total long, count long, name string",
        GroupStateTimeout.ProcessingTimeTimeout,
    ),
    "event time": in_pandas(
        sum_until_event_time, "total long, last long", GroupStateTimeout.EventTimeTimeout
    ),
    "event time, append": in_pandas(
        sum_until_event_time, "total long, last long", GroupStateTimeout.EventTimeTimeout, "append"
    ),
    "no timeout": in_pandas(
        without_timeout,
        "seen string, last double, scaled binary",
        GroupStateTimeout.NoTimeout,
    ),
}


class Processor(StatefulProcessor):
    """One processor for transformWithState (rows) and transformWithStateInPandas (frames)."""

    def __init__(self, pandas: bool) -> None:
        self.pandas = pandas

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.handle = handle
        self.declare(handle)

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        if self.pandas:
            values = [(int(v), ts) for f in rows for v, ts in zip(f["v"], f["ts"], strict=True)]
        else:
            values = [(row.v, row.ts) for row in rows]
        for what in self.on_values(values, timerValues):
            yield self.output(key, what)

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        for what in self.on_timer(expiredTimerInfo.getExpiryTimeInMs()):
            yield self.output(key, what)

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.on_initial(int(initialState["v"].iloc[0]) if self.pandas else initialState.v)

    def output(self, key: Any, what: str) -> Any:
        return frame(key[0], what) if self.pandas else Row(k=key[0], what=what)

    def declare(self, handle: StatefulProcessorHandle) -> None:
        raise NotImplementedError

    def on_values(self, values: list[tuple[int, Any]], timers: Any) -> Iterator[str]:
        raise NotImplementedError

    def on_timer(self, expiry: int) -> Iterator[str]:
        raise NotImplementedError

    def on_initial(self, value: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass


class Variables(Processor):
    """Value, list and map state: updated, appended to, overwritten, removed from and cleared."""

    def declare(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "sum long, name string")
        self.seen = handle.getListState("seen", "v long, odd boolean")
        self.by_rest = handle.getMapState("byRest", "rest long", "n long, last long")

    def on_values(self, values: list[tuple[int, Any]], timers: Any) -> Iterator[str]:
        total = self.total.get()[0] if self.total.exists() else 0
        for value, _ in values:
            total += value
            self.seen.appendValue((value, value % 2 == 1))
            rest = (value % 3,)
            count = self.by_rest.getValue(rest)[0] if self.by_rest.containsKey(rest) else 0
            self.by_rest.updateValue(rest, (count + 1, value))
        self.total.update((total, f"sum {total}"))
        seen = [(v, odd) for v, odd in self.seen.get()]
        by_rest = sorted((k[0], *v) for k, v in self.by_rest.iterator())
        yield f"{self.total.get()} {seen} {by_rest}"
        if total % 5 == 1:
            self.total.clear()
        if len(seen) > 2:
            self.seen.put(seen[-1:])
        if total % 7 == 1:
            self.seen.clear()
        if self.by_rest.containsKey((1,)) and total % 2:
            self.by_rest.removeKey((1,))
        if total % 7 == 2:
            self.by_rest.clear()

    def on_initial(self, value: int) -> None:
        self.total.update((value, "initial"))
        self.seen.appendList([(value, False), (value + 1, True)])
        self.by_rest.updateValue((value % 3,), (100, value))


class Expiring(Processor):
    """State of each kind that lives for one batch, and of each kind that outlives the test."""

    def declare(self, handle: StatefulProcessorHandle) -> None:
        def of_each_kind(name: str, ttl: int) -> tuple[Any, Any, Any]:
            return (
                handle.getValueState(f"{name}Value", "v long", ttl),
                handle.getListState(f"{name}List", "v long", ttl),
                handle.getMapState(f"{name}Map", "k long", "v long", ttl),
            )

        self.kinds = [of_each_kind("soon", SOON_MS), of_each_kind("late", LATE_MS)]

    def on_values(self, values: list[tuple[int, Any]], timers: Any) -> Iterator[str]:
        for value, items, entries in self.kinds:
            before = value.get() if value.exists() else None
            listed = [v for (v,) in items.get()]
            mapped = sorted((k[0], v[0]) for k, v in entries.iterator())
            yield f"{before} {listed} {mapped}"
            for v, _ in values:
                value.update((v,))
                items.appendValue((v,))
                entries.updateValue((v % 4,), (v,))


class Timed(Processor):
    """A timer for each value, some of them deleted again; state changes when one fires."""

    def __init__(self, pandas: bool, event_time: bool) -> None:
        super().__init__(pandas)
        self.event_time = event_time

    def declare(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "sum long")
        self.fired = handle.getListState("fired", "at long")

    def on_values(self, values: list[tuple[int, Any]], timers: Any) -> Iterator[str]:
        total = self.total.get()[0] if self.total.exists() else 0
        for value, ts in values:
            total += value
            if self.event_time:
                expiry = int(pd.Timestamp(ts).timestamp() * 1000) + 15_000
            else:
                expiry = timers.getCurrentProcessingTimeInMs() + SOON_MS
            self.handle.registerTimer(expiry)
            if value % 4 == 3:
                self.handle.deleteTimer(expiry)
        self.total.update((total,))
        fired = [at for (at,) in self.fired.get()]
        pending = sorted(self.handle.listTimers())
        if self.event_time:
            yield f"{total}, fired {fired}, pending {pending}"
        else:
            yield f"{total}, fired {len(fired)}, pending {len(pending)}"

    def on_timer(self, expiry: int) -> Iterator[str]:
        self.fired.appendValue((expiry,))
        total = self.total.get()[0] if self.total.exists() else None
        yield f"timer {expiry if self.event_time else 'fired'} at {total}"
        if total is not None and total % 2 == 0:
            self.total.clear()


class Stamper(Processor):
    """Keeps the rows of a key apart and passes an event time on to the next operator."""

    def declare(self, handle: StatefulProcessorHandle) -> None:
        self.count = handle.getValueState("count", "n long")

    def on_values(self, values: list[tuple[int, Any]], timers: Any) -> Iterator[tuple[Any, int]]:
        count = self.count.get()[0] if self.count.exists() else 0
        for _, ts in values:
            count += 1
            yield ts, count
        self.count.update((count,))

    def output(self, key: Any, what: Any) -> Any:
        ts, n = what
        if self.pandas:
            return pd.DataFrame({"k": pd.Series([key[0]], dtype=object), "ts": [ts], "n": [n]})
        return Row(k=key[0], ts=ts, n=n)


def with_state(
    processor: Processor, time_mode: str = "None", *, initial: bool = False, batches: int = 4
) -> Job:
    def transform(df: DataFrame) -> DataFrame:
        rows = watermarked(keyed(df)) if time_mode == "EventTime" else keyed(df)
        # From 3.0, pandas has no null text either: the state's key would be the text "nan".
        grouped = (rows.where("k is not null") if processor.pandas else rows).groupBy("k")
        operator = (
            grouped.transformWithStateInPandas if processor.pandas else grouped.transformWithState
        )
        state = initial_state(df).groupBy("k") if initial else None
        return operator(processor, OUTPUT, "Update", time_mode, state)

    return Job.of(EVENTS, events(batches), transform, "update")


def initial_state(df: DataFrame) -> DataFrame:
    """State for keys that the stream has, and for one that it never has."""
    rows = [(k, 1000 + i) for i, k in enumerate(["a", "c", "e", "late", "never"])]
    return df.sparkSession.createDataFrame(rows, "k string, v long")


def then_window(pandas: bool) -> Job:
    """transformWithState below a window aggregation."""

    def transform(df: DataFrame) -> DataFrame:
        grouped = watermarked(keyed(df)).where("k is not null").groupBy("k")
        operator = grouped.transformWithStateInPandas if pandas else grouped.transformWithState
        stamped = operator(
            Stamper(pandas),
            "k string, ts timestamp, n long",
            "Append",
            "EventTime",
            eventTimeColumnName="ts",
        )
        return stamped.groupBy(sf.window("ts", "10 seconds")).agg(
            sf.count("*").alias("rows"), sf.sum("n").alias("n")
        )

    # The outer watermark is a batch behind, and late rows would be an error in the output.
    on_time = [[row for row in rows if row["k"] != "late"] for rows in events(5)]
    return Job.of(EVENTS, [*on_time, [event("end", 0, 1000)], [event("end", 0, 2000)]], transform)


def transform_with_state(pandas: bool) -> Mapping[str, Job]:
    return {
        "value, list and map": with_state(Variables(pandas)),
        "initial state": with_state(Variables(pandas), initial=True),
        "ttl": with_state(Expiring(pandas), "ProcessingTime"),
        "processing-time timers": with_state(Timed(pandas, False), "ProcessingTime"),
        "event-time timers": with_state(Timed(pandas, True), "EventTime"),
        "then a window": then_window(pandas),
    }
