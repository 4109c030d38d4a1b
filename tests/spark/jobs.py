"""The queries of the suite that need no Python worker, one function per stateful operator.

A job is a function of its arguments alone, so that a test can run it twice and compare. Inputs are
small and made so that each operator has something to update, to evict, and to emit late.
"""

from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

from tests.spark.streams import Job, Rows

EVENTS = "k string, v long, ts timestamp"
KEYS = "abcdefghij"


def at(second: int) -> str:
    """A timestamp some seconds into the test's day."""
    return f"2024-03-01T{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}Z"


def event(k: str | None, v: int | None, second: int | None) -> Mapping[str, object]:
    return {"k": k, "v": v, "ts": None if second is None else at(second)}


def events(batches: int = 4, step: int = 20) -> list[Rows]:
    """Ten keys, `step` seconds of event time a batch; some rows late, some keys and values null."""

    def rows(batch: int) -> Rows:
        now = batch * step
        fresh = [
            event(KEYS[(i * 7 + batch) % 10], i + 100 * batch, now + i)
            for i in range(8 + batch % 3)
        ]
        late = [
            event("late", batch, max(0, now - 3 * step)),
            event(None, batch, now + 1),
            event("n", None, now + 2),
        ]
        return [*fresh, *late]

    return [rows(batch) for batch in range(batches)]


def watermarked(df: DataFrame, delay: str = "10 seconds") -> DataFrame:
    return df.withWatermark("ts", delay)


def windowed(df: DataFrame) -> DataFrame:
    window = sf.window("ts", "20 seconds", "10 seconds")
    return (
        watermarked(df).groupBy(window, "k").agg(sf.count("*").alias("n"), sf.sum("v").alias("sum"))
    )


def aggregate(df: DataFrame) -> DataFrame:
    return df.groupBy("k").agg(
        sf.count("*").alias("n"),
        sf.sum("v").alias("sum"),
        sf.avg("v").alias("avg"),
        sf.min("v").alias("min"),
        sf.max("ts").alias("max"),
        sf.approx_count_distinct("v").alias("distinct"),
        sf.sort_array(sf.collect_set("v")).alias("set"),
        sf.collect_list("v").alias("list"),
        sf.stddev("v").alias("stddev"),
    )


def sessions(gap: str) -> Callable[[DataFrame], DataFrame]:
    """Sessions per key; `gap` is an SQL expression, so that it may depend on the row."""

    def transform(df: DataFrame) -> DataFrame:
        session = sf.session_window("ts", sf.expr(gap))
        return (
            watermarked(df)
            .groupBy(session, "k")
            .agg(sf.count("*").alias("n"), sf.sum("v").alias("sum"))
        )

    return transform


def global_aggregate(df: DataFrame) -> DataFrame:
    return df.agg(sf.count("*").alias("n"), sf.sum("v").alias("sum"), sf.max("ts").alias("last"))


def window_of_window(df: DataFrame) -> DataFrame:
    small = watermarked(df).groupBy(sf.window("ts", "5 seconds"), "k").agg(sf.sum("v").alias("sum"))
    return small.groupBy(sf.window(sf.window_time("window"), "20 seconds")).agg(
        sf.count("*").alias("n"), sf.sum("sum").alias("sum")
    )


def dedup_then_aggregate(df: DataFrame) -> DataFrame:
    deduplicated = watermarked(df).dropDuplicatesWithinWatermark(["k"])
    return deduplicated.groupBy(sf.window("ts", "10 seconds")).agg(
        sf.count("*").alias("n"), sf.max("k").alias("k")
    )


def evens_and_odds(df: DataFrame) -> DataFrame:
    """A union below a stateful operator, whose sides meet in the same keys."""
    evens = df.where("v % 2 = 0").select("k", "v", "ts", sf.lit("even").alias("side"))
    odds = df.where("v % 2 = 1").select("k", "v", "ts", sf.lit("odd").alias("side"))
    return (
        evens.union(odds)
        .groupBy("k")
        .agg(sf.sum("v").alias("sum"), sf.sort_array(sf.collect_set("side")).alias("on"))
    )


