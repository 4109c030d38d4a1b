"""Vectorized processors and folds, through the exchange and without Spark."""

import datetime
import random
from decimal import Decimal, localcontext

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql.types import StringType, StructType

import sparkckpt
from sparkckpt.errors import FoldError, OperatorStateModeError, VectorizedResultError
from sparkckpt.processor.folds import FoldProcessor, Sum
from sparkckpt.processor.pruning import needed_columns
from sparkckpt.testing import ProcessorTester, redistribute
from sparkckpt.testing.ddl import parse_schema

ROWS = "k string, v long"
OUTPUT = "k string, total long"


class Totals(sparkckpt.VectorizedProcessor):
    def process(self, touched):
        sums = np.add.reduceat(touched.rows["v"].to_numpy(), touched.starts)
        total = pc.add(touched.state["total"].fill_null(0), pa.array(sums))
        assert touched.exists.to_pylist() == touched.state["total"].is_valid().to_pylist()
        assert len(touched.key_index) == touched.rows.num_rows
        output = touched.keys.append_column("total", total)
        kept = output.slice(0, output.num_rows - touched.goes_on)
        return sparkckpt.Changes(kept, pa.table({"total": total}))


def kit(processor, rows=ROWS, keys=("k",), output=OUTPUT, state="total long", **options):
    return ProcessorTester.of_vectorized(processor, rows, list(keys), output, state, **options)


@pytest.mark.parametrize("batch_rows", [1, 2, 3, 100])
def test_state_is_kept_within_and_between_batches(batch_rows):
    tester = kit(Totals(), batch_rows=batch_rows)
    rows = [("a", 1), *[("b", i) for i in range(9)], ("c", 2)]
    assert tester.process(rows) == [("a", 1), ("b", 36), ("c", 2)]
    assert tester.process([("b", 1), ("d", 5)]) == [("b", 37), ("d", 5)]
    assert tester.state("b") == {"total": 37}


class Chosen(sparkckpt.VectorizedProcessor):
    """Keys whose last row is negative are removed, those with 0 are left alone, others are set."""

    def process(self, touched):
        if touched.timed_out:
            assert touched.rows.num_rows == 0
            return sparkckpt.Changes(
                touched.keys.append_column("total", touched.state["total"]),
                removed=range(touched.keys.num_rows),
            )
        ends = np.append(touched.starts[1:], touched.rows.num_rows) - 1
        last = touched.rows["v"].to_numpy()[ends]
        (chosen,) = np.nonzero(last > 0)
        return sparkckpt.Changes(
            state=pa.table({"total": last[chosen]}),
            state_keys=chosen,
            removed=np.flatnonzero(last < 0),
            timeouts=[int(v) if v > 100 else None for v in last],
        )


def test_some_keys_are_set_removed_or_left_alone():
    tester = kit(Chosen(), timeout="ProcessingTimeTimeout")
    tester.process([("a", 1), ("b", 2), ("c", 103), ("d", 104)])
    assert [tester.state(k) for k in "abc"] == [{"total": 1}, {"total": 2}, {"total": 103}]
    assert tester.timeout("c") == 103
    tester.process([("a", 0), ("b", -1), ("c", 5)])
    assert [tester.state(k) for k in "abc"] == [{"total": 1}, None, {"total": 5}]
    assert tester.timeout("c") is None
    tester.set_processing_time(105)
    assert tester.process() == [("d", 104)]
    assert tester.state("d") is None


@pytest.mark.parametrize("last", [-1, 0, 7])
def test_a_key_that_goes_on_keeps_its_last_change(last):
    tester = kit(Chosen(), batch_rows=1, timeout="ProcessingTimeTimeout")
    tester.process([("a", 3)])
    tester.process([*[("a", 5)] * 5, ("a", last), ("b", 1)])
    assert tester.state("a") == {-1: None, 0: {"total": 5}, 7: {"total": 7}}[last]
    assert tester.state("b") == {"total": 1}


def test_a_key_removed_while_it_goes_on_stays_removed():
    tester = kit(Chosen(), batch_rows=1, timeout="ProcessingTimeTimeout")
    tester.process([("a", 3)])
    tester.process([*[("a", -1)] * 5, ("a", 0)])
    assert tester.state("a") is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (None, "returned NoneType"),
        (sparkckpt.Changes(output={"k": []}), "output is a dict"),
        (sparkckpt.Changes(output=pa.table({"k": ["a"]})), "k, total are expected"),
        (sparkckpt.Changes(state=pa.table({"total": [1, 2]})), "2 rows for 1 keys"),
        (sparkckpt.Changes(removed=[1]), "outside of the 1 keys"),
        (sparkckpt.Changes(removed=[0], state=pa.table({"total": [1]})), "state is given, too"),
        (sparkckpt.Changes(timeouts=[]), "0 values for 1 keys"),
        (sparkckpt.Changes(state=pa.table({"total": [1]}), state_keys=[0, 0]), "a key twice"),
    ],
)
def test_wrong_results_are_named(changes, message):
    class Wrong(sparkckpt.VectorizedProcessor):
        def process(self, touched):
            return changes

    with pytest.raises(VectorizedResultError, match=message):
        kit(Wrong()).process([("a", 1)])


