"""What the planner rule does to plans: where rows go, what stays right, what is refused.

Results are compared with the same transformation of the same rows as a batch query, in which no
state is kept and nothing of sparkckpt takes part.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle, StreamingQuery

from tests.spark import streams
from tests.spark.streams import (
    PARTITIONS,
    ROCKSDB_PROVIDER,
    STATE_STORE,
    Job,
    canonical_rows,
    checkpoint_of,
    feed,
    session_for,
    start,
)

cloudpickle.register_pickle_by_value(sys.modules[__name__])

N = 3
KEYS = 49
MAX_PARALLELISM = STATE_STORE + "sparkckpt.maxParallelism"
FORMAT_VERSION = STATE_STORE + "checkpointFormatVersion"
PROVIDER = STATE_STORE + "providerClass"
HDFS_PROVIDER = "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
SHUFFLED_JOINS = {
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.adaptive.enabled": "false",
}

SCHEMA = "k long, s string, v long, t timestamp"
BATCHES = [
    [
        {
            "k": i % KEYS,
            "s": None if i % KEYS == 0 else f"key {i % KEYS}",
            "v": i,
            "t": "2026-01-01",
        }
        for i in range(batch * 60, batch * 60 + 2 * KEYS)
    ]
    for batch in range(2)
]
ALL = range(len(BATCHES))

Transform = Callable[[DataFrame], DataFrame]


def job_of(transform: Transform, output_mode: str = "complete", **confs: str) -> Job:
    return Job.of(SCHEMA, BATCHES, transform, output_mode, {**SHUFFLED_JOINS, **confs})


def run(
    spark: SparkSession,
    job: Job,
    workdir: Path,
    confs: dict[str, str] | None = None,
    batches: range = ALL,
    seen: Transform = lambda rows: rows,
) -> tuple[list[Row], StreamingQuery]:
    """Run these batches with all state unloaded; what the stream says in the end, and the query."""
    output: list[Row] = []

    def collect(rows: DataFrame, _: int) -> None:
        if job.output_mode == "complete":
            output.clear()
        output.extend(seen(rows).collect())

    streams.unload_state(spark)
    feed(job, workdir, batches)
    query = start(session_for(spark, {**(confs or {}), **job.confs}), job, workdir, collect)
    query.awaitTermination()
    return output, query


def in_batch(spark: SparkSession, job: Job, batches: range = ALL) -> list[Row]:
    """The same transformation of all rows at once."""
    session = session_for(spark, dict(job.confs))
    rows = [json.dumps(row) for batch in batches for row in job.batches[batch]["in"]]
    read = session.read.schema(SCHEMA).json(session.sparkContext.parallelize(rows, 1))
    return list(job.transform({"in": read}).collect())


def assert_like_batch(
    spark: SparkSession, job: Job, workdir: Path, confs: dict[str, str] | None = None
) -> StreamingQuery:
    actual, query = run(spark, job, workdir, confs)
    assert canonical_rows(actual) == canonical_rows(in_batch(spark, job))
    assert actual, "no output shows nothing"
    return query


def plan_of(query: StreamingQuery) -> str:
    return str(query._jsq.streamingQuery().lastExecution().executedPlan().toString())


def exchanges_of(query: StreamingQuery) -> list[str]:
    """The partitionings of the exchanges of the last plan."""
    lines = [line.partition("Exchange ")[2] for line in plan_of(query).splitlines()]
    return [line.partition("(")[0] for line in lines if "partitioning(" in line]


def layout_of(query: StreamingQuery, operator: int) -> dict[str, Any]:
    conf = query._jsq.streamingQuery().lastExecution().sparkSession().conf()
    text = conf.get(f"{STATE_STORE}sparkckpt.internal.operator.{operator}")
    layout: dict[str, Any] = json.loads(text)
    return layout


def summed(df: DataFrame, *keys: str) -> DataFrame:
    return df.groupBy(*(keys or ("k",))).agg(sf.sum("v").alias("total"))


# Where rows go


class Summing(StatefulProcessor):
    """A sum per key that starts from an initial state where there is one."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "total long")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        self.total.update((initialState.v,))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:
        total = (self.total.get()[0] if self.total.exists() else 0) + sum(row.v for row in rows)
        self.total.update((total,))
        yield Row(k=key[0], total=total)


def known_before(df: DataFrame) -> DataFrame:
    return df.sparkSession.range(0, KEYS, 2).selectExpr("id as k", "1000L as v")