AGGREGATIONS: Mapping[str, Job] = {
    "update": Job.of(EVENTS, events(), aggregate, "update"),
    "complete": Job.of(EVENTS, events(), aggregate, "complete"),
    "update, state format 1": Job.of(
        EVENTS,
        events(),
        aggregate,
        "update",
        {"spark.sql.streaming.aggregation.stateFormatVersion": "1"},
    ),
    "window append": Job.of(EVENTS, events(), windowed),
    "window update": Job.of(EVENTS, events(), windowed, "update"),
    "window complete": Job.of(EVENTS, events(), windowed, "complete"),
    "global update": Job.of(EVENTS, events(), global_aggregate, "update"),
    "global complete": Job.of(EVENTS, events(), global_aggregate, "complete"),
    "distinct": Job.of(EVENTS, events(), lambda df: df.select("k").distinct()),
    "rollup": Job.of(
        EVENTS,
        events(),
        lambda df: df.rollup("k", sf.col("v") % 2).agg(sf.sum("v").alias("s")),
        "update",
    ),
    "sorted and limited": Job.of(
        EVENTS,
        events(),
        lambda df: df.groupBy("k").agg(sf.sum("v").alias("s")).orderBy(sf.desc("s"), "k").limit(3),
        "complete",
    ),
}

SESSION_WINDOWS: Mapping[str, Job] = {
    "append": Job.of(EVENTS, events(), sessions("'4 seconds'")),
    "complete": Job.of(EVENTS, events(), sessions("'15 seconds'"), "complete"),
    "gap of the row's own": Job.of(
        EVENTS, events(), sessions("if(v % 2 = 0, '3 seconds', '25 seconds')")
    ),
    "merged before the shuffle": Job.of(
        EVENTS,
        events(),
        sessions("'15 seconds'"),
        confs={"spark.sql.streaming.sessionWindow.merge.sessions.in.local.partition": "true"},
    ),
}

DEDUPLICATIONS: Mapping[str, Job] = {
    "by key": Job.of(EVENTS, events(), lambda df: df.dropDuplicates(["k"])),
    "by row": Job.of(EVENTS, [*events(2), *events(2)], lambda df: df.dropDuplicates()),
    "by key and event time": Job.of(
        EVENTS,
        [*events(2), *events(3)],
        lambda df: watermarked(df, "30 seconds").dropDuplicates(["k", "ts"]),
    ),
    "within watermark": Job.of(
        EVENTS, events(5), lambda df: watermarked(df).dropDuplicatesWithinWatermark(["k"])
    ),
}

LIMITS: Mapping[str, Job] = {
    "reached after the restart": Job.of(EVENTS, events(), lambda df: df.limit(25)),
    "reached before the restart": Job.of(EVENTS, events(), lambda df: df.limit(5)),
    "of a deduplication": Job.of(
        EVENTS, events(), lambda df: df.dropDuplicates(["k", "v"]).limit(1000)
    ),
}

LEFT = "k string, l long, lts timestamp"
RIGHT = "k string, r long, rts timestamp"


def two_streams(batches: int = 4) -> list[Mapping[str, Rows]]:
    """Keys that match in their batch, later, or never; duplicates and null keys on both sides."""

    def left(batch: int) -> Rows:
        now = batch * 20
        keys = [KEYS[(i + batch) % 10] for i in range(6)]
        rows = [{"k": k, "l": batch * 10 + i, "lts": at(now + i)} for i, k in enumerate(keys)]
        return [
            *rows,
            {"k": keys[0], "l": -batch, "lts": at(now + 1)},
            {"k": None, "l": 0, "lts": at(now)},
        ]

    def right(batch: int) -> Rows:
        now = batch * 20
        keys = [KEYS[(i * 3 + batch + 4) % 10] for i in range(5)]
        rows = [{"k": k, "r": batch * 10 + i, "rts": at(now + i + 2)} for i, k in enumerate(keys)]
        return [
            *rows,
            {"k": keys[1], "r": -batch, "rts": at(now + 3)},
            {"k": None, "r": 0, "rts": at(now)},
        ]

    return [{"left": left(batch), "right": right(batch)} for batch in range(batches)]


JOIN_TYPES = ("inner", "left_outer", "right_outer", "full_outer", "left_semi")
JOIN_STATE_FORMATS = (2, 3, 4)
"""Spark refuses to start a query in format 1; it only continues one in an old checkpoint."""