def fold_kit(rows, folds, derived=(), **options):
    schema = parse_schema(rows)
    state, output = StructType(), StructType().add("k", StringType())
    for name, fold in folds.items():
        kind = fold.state_type(schema[fold.column].dataType if fold.column else None)
        state, output = state.add(name, kind), output.add(name, kind)
    for name, column in dict(derived).items():
        output = output.add(name, column.schema)
    functions = {name: column.function for name, column in dict(derived).items()}
    processor = FoldProcessor(folds, functions, tuple(output.names))
    return ProcessorTester.of_vectorized(processor, rows, ["k"], output, state, **options)


FOLDS = {
    "total": sparkckpt.sum_("v"),
    "n": sparkckpt.count_(),
    "valid": sparkckpt.count_("v"),
    "low": sparkckpt.min_("v"),
    "high": sparkckpt.max_("v"),
    "first": sparkckpt.first_("v"),
    "last": sparkckpt.last_("v"),
}


def expected_of(values):
    known = [v for v in values if v is not None]
    return (
        sum(known[1:], known[0]) if known else None,
        len(values),
        len(known),
        min(known, default=None),
        max(known, default=None),
        values[0],
        values[-1],
    )


@pytest.mark.parametrize("kind", ["long", "tinyint", "double", "decimal(10,2)"])
@pytest.mark.parametrize("batch_rows", [2, 1000])
def test_folds_agree_with_python(kind, batch_rows):
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    make = {"double": float, "decimal(10,2)": Decimal}.get(kind, int)
    tester = fold_kit(f"k string, v {kind}", FOLDS, batch_rows=batch_rows)
    values = {key: [] for key in "abcdef"}
    for _ in range(4):
        rows = [
            (key, make(chance.randrange(-9, 9)) if chance.random() < 0.6 else None)
            for key in chance.choices("abcdef", k=15)
        ]
        for key, value in rows:
            values[key].append(value)
        touched = dict.fromkeys(key for key, _ in rows)
        assert tester.process(rows) == [(key, *expected_of(values[key])) for key in touched]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("string", ["b", "a", None]),
        ("date", [datetime.date(2026, 1, 2), datetime.date(2025, 1, 2), None]),
        ("timestamp_ntz", [datetime.datetime(2026, 1, 2), None, datetime.datetime(1960, 1, 2)]),
        ("boolean", [True, None, False]),
    ],
)
def test_extremes_of_other_types(kind, values):
    folds = {"low": sparkckpt.min_("v"), "high": sparkckpt.max_("v")}
    tester = fold_kit(f"k string, v {kind}", folds)
    known = sorted(v for v in values if v is not None)
    assert tester.process([("a", values[0])]) == [("a", values[0], values[0])]
    assert tester.process([("a", v) for v in values]) == [("a", known[0], known[-1])]


def test_not_a_number_is_larger_than_all():
    folds = {"low": sparkckpt.min_("v"), "high": sparkckpt.max_("v")}
    tester = fold_kit("k string, v double", folds)
    ((_, low, high),) = tester.process([("a", 1.0), ("a", float("nan")), ("a", None)])
    assert (low, np.isnan(high)) == (1.0, True)
    ((_, low, high),) = tester.process([("b", float("nan"))])
    assert np.isnan([low, high]).all()


def test_a_sum_that_overflows_is_an_error():
    tester = fold_kit(ROWS, {"total": sparkckpt.sum_("v")})
    tester.process([("a", 2**62), ("a", -(2**62)), ("a", 2**62)])
    with pytest.raises(pa.ArrowInvalid, match="overflow"):
        tester.process([("a", 2**62)])
    with pytest.raises(OverflowError):
        tester.process([("b", 2**62), ("b", 2**62)])