def sums_from_initial_state(df: DataFrame) -> DataFrame:
    if not df.isStreaming:
        return summed(df.select("k", "v").union(known_before(df)))
    initial = known_before(df).groupBy("k")
    return df.groupBy("k").transformWithState(
        Summing(), "k long, total long", "update", "none", initial
    )


def session_windows(df: DataFrame) -> DataFrame:
    window = sf.session_window("t", "5 seconds")
    return df.withWatermark("t", "1 second").groupBy("s", window).count()


PLACEMENTS: dict[str, tuple[Transform, str, str]] = {
    "aggregation": (summed, "k", "complete"),
    "two keys, one null": (lambda df: summed(df, "s", "k"), "s, k", "complete"),
    "session window": (session_windows, "s", "complete"),
    "transformWithState": (sums_from_initial_state, "k", "update"),
    "renamed above a user's exchange": (
        lambda df: summed(df.repartition(N, "k").withColumnRenamed("k", "z"), "z"),
        "z",
        "complete",
    ),
    "state on state": (
        lambda df: df.dropDuplicates(["k", "v"]).dropDuplicates(["v", "k"]),
        "v, k",
        "append",
    ),
}


@pytest.mark.parametrize("name", PLACEMENTS)
def test_rows_lie_in_the_partition_that_owns_their_key_group(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    transform, keys, output_mode = PLACEMENTS[name]
    groups = 32768 if name == "aggregation" else 100
    owner = f"pmod(hash({keys}), {groups}) * {N} div {groups}"
    placed: list[tuple[int, int]] = []

    def remember(rows: DataFrame) -> DataFrame:
        where = rows.select(sf.spark_partition_id().alias("at"), sf.expr(owner).alias("owner"))
        placed.extend((row["at"], row["owner"]) for row in where.collect())
        return rows

    job = job_of(transform, output_mode)
    actual, query = run(spark, job, tmp_path, {MAX_PARALLELISM: str(groups)}, seen=remember)
    if output_mode == "update":
        actual = list({row["k"]: row for row in actual}.values())
    assert canonical_rows(actual) == canonical_rows(in_batch(spark, job))
    assert [at for at, _ in placed] == [owner for _, owner in placed]
    assert {at for at, _ in placed} == set(range(N))
    assert set(exchanges_of(query)) == {"keygrouppartitioning"}
    assert layout_of(query, 0)["parallelism"] == N


def test_both_sides_of_a_stream_stream_join_meet(spark: SparkSession, tmp_path: Path) -> None:
    job = job_of(lambda df: df.join(df.where("v % 2 = 0").select("k", "v"), ["k", "v"]), "append")
    query = assert_like_batch(spark, job, tmp_path)
    assert exchanges_of(query) == ["keygrouppartitioning"] * 2
    assert layout_of(query, 0)["stateFormatVersion"] in (2, 3, 4)


def test_a_join_that_needs_no_exchange(spark: SparkSession, tmp_path: Path) -> None:
    """Then nothing makes its node anew, and a join reads the conf when its node is made."""
    one = {PARTITIONS: "1", "spark.sql.codegen.wholeStage": "false"}
    job = job_of(lambda df: df.coalesce(1).join(df.coalesce(1).select("v"), "v"), "append", **one)
    query = assert_like_batch(spark, job, tmp_path)
    assert exchanges_of(query) == []
    assert layout_of(query, 0)["parallelism"] == 1


def test_a_part_of_the_key_is_not_enough(spark: SparkSession, tmp_path: Path) -> None:
    """Without strict distribution Spark takes rows that are partitioned by some of the keys."""
    job = job_of(
        lambda df: summed(df.repartition(N, "k"), "k", "s"),
        **{"spark.sql.streaming.statefulOperator.useStrictDistribution": "false"},
    )
    query = assert_like_batch(spark, job, tmp_path)
    assert exchanges_of(query) == ["keygrouppartitioning", "hashpartitioning"]


# Hazard 1: what stands beside and above a swapped exchange


def static_table(kind: str, df: DataFrame) -> DataFrame:
    session = df.sparkSession
    if kind.startswith("bucketed"):
        return session.table(kind)
    names = session.range(KEYS).selectExpr("id as k", "id * 7 as name")
    if kind == "cached":
        return names.repartition(N, "k").cache()
    return names.repartition(N, "k") if kind == "repartitioned" else names


BUCKETED = f"bucketed_{N}"
JOINS = [
    ("plain", "left"),
    ("plain", "right"),
    ("repartitioned", "right"),
    ("cached", "left"),
    (BUCKETED, "left"),
    (BUCKETED, "right"),
    ("bucketed_5", "left"),
]


@pytest.fixture(scope="module")
def bucketed_tables(spark: SparkSession) -> Iterator[None]:
    names = spark.range(KEYS).selectExpr("id as k", "id * 7 as name")
    for buckets in (N, 5):
        names.write.bucketBy(buckets, "k").mode("overwrite").saveAsTable(f"bucketed_{buckets}")
    yield
    spark.catalog.clearCache()


@pytest.mark.usefixtures("bucketed_tables")
@pytest.mark.parametrize(("kind", "side"), JOINS)
def test_aggregate_joined_with_a_static_table(
    spark: SparkSession, tmp_path: Path, kind: str, side: str
) -> None:
    def joined(df: DataFrame) -> DataFrame:
        static, aggregated = static_table(kind, df), summed(df)
        pairs = aggregated.join(static, "k") if side == "left" else static.join(aggregated, "k")
        return pairs.select("k", "total", "name")

    query = assert_like_batch(spark, job_of(joined), tmp_path)
    assert "SortMergeJoin" in plan_of(query)
    if kind in ("plain", "repartitioned"):
        assert exchanges_of(query) == ["keygrouppartitioning"] * 2, "a shuffle too many"


@pytest.mark.usefixtures("bucketed_tables")
@pytest.mark.parametrize(("kind", "side"), [JOINS[1], JOINS[4], JOINS[5]])
def test_state_above_a_join_with_a_static_table(
    spark: SparkSession, tmp_path: Path, kind: str, side: str
) -> None:
    """Spark lets the upper operator live off the join's partitioning, which key groups change."""

    def joined(df: DataFrame) -> DataFrame:
        static, lower = static_table(kind, df), df.dropDuplicates(["k"]).select("k", "v")
        pairs = lower.join(static, "k") if side == "left" else static.join(lower, "k")
        return pairs.select("k", "name").dropDuplicates(["k"])

    query = assert_like_batch(spark, job_of(joined, "append"), tmp_path)
    assert "SortMergeJoin" in plan_of(query)


def test_joins_inside_foreach_batch(spark: SparkSession, tmp_path: Path) -> None:
    """The output of the stream tells its partitioning to the plans a user builds on it.

    Only of computed keys: Spark renews the attributes of a source in every batch, and then does not
    recognise them in the partitioning.
    """
    counts: list[list[int]] = []

    def used(rows: DataFrame) -> DataFrame:
        session = rows.sparkSession
        names = session.range(KEYS).selectExpr("id + 1 as k", "id as name").repartition(N, "k")
        for adaptive in ("true", "false"):
            session.conf.set("spark.sql.adaptive.enabled", adaptive)
            grouped = rows.select("k").union(names.select("k")).groupBy("k").count()
            counts.append([row["count"] for row in grouped.collect()])
        return rows.join(names, "k")

    job = job_of(lambda df: summed(df.selectExpr("k + 1 as k", "v")))
    joined, _ = run(spark, job, tmp_path, seen=used)
    assert counts == [[2] * KEYS] * 2 * len(BATCHES)
    assert sorted((row["k"], row["name"]) for row in joined) == [(k + 1, k) for k in range(KEYS)]


UNIONS: dict[str, Transform] = {
    "hashed and stateful": lambda df: df.repartition(N, "k", "v").union(
        df.dropDuplicates(["k", "v"])
    ),
    "stateful twice": lambda df: df.dropDuplicates(["k", "v"]).union(
        df.where("v % 2 = 0").dropDuplicates(["k", "v"])
    ),
}


@pytest.mark.parametrize("name", UNIONS)
def test_state_above_a_union(spark: SparkSession, tmp_path: Path, name: str) -> None:
    job = job_of(lambda df: UNIONS[name](df).dropDuplicates(["k", "v"]), "append")
    assert_like_batch(spark, job, tmp_path)


# Hazard 2: checkpoints of another provider


@pytest.mark.parametrize("provider", [ROCKSDB_PROVIDER, HDFS_PROVIDER])
def test_a_checkpoint_of_another_provider_is_left_alone(
    spark: SparkSession, tmp_path: Path, provider: str
) -> None:
    """Spark 4.3 takes the format version from the checkpoint, too; before, the session says it."""
    confs = {FORMAT_VERSION: "1"}
    run(spark, job_of(summed), tmp_path, {PROVIDER: provider, **confs}, ALL[:1])
    if spark.version.startswith("4.2."):
        with pytest.raises(StreamingQueryException, match=f"{FORMAT_VERSION}=1 in the session"):
            run(spark, job_of(summed), tmp_path)
    else:
        confs = {}
    actual, query = run(spark, job_of(summed), tmp_path, confs)
    assert canonical_rows(actual) == canonical_rows(in_batch(spark, job_of(summed)))
    assert exchanges_of(query) == ["hashpartitioning"]
    assert not (checkpoint_of(tmp_path) / "_sparkckpt").exists()


def test_format_version_1_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(StreamingQueryException, match="SPARKCKPT_CHECKPOINT_FORMAT_VERSION"):
        run(spark, job_of(summed), tmp_path, {FORMAT_VERSION: "1"}, ALL[:1])


# Hazards 3 and 4: the parallelism of an operator is not that of its stage, nor always N

NARROWED: dict[str, tuple[Transform, str, tuple[str, int, bool]]] = {
    "coalesced above": (
        lambda df: summed(df).coalesce(1),
        "complete",
        ("stateStoreSave", N, True),
    ),
    "global aggregation": (
        lambda df: df.agg(sf.sum("v")),
        "complete",
        ("stateStoreSave", 1, False),
    ),
    "limit": (lambda df: df.select("k", "v").limit(1000), "append", ("globalLimit", 1, False)),
}


@pytest.mark.parametrize("name", NARROWED)
def test_the_parallelism_of_an_operator(spark: SparkSession, tmp_path: Path, name: str) -> None:
    transform, output_mode, expected = NARROWED[name]
    job = job_of(transform, output_mode)
    first, _ = run(spark, job, tmp_path, batches=ALL[:1])
    rest, query = run(spark, job, tmp_path, batches=ALL[1:])
    actual = rest if output_mode == "complete" else first + rest
    assert canonical_rows(actual) == canonical_rows(in_batch(spark, job))
    layout = layout_of(query, 0)
    assert (layout["operatorName"], layout["parallelism"], layout["keyed"]) == expected
    stores = {path.name for path in (checkpoint_of(tmp_path) / "state" / "0").iterdir()}
    assert {store for store in stores if store.isdigit()} == {str(p) for p in range(expected[1])}


# Several queries, and none at all


def test_queries_of_one_session_keep_their_own_layouts(spark: SparkSession, tmp_path: Path) -> None:
    session = session_for(spark, SHUFFLED_JOINS)
    job = job_of(lambda df: summed(df.dropDuplicates(["k", "v"])))
    queries = {}
    for parallelism in (2, 4):
        workdir = tmp_path / str(parallelism)
        feed(job, workdir, ALL)
        session.conf.set(PARTITIONS, str(parallelism))
        queries[parallelism] = start(session, job, workdir, lambda rows, _: rows.collect())
    for parallelism, query in queries.items():
        query.awaitTermination()
        layouts = [layout_of(query, operator) for operator in (0, 1)]
        assert [layout["parallelism"] for layout in layouts] == [parallelism] * 2
        assert [layout["operatorName"] for layout in layouts] == ["stateStoreSave", "dedupe"]
    assert session.conf.get(f"{STATE_STORE}sparkckpt.internal.operator.0", "none") == "none"


def test_explain_touches_nothing(spark: SparkSession, tmp_path: Path) -> None:
    session, job = session_for(spark, {}), job_of(summed)
    explained = job.transform(streams.open_sources(session, job, tmp_path))
    extended = session._jvm.org.apache.spark.sql.execution.ExplainMode.fromString("simple")
    text = explained._jdf.queryExecution().explainString(extended)
    assert "keygrouppartitioning" in text
    assert session.conf.get(f"{STATE_STORE}sparkckpt.internal.operator.0", "none") == "none"
    assert not list(Path.cwd().glob("*unknown*"))


# The number of key groups is pinned in the checkpoint


def test_the_number_of_key_groups_is_pinned(spark: SparkSession, tmp_path: Path) -> None:
    job = job_of(summed)
    file = checkpoint_of(tmp_path) / "_sparkckpt" / "backend.json"

    def replace(text: str | None) -> None:
        for path in file.parent.glob("*backend.json*"):
            path.unlink()
        if text is not None:
            file.write_text(text)

    def refused(max_parallelism: str | None = None) -> str:
        confs = {} if max_parallelism is None else {MAX_PARALLELISM: max_parallelism}
        with pytest.raises(StreamingQueryException) as error:
            run(spark, job, tmp_path, confs)
        return str(error.value)

    run(spark, job, tmp_path, {MAX_PARALLELISM: "64"}, ALL[:1])
    pinned = file.read_text()
    assert json.loads(pinned) == {"formatVersion": 1, "maxParallelism": 64}

    message = refused("128")
    assert all(part in message for part in ("64", "128", str(file), MAX_PARALLELISM))
    for text, condition in {
        '{"formatVersion":2,"maxParallelism":64}': "SPARKCKPT_NEWER_FORMAT",
        '{"formatVersion":1}': "SPARKCKPT_UNREADABLE_BACKEND_FILE",
        "": "SPARKCKPT_UNREADABLE_BACKEND_FILE",
    }.items():
        replace(text)
        message = refused()
        assert condition in message
        assert str(file) in message

    replace(None)
    actual, _ = run(spark, job, tmp_path, {MAX_PARALLELISM: "64"})
    assert file.read_text() == pinned, "a lost file is written again"
    assert canonical_rows(actual) == canonical_rows(in_batch(spark, job))

    more = Job(job.schemas, [*job.batches, *job.batches], job.transform, "complete", job.confs)
    _, query = run(spark, more, tmp_path, batches=range(2, 3))
    assert f", {N}, 64)" in plan_of(query), "without the option, the checkpoint decides"
    assert layout_of(query, 0)["maxParallelism"] == 64


def test_more_partitions_than_key_groups(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(StreamingQueryException, match="SPARKCKPT_PARALLELISM_ABOVE_MAXIMUM"):
        run(spark, job_of(summed), tmp_path, {MAX_PARALLELISM: "2"}, ALL[:1])


# The plugin


def configured_by_plugin(spark: SparkSession, confs: dict[str, str]) -> dict[str, str]:
    jvm = spark._jvm
    conf = jvm.org.apache.spark.SparkConf(False)
    for key, value in confs.items():
        conf.set(key, value)
    jvm.org.apache.spark.sql.sparkckpt.SparkckptPlugin.configure(conf)
    return {entry._1(): entry._2() for entry in conf.getAll()}


def test_the_plugin_appends_to_the_extensions(spark: SparkSession) -> None:
    ours = "org.apache.spark.sql.sparkckpt.SparkckptExtensions"
    confs = configured_by_plugin(spark, {"spark.sql.extensions": "a.B, c.D"})
    assert confs["spark.sql.extensions"] == f"a.B,c.D,{ours}"
    assert configured_by_plugin(spark, confs) == confs


def test_the_plugin_refuses_another_spark(spark: SparkSession) -> None:
    plugin = spark._jvm.org.apache.spark.sql.sparkckpt.SparkckptPlugin
    plugin.requireSparkMinor(spark.version)
    for minor in ("4.1", "5.0"):
        with pytest.raises(Exception, match=f"Spark {minor} is running"):
            plugin.requireSparkMinor(f"{minor}.0")


APPLICATION = f"""
import sys
from pathlib import Path
from pyspark.sql import SparkSession
import sparkckpt
from tests.conftest import SESSION_CONFS
from tests.spark.test_plans import PROVIDER, ROCKSDB_PROVIDER, job_of, run, summed

def application(confs):
    builder = SparkSession.builder.config(map=SESSION_CONFS | confs)
    return sparkckpt.configure(builder).getOrCreate()

spark = application({{}})
spark.sparkContext.setLogLevel("WARN")
for batches in range(1), range(1, 2):
    run(spark, job_of(summed), Path(sys.argv[1]), {{PROVIDER: ROCKSDB_PROVIDER}}, batches)
spark.stop()

for key, value in {{
    "{PROVIDER}": "{HDFS_PROVIDER}",
    "{FORMAT_VERSION}": "1",
    "{MAX_PARALLELISM}": "40000",
}}.items():
    try:
        application({{key: value}}).stop()
    except Exception as refused:
        print("refused", key, value, str(refused).replace("\\n", " "))
"""


@pytest.mark.usefixtures("jars")
def test_an_application_says_what_contradicts_and_what_is_left_alone(tmp_path: Path) -> None:
    """The conf of an application and its log need a JVM of their own."""
    ended = subprocess.run(
        [sys.executable, "-c", APPLICATION, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
    )
    refused = [line for line in ended.stdout.splitlines() if line.startswith("refused")]
    assert len(refused) == 3
    assert f"{PROVIDER} is set to '{HDFS_PROVIDER}'" in refused[0]
    assert f"{FORMAT_VERSION} is set to '1'" in refused[1]
    assert f"{MAX_PARALLELISM} has the value '40000'" in refused[2]
    warnings = [line for line in ended.stderr.splitlines() if "not by sparkckpt" in line]
    assert len(warnings) == 2, "one per run of the query"
    assert all(str(checkpoint_of(tmp_path)) in line for line in warnings)
