"""What a query leaves on disk: any Arrow reader and this package's own see exactly its state."""

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from pyspark.sql import SparkSession

from sparkckpt.format import StateFile, load_handle, read_state
from sparkckpt.keygroups import KeyGroupRange, range_of
from sparkckpt.storage import Storage
from tests.spark.test_provider_model import PREFIX, Walk
from tests.spark.totals import NO_INLINING, PARALLELISM, RunningTotals, Totals, totals_after

BATCHES = 7


@pytest.fixture(scope="module", params=[{}, NO_INLINING], ids=["inlined", "in files"])
def totals(
    request: pytest.FixtureRequest,
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
) -> RunningTotals:
    query = RunningTotals(spark, tmp_path_factory.mktemp("totals"), request.param)
    query.advance(BATCHES)
    return query


def totals_in(state: pa.Table) -> Totals:
    return {
        (row["key"]["k"], row["key"]["g"]): (row["value"]["count"], row["value"]["sum"])
        for row in state.to_pylist()
    }


def test_every_version_is_the_result_of_its_batch(totals: RunningTotals) -> None:
    for batch in range(BATCHES):
        states = [read_state(totals.state, handle) for handle in totals.handles(batch)]
        assert totals_in(pa.concat_tables(states)) == totals_after(batch + 1)
        assert sum(map(len, states)) == len(totals_after(batch + 1))


def test_versions_consist_of_all_kinds_of_files(totals: RunningTotals) -> None:
    refs = [ref for _, ref in totals.files()]
    deltas = [ref for ref in refs if not ref.base]
    assert deltas
    assert len(deltas) < BATCHES * PARALLELISM
    assert [ref.path for ref in refs if ref.base and not ref.path.endswith(".merge.arrow")] == []
    assert sum(ref.base for ref in refs) == PARALLELISM
    inlining = not totals.confs
    assert all(ref.inlined == inlining for ref in deltas)
    assert all(ref.path.endswith(".handle" if inlining else ".delta.arrow") for ref in deltas)


def test_handles_form_a_chain(totals: RunningTotals) -> None:
    previous: list[str | None] = [None] * PARALLELISM
    for batch in range(BATCHES):
        handles = totals.handles(batch)
        assert [handle.base_id for handle in handles] == previous
        previous = [handle.id for handle in handles]
        own = [
            f for h in handles for f in h.files_of() if (f.level, f.last_version) == (0, batch + 1)
        ]
        assert sum(f.rows for f in own) == sum(h.changed_rows for h in handles)


def test_key_groups_are_those_of_spark(totals: RunningTotals, spark: SparkSession) -> None:
    found: list[tuple[int, str | None, int]] = []
    for handle, ref in totals.files():
        assert handle.key_groups == range_of(handle.partition, PARALLELISM, 32768)
        rows = StateFile.open(totals.state, ref).read().to_pylist()
        key_groups = [row["kg"] for row in rows]
        assert key_groups == sorted(key_groups)
        assert all(key_group in handle.key_groups for key_group in key_groups)
        found += [(row["kg"], row["key"]["k"], row["key"]["g"]) for row in rows]
    others = spark.createDataFrame(found, "kg int, k string, g long").where(
        "kg != pmod(hash(k, g), 32768)"
    )
    assert others.collect() == []


def test_ranged_reads_are_filtered_full_reads(totals: RunningTotals) -> None:
    several = 0
    for handle, ref in totals.files():
        file = StateFile.open(totals.state, ref)
        whole = file.read()
        several += len(file.batches) > 1
        for n in (2, 5):
            for partition in range(n):
                wanted = range_of(partition, n, handle.max_parallelism)
                inside = [key_group in wanted for key_group in whole["kg"].to_pylist()]
                assert file.read(wanted) == whole.filter(inside)
    assert several, "no file has more than one record batch: nothing could be skipped"


def test_rescaled_reads_add_up(totals: RunningTotals) -> None:
    """The key groups of any other parallelism, gathered from all handles, are the whole state."""
    state: Totals = {}
    for partition in range(5):
        wanted = range_of(partition, 5, 32768)
        parts = [read_state(totals.state, h, key_groups=wanted) for h in totals.handles()]
        found = totals_in(pa.concat_tables(parts))
        assert not state.keys() & found.keys()
        state |= found
    assert state == totals_after(totals.batches)


def test_other_arrow_readers_see_the_same_rows(totals: RunningTotals) -> None:
    read = 0
    for _, ref in totals.files():
        if ref.inlined:
            continue
        path = totals.checkpoint / "state" / ref.path
        rows = StateFile.open(totals.state, ref).read()
        assert pa.ipc.open_file(path).read_all() == rows
        assert pl.read_ipc(path).to_dicts() == rows.to_pylist()
        dataset = ds.dataset(path, format="ipc")
        with duckdb.connect() as connection:
            found = connection.register("rows", dataset).sql("select * from rows").fetchall()
            sums = connection.sql("select kg, sum(value.sum) from rows where op = 0 group by kg")
            assert sorted(found, key=repr) == sorted(map(tuple_of, rows.to_pylist()), key=repr)
            assert dict(sums.fetchall()) == sums_by_key_group(rows)
        read += 1
    assert read


def tuple_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return row["kg"], row["op"], row["key"], row["value"]


def sums_by_key_group(rows: pa.Table) -> dict[int, int]:
    sums: dict[int, int] = {}
    for row in rows.to_pylist():
        if row["op"] == 0:
            sums[row["kg"]] = sums.get(row["kg"], 0) + row["value"]["sum"]
    return sums


def test_the_backend_file_says_how_many_key_groups(totals: RunningTotals) -> None:
    backend = json.loads((totals.checkpoint / "_sparkckpt" / "backend.json").read_text())
    assert backend == {"formatVersion": 1, "maxParallelism": 32768}


def test_the_range_of_a_handle_covers_its_files(totals: RunningTotals) -> None:
    for handle, ref in totals.files():
        assert handle.key_groups.clip_to(ref.key_groups) == ref.key_groups
    whole = KeyGroupRange(0, 32767)
    assert all(handle.keyed and whole.overlaps(handle.key_groups) for handle in totals.handles())


@pytest.mark.parametrize("inline", ["0", "20k"])
def test_lists_and_deletes_are_those_of_the_model(
    spark: SparkSession, tmp_path: Path, inline: str
) -> None:
    """Puts, deletes, appends and empty lists, merged or not, over a random walk of versions."""
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    confs = {"inlineThreshold": inline, "merge.maxDeltas": "3", "recordBatchRows": "8"}
    walk = Walk(spark, tmp_path, seed, {PREFIX + name: value for name, value in confs.items()})
    for _ in range(25):
        walk.step()
    walk.harness.close()
    for version, checkpoint_id, model in walk.history:
        if checkpoint_id is None:
            continue
        handle = load_handle(Storage.at(tmp_path), 0, 0, version, checkpoint_id)
        for family in handle.families:
            state = read_state(Storage.at(tmp_path), handle, family.family)
            assert lists_in(state) == model[family.family]
        families = model.keys() - {"operator"}
        without_files = families - {family.family for family in handle.families}
        assert not any(model[family] for family in without_files)


def lists_in(state: pa.Table) -> dict[int, list[str]]:
    lists: dict[int, list[str]] = {}
    for row in state.to_pylist():
        values = lists.setdefault(row["key"]["k"], [])
        values += [] if row["value"] is None else [row["value"]["v"]]
    return lists
