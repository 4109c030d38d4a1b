"""What benchmarks conclude from their runs: bars, growth, charts, and the one form of findings."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.bars import bars, growth_bar
from benchmarks.charts import charts
from benchmarks.findings import Bar, Chart, Curve, Findings, Grid, Point, Verdict
from benchmarks.jvm import AllocatedBytes
from benchmarks.ratios import BATCH_TIME, GC_TIME, STATE_TIME, ratio
from benchmarks.recovery import DRIVER_KILLED, EXECUTOR_KILLED, Recovery, ratio_of
from benchmarks.recovery_run import ColdStart, Kills
from benchmarks.report import Report
from tests.unit.benchmark_samples import run_of

MILLION, FIVE_MILLION = 1_000_000, 5_000_000


def verdicts(found: tuple[Bar, ...]) -> dict[str, Verdict]:
    return {bar.title: bar.verdict for bar in found}


def test_bars_of_a_million_keys_are_ratios_to_the_named_contestant() -> None:
    runs = [
        run_of("memory", MILLION, 100_000, 700, updates_ms=60, commit_ms=90, written=400_000),
        run_of("rocksdb", MILLION, 100_000, 1000, updates_ms=200, commit_ms=200),
        run_of("hdfs", MILLION, 100_000, 730, updates_ms=100, commit_ms=100),
    ]
    found = {bar.title: (bar.value, bar.verdict) for bar in bars(runs) if bar.value is not None}
    size = "1M keys, 100k changed a batch"
    state_time = "state time (updates and commit), median: sparkckpt, memory"
    assert found == {
        f"batch time, median: sparkckpt, memory / Spark RocksDB, {size}": (0.7, Verdict.MET),
        f"batch time, median: sparkckpt, memory / Spark HDFS-backed, {size}": (
            pytest.approx(700 / 730),
            Verdict.MISSED,
        ),
        f"{state_time} / Spark RocksDB, {size}": (0.375, Verdict.MET),
        f"{state_time} / Spark HDFS-backed, {size}": (0.75, Verdict.MET),
        f"bytes per changed key, all files: sparkckpt, memory / Spark RocksDB, {size}": (
            pytest.approx(0.4),
            Verdict.MET,
        ),
        f"restart to first batch, net of empty: sparkckpt, memory / Spark RocksDB, {size}": (
            1.0,
            Verdict.MISSED,
        ),
    }


def test_every_bar_is_listed_when_nothing_of_its_size_was_measured() -> None:
    few = [run_of(name, 1000, 100) for name in ("memory", "rocksdb", "hdfs")]
    assert set(verdicts(bars(few)).values()) == {Verdict.NOT_MEASURED}
    assert len(bars(few)) == len(bars([])) == 9


@pytest.mark.parametrize(
    ("batches", "verdict"), [(50, Verdict.MET), (49, Verdict.NOT_MEASURED)], ids=str
)
def test_the_bar_of_garbage_asks_for_enough_batches(batches: int, verdict: Verdict) -> None:
    runs = [
        run_of("memory", FIVE_MILLION, 100_000, gc_ms=100, batches=batches),
        run_of("hdfs", FIVE_MILLION, 100_000, gc_ms=500, batches=batches),
    ]
    (bar,) = (bar for bar in bars(runs) if bar.title.startswith(GC_TIME.title))
    assert bar.verdict is verdict


def test_growth_compares_sizes_within_a_repeat() -> None:
    runs = [
        run_of("memory", 100_000, 10_000, 500, repeat=0),
        run_of("memory", FIVE_MILLION, 10_000, 550, repeat=0),
        run_of("memory", 100_000, 10_000, 1000, repeat=1),
        run_of("memory", FIVE_MILLION, 10_000, 1200, repeat=1),
        run_of("memory", FIVE_MILLION, 100_000, 9000, repeat=0),
        run_of("hdfs", FIVE_MILLION, 10_000, 9000, repeat=0),
    ]
    bar = growth_bar(runs)
    assert (bar.value, bar.spread) == (pytest.approx(1.15), (1.1, 1.2))
    assert bar.verdict is Verdict.MET
    assert Bar("growth", 1.2, 1.2, below=True).verdict is Verdict.MISSED
    assert Bar("time", 1.2, 1.2).verdict is Verdict.MET


def test_state_time_is_updates_and_commit_of_the_same_batch() -> None:
    runs = [
        run_of("memory", 1000, 10, updates_ms=30, commit_ms=70),
        run_of("rocksdb", 1000, 10, updates_ms=100, commit_ms=300),
    ]
    found = ratio(STATE_TIME, runs, "memory", "rocksdb")
    assert found is not None and str(found) == "0.25 [0.25-0.25]"
    assert ratio(BATCH_TIME, runs, "hdfs", "rocksdb") is None


def test_charts_need_two_sizes_and_keep_the_other_fixed() -> None:
    runs = [
        run_of("memory", 1000, 10, 100),
        run_of("memory", 1000, 10, 300, repeat=1),
        run_of("memory", 2000, 10, 200),
        run_of("memory", 2000, 50, 900),
    ]
    by_name = {chart.name: chart for chart in charts(runs)}
    assert by_name["batch-time-by-keys-10"].curves == (
        Curve("sparkckpt, memory", (Point(1000, 200, 100, 300), Point(2000, 200, 200, 200))),
    )
    assert [p.x for p in by_name["batch-time-by-changes-2k"].curves[0].points] == [10, 50]
    assert not any(name.endswith(("-by-keys-50", "-by-changes-1k")) for name in by_name)


texts = st.text(max_size=20)
numbers = st.floats(allow_nan=False, allow_infinity=False)
points = st.builds(Point, numbers, numbers, numbers, numbers)


@given(
    st.lists(st.builds(Grid, texts, st.tuples(texts, texts), st.tuples(st.tuples(texts, texts)))),
    st.lists(
        st.builds(
            Bar,
            texts,
            numbers,
            st.none() | numbers,
            st.none() | st.tuples(numbers, numbers),
            st.booleans(),
        )
    ),
    st.lists(st.builds(Curve, texts, st.tuples(points))),
)
def test_findings_survive_json(grids: list[Grid], found: list[Bar], curves: list[Curve]) -> None:
    chart = Chart("name", "title", "x", "y", tuple(curves))
    findings = Findings(tuple(grids), tuple(found), (chart,), ("a note",))
    assert Findings.from_json(json.loads(json.dumps(findings.to_json()))) == findings


def test_a_grid_in_markdown_has_one_line_a_row_and_its_columns_aligned() -> None:
    grid = Grid("sizes", ("name", "bytes"), (("a|b", "1"), ("c", "2")))
    assert grid.markdown.splitlines() == [
        "**sizes**",
        "",
        "| name | bytes |",
        "|---|---:|",
        "| a\\|b | 1 |",
        "| c | 2 |",
    ]


def test_the_report_of_two_sizes_shows_ratios_growth_and_collectors() -> None:
    runs = [
        run_of(name, keys, 10, ms)
        for keys in (1000, 2000)
        for name, ms in (("memory", 50), ("rocksdb", 100))
    ]
    findings = Report({}, runs, profile=True).findings()
    first = findings.grids[0]
    assert first.columns == ("figure", "sparkckpt, memory", "Spark RocksDB", "1 is")
    assert first.rows[0] == ("batch time, median", "0.50 [0.50-0.50]", "1", "100 ms")
    assert findings.grids[-1].rows[0] == ("sparkckpt, memory", "1.00 [1.00-1.00]")
    assert "G1 Young Generation" in findings.notes[0]


def test_allocation_of_threads_that_come_and_go_is_counted_once() -> None:
    allocated = AllocatedBytes()
    allocated.start({1: 1000, 2: 500})
    allocated.sample({1: 1100, 2: 700, 3: 50})
    allocated.sample({1: 1300, 2: -1, 3: 80})
    allocated.sample({1: 1300, 4: 5})
    assert allocated.total == 300 + 200 + 80 + 5


def test_recovery_is_compared_with_the_reference_of_the_same_repeat() -> None:
    def run(contestant: str, repeat: int, killed: list[float], cold: float) -> Recovery:
        kills = Kills([0.5] * len(killed), killed, [], [1])
        return Recovery(contestant, 1000, repeat, kills, ColdStart(cold, 2))

    runs = [
        run("memory", 0, [1.0, 3.0, 2.0], 3.0),
        run("rocksdb", 0, [4.0], 6.0),
        run("memory", 1, [6.0], 1.0),
        run("rocksdb", 1, [4.0], 4.0),
    ]
    assert str(ratio_of(runs, "memory", EXECUTOR_KILLED)) == "1.00 [0.50-1.50]"
    assert str(ratio_of(runs, "memory", DRIVER_KILLED)) == "0.38 [0.25-0.50]"
    assert ratio_of(runs, "memory", "of it, loading the stores") is None