def join_confs(state_format: int) -> Mapping[str, str]:
    """Spark 4.2 has state format 4 behind a conf of its own; later releases ignore that conf."""
    return {
        "spark.sql.streaming.join.stateFormatVersion": str(state_format),
        "spark.sql.streaming.join.stateFormatV4.enabled": "true",
    }


def time_range_join(join_type: str, state_format: int) -> Job:
    """Rows within 25 seconds of each other: both sides are evicted by their watermark."""

    def transform(sources: Mapping[str, DataFrame]) -> DataFrame:
        left = sources["left"].withWatermark("lts", "10 seconds").alias("left")
        right = sources["right"].withWatermark("rts", "5 seconds").alias("right")
        span = "interval 25 seconds"
        near = f"left.k = right.k and rts between lts - {span} and lts + {span}"
        return left.join(right, sf.expr(near), join_type)

    return Job(
        {"left": LEFT, "right": RIGHT}, two_streams(), transform, confs=join_confs(state_format)
    )


def unbounded_join(state_format: int) -> Job:
    """No watermark: the state only grows, and no row has an event time."""

    def transform(sources: Mapping[str, DataFrame]) -> DataFrame:
        return sources["left"].join(sources["right"].where("r >= 0"), "k")

    return Job(
        {"left": LEFT, "right": RIGHT}, two_streams(), transform, confs=join_confs(state_format)
    )


def window_join(join_type: str, state_format: int) -> Job:
    """Equality on a window: the event time is part of the join key."""

    def transform(sources: Mapping[str, DataFrame]) -> DataFrame:
        left = (
            sources["left"]
            .withWatermark("lts", "10 seconds")
            .withColumn("w", sf.window("lts", "10 seconds"))
        )
        right = (
            sources["right"]
            .withWatermark("rts", "10 seconds")
            .withColumn("w", sf.window("rts", "10 seconds"))
        )
        return left.drop("lts").join(right.drop("rts"), ["k", "w"], join_type)

    return Job(
        {"left": LEFT, "right": RIGHT}, two_streams(), transform, confs=join_confs(state_format)
    )


def join_then_aggregate() -> Job:
    def transform(sources: Mapping[str, DataFrame]) -> DataFrame:
        left = (
            sources["left"]
            .withWatermark("lts", "10 seconds")
            .withColumn("w", sf.window("lts", "10 seconds"))
        )
        right = (
            sources["right"]
            .withWatermark("rts", "10 seconds")
            .withColumn("w", sf.window("rts", "10 seconds"))
        )
        joined = left.join(right, ["k", "w"], "left_outer")
        return joined.groupBy("w").agg(
            sf.count("*").alias("n"), sf.count("r").alias("matched"), sf.sum("l").alias("sum")
        )

    return Job({"left": LEFT, "right": RIGHT}, two_streams(5), transform)


def union_of_streams() -> Job:
    """Two sources, one stateful operator."""

    def transform(sources: Mapping[str, DataFrame]) -> DataFrame:
        left = sources["left"].select("k", sf.col("l").alias("v"))
        right = sources["right"].select("k", sf.col("r").alias("v"))
        return (
            left.union(right).groupBy("k").agg(sf.sum("v").alias("sum"), sf.count("*").alias("n"))
        )

    return Job({"left": LEFT, "right": RIGHT}, two_streams(), transform, "update")


def union_of_aggregates() -> Job:
    """Two stateful operators side by side in one query."""

    def transform(sources: Mapping[str, DataFrame]) -> DataFrame:
        left = sources["left"].groupBy("k").agg(sf.sum("l").alias("v"))
        right = sources["right"].groupBy("k").agg(sf.max("r").alias("v"))
        return left.union(right)

    return Job({"left": LEFT, "right": RIGHT}, two_streams(), transform, "update")


COMBINATIONS: Mapping[str, Job] = {
    "window of window": Job.of(EVENTS, events(5), window_of_window),
    "deduplication, then aggregation": Job.of(EVENTS, events(5), dedup_then_aggregate),
    "join, then aggregation": join_then_aggregate(),
    "union below an aggregation": Job.of(EVENTS, events(), evens_and_odds, "update"),
    "union of two streams": union_of_streams(),
    "union of two aggregations": union_of_aggregates(),
}