@pytest.mark.parametrize(
    "kind", ["decimal(1,0)", "decimal(28,2)", "decimal(38,0)", "decimal(38,10)"]
)
def test_sums_of_decimals_are_exact(kind):
    tester = fold_kit(f"k string, v {kind}", {"total": sparkckpt.sum_("v")}, batch_rows=7)
    decimal = parse_schema(f"v {kind}")[0].dataType
    with localcontext() as context:
        context.prec = 60
        step = Decimal(1).scaleb(-decimal.scale)
        largest = step * (10**decimal.precision - 1)
        values = [largest, None, -largest, -largest, largest, -step, largest] * 3
        if decimal.precision < 38:
            values += [largest] * 40
        else:
            values += [-largest] * 3
        total = sum(v for v in values if v is not None)
        tester.process([("b", None), *(("a", v) for v in values)])
        assert tester.state("a") == {"total": total}
        assert tester.process([("a", -largest), ("b", step), ("a", largest)]) == [
            ("a", total),
            ("b", step),
        ]


def test_a_sum_of_decimals_that_overflows_is_an_error():
    tester = fold_kit("k string, v decimal(38,0)", {"total": sparkckpt.sum_("v")})
    nines = Decimal("9" * 38)
    tester.process([("a", nines), ("a", nines), ("a", nines.copy_negate())])
    for key in "ab":
        with pytest.raises(pa.ArrowInvalid, match="does not fit in precision"):
            tester.process([(key, nines), (key, Decimal(1))])


def test_derived_columns():
    mean = sparkckpt.derived(lambda t: pc.divide(t["total"].cast("double"), t["n"]), "double")
    folds = {"total": sparkckpt.sum_("v"), "n": sparkckpt.count_()}
    tester = fold_kit(ROWS, folds, {"mean": mean})
    assert tester.process([("a", 1), ("a", 2)]) == [("a", 3, 2, 1.5)]


def test_what_cannot_be_folded_is_named():
    with pytest.raises(FoldError, match="no sum of string"):
        fold_kit("k string, v string", {"total": sparkckpt.sum_("v")})
    with pytest.raises(FoldError, match="no order of array<int>"):
        fold_kit("k string, v array<int>", {"low": sparkckpt.min_("v")})


class Counting(Totals):
    """Counts its calls and rows per partition, in all modes."""

    def initialize_state(self, context):
        self.context = context
        self.calls = context.get_list_state("calls")
        context.get_union_list_state("all")
        context.get_broadcast_state("same")

    def process(self, touched):
        self.calls.add(touched.rows.num_rows)
        return super().process(touched)

    def snapshot_state(self, context):
        context.get_union_list_state("all").update([len(self.calls.get())])
        context.get_broadcast_state("same").update([{"any": ("object", 1)}])


def test_operator_state_is_kept():
    tester = kit(Counting())
    tester.process([("a", 1), ("b", 2)])
    tester.process([("a", 1)])
    assert tester.operator_states() == {
        "calls": [2, 1],
        "all": [2],
        "same": [{"any": ("object", 1)}],
    }


def test_operator_state_that_is_not_set_stays_as_it_is():
    class Reading(Totals):
        def initialize_state(self, context):
            context.get_list_state("calls")

    tester = kit(Counting())
    tester.process([("a", 1)])
    blob = tester.operator_state
    tester._run = kit(Reading())._run
    tester.process([("a", 1)])
    assert tester.operator_state == blob


def test_the_mode_of_an_operator_state_cannot_change():
    class Other(Totals):
        def initialize_state(self, context):
            context.get_broadcast_state("calls")

    tester = kit(Counting())
    tester.process([("a", 1)])
    tester._run = kit(Other())._run
    with pytest.raises(OperatorStateModeError, match="kept as split"):
        tester.process([("a", 1)])


def test_operator_state_is_redistributed():
    class Reading(Counting):
        def process(self, touched):
            return Totals.process(self, touched)

        def snapshot_state(self, context):
            pass

    before = [kit(Counting()), kit(Counting())]
    for tester, batches in zip(before, (3, 1), strict=True):
        for _ in range(batches):
            tester.process([("a", 1)])
    after = [kit(Reading()) for _ in range(3)]
    redistribute(before, after)
    for tester in after:
        tester.process([("a", 1)])
    states = [tester.operator_states() for tester in after]
    assert [state["calls"] for state in states] == [[1, 1], [1], [1]]
    assert all(state["all"] == [3, 1] for state in states)
    assert all(state["same"] == [{"any": ("object", 1)}] for state in states)


def test_columns_that_no_fold_reads_are_not_needed():
    columns = ["a", "k", "v", "w"]
    total, count, latest = sparkckpt.sum_("v"), sparkckpt.count_(), sparkckpt.last_("a")
    assert needed_columns([total, latest, count], ["k"], columns) == ["a", "v"]
    assert needed_columns([count], ["k"], columns) == ["k"]
    assert needed_columns([count], ["upper(k)"], columns) == ["a"]

    class Weighted(Sum):
        def reduce(self, touched, column):
            return super().reduce(touched, pc.multiply(column, touched.rows["w"]))

    assert needed_columns([Weighted("v")], ["k"], columns) is None
