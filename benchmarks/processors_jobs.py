"""The user code that the benchmark of processors compares: the same jobs, in every API.

`totals`: sum and count per key, every touched key put out. `sessions`: the events of a key are
counted until there has been none for a while in event time, and the session is put out when a timer
(or a timeout) says so. The functions are what a user of the API would write, not tuned for anyone.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.streaming.state import GroupState

import sparkckpt

TOTALS = "k long, total long, n long"
TOTALS_STATE = "total long, n long"
SESSIONS = "k long, n long, ended long"
SESSIONS_STATE = "n long, last long"
GAP_MS = 10_000


def totals_in_pandas(
    key: tuple[int], frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    total, n = state.get if state.exists else (0, 0)
    for frame in frames:
        total += int(frame["v"].sum())
        n += len(frame)
    state.update((total, n))
    yield pd.DataFrame({"k": [key[0]], "total": [total], "n": [n]})


class TotalsInRows(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._totals = handle.getValueState("totals", TOTALS_STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        total, n = self._totals.get() if self._totals.exists() else (0, 0)
        for row in rows:
            total += row.v
            n += 1
        self._totals.update((total, n))
        yield Row(k=key[0], total=total, n=n)

    def close(self) -> None:
        pass


class TotalsInPandas(TotalsInRows):
    def handleInputRows(  # type: ignore[override]
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        total, n = self._totals.get() if self._totals.exists() else (0, 0)
        for frame in rows:
            total += int(frame["v"].sum())
            n += len(frame)
        self._totals.update((total, n))
        yield pd.DataFrame({"k": [key[0]], "total": [total], "n": [n]})


def totals_of_tuples(key: tuple[int], rows: Iterator[tuple], state: Any) -> Iterator[tuple]:
    total, n = state.get() if state.exists else (0, 0)
    for _, v, _ in rows:
        total += v
        n += 1
    state.update((total, n))
    yield (key[0], total, n)


def sessions_in_pandas(
    key: tuple[int], frames: Iterator[pd.DataFrame], state: GroupState
) -> Iterator[pd.DataFrame]:
    if state.hasTimedOut:
        n, last = state.get
        state.remove()
        yield pd.DataFrame({"k": [key[0]], "n": [n], "ended": [last]})
        return
    n, last = state.get if state.exists else (0, 0)
    for frame in frames:
        n += len(frame)
        last = max(last, int(frame["ts"].max().timestamp() * 1000))
    state.update((n, last))
    state.setTimeoutTimestamp(last + GAP_MS)


class SessionsInRows(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._session = handle.getValueState("session", SESSIONS_STATE)

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        n, last = self._session.get() if self._session.exists() else (0, 0)
        before = last
        for row in rows:
            n += 1
            last = max(last, int(row.ts.timestamp() * 1000))
        self._session.update((n, last))
        if last != before:
            if before:
                self._handle.deleteTimer(before + GAP_MS)
            self._handle.registerTimer(last + GAP_MS)
        yield from ()

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Row]:
        n, last = self._session.get()
        self._session.clear()
        yield Row(k=key[0], n=n, ended=last)

    def close(self) -> None:
        pass


Transform = Callable[[DataFrame], DataFrame]


def _keyed(rows: DataFrame) -> Any:
    return rows.groupBy("k")


def _watermarked(rows: DataFrame) -> Any:
    return rows.withWatermark("ts", "0 seconds").groupBy("k")


def _aggregate(rows: DataFrame) -> DataFrame:
    return rows.groupBy("k").agg(F.sum("v").alias("total"), F.count("*").alias("n"))


TRANSFORMS: dict[tuple[str, str], Transform] = {
    ("totals", "aggregate"): _aggregate,
    ("totals", "pandas"): lambda rows: _keyed(rows).applyInPandasWithState(
        totals_in_pandas, TOTALS, TOTALS_STATE, "update", "NoTimeout"
    ),
    ("totals", "tws-pandas"): lambda rows: _keyed(rows).transformWithStateInPandas(
        TotalsInPandas(), TOTALS, "Update", "None"
    ),
    ("totals", "tws"): lambda rows: _keyed(rows).transformWithState(
        TotalsInRows(), TOTALS, "Update", "None"
    ),
    ("totals", "rows"): lambda rows: sparkckpt.apply_rows(
        _keyed(rows), totals_of_tuples, TOTALS, TOTALS_STATE
    ),
    ("totals", "fold"): lambda rows: sparkckpt.fold(
        _keyed(rows), total=sparkckpt.sum_("v"), n=sparkckpt.count_()
    ),
    ("sessions", "pandas"): lambda rows: _watermarked(rows).applyInPandasWithState(
        sessions_in_pandas, SESSIONS, SESSIONS_STATE, "update", "EventTimeTimeout"
    ),
    ("sessions", "tws"): lambda rows: _watermarked(rows).transformWithState(
        SessionsInRows(), SESSIONS, "Update", "EventTime"
    ),
}
"""By job and API; on which backend it runs, and whether accelerated, is not decided here."""
