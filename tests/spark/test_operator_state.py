"""Operator state in the provider: committed, carried on, and dealt out to other partitions.

Each partition is driven through the provider harness, in real tasks. What Spark's commit log would
name are the ids that the harness gives, or a manifest made of their handles, as a rescale makes it.
"""

import base64
import json
import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sparkckpt.format import (
    CheckpointMetadata,
    CheckpointStatistics,
    OperatorState,
    OperatorStateItems,
    OperatorSubtaskState,
    StateHandle,
    load_handle,
    load_operator_state,
    redistribute,
)
from sparkckpt.format.manifest import new_manifest_id, store_manifest
from sparkckpt.format.operatorstate import handle_of, read_blob, write_blob
from sparkckpt.storage import Storage
from tests.spark.test_provider_model import PREFIX, encoded, new_harness

SEED = int(os.environ.get("SPARKCKPT_TEST_SEED", random.randrange(1 << 30)))
MAX_BYTES = 4096
CONFS = {
    "spark.sql.streaming.minBatchesToRetain": "2",
    PREFIX + "engine": "memory",
    PREFIX + "operatorState.maxBytes": str(MAX_BYTES),
    PREFIX + "coordinator.enabled": "false",
}
States = tuple[OperatorStateItems, ...]


class Partitions:
    """The stores of one operator, each of whose versions is committed by all partitions."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self.storage = Storage.at(directory)
        self.harness = new_harness(
            spark, spark.sparkContext._jsc, (directory / "state").as_uri(), CONFS
        )
        self.version = 0
        self.ids: list[str | None] = []

    @property
    def parallelism(self) -> int:
        return len(self.ids)

    def start(self, parallelism: int) -> None:
        self.ids = [None] * parallelism

    def run(self, partition: int, *sets: States, end: str = "commit", upgrade: bool = False) -> Any:
        """A task of the next batch; the id that it commits."""
        self.harness.restartAs(partition, self.parallelism)
        operations = [["setOperatorState", "", 0, encoded(*states)] for states in sets]
        return self.harness.run(
            self.version, self.ids[partition], upgrade, json.dumps(operations), end
        )

    def loaded(self, partition: int) -> States:
        """What a task of the next batch is given."""
        self.harness.restartAs(partition, self.parallelism)
        rows = json.loads(self.harness.dump(self.version, self.ids[partition]))["operator"]
        return read_blob(base64.b64decode(rows[0][1]), "x") if rows else ()

    def commit(self, ids: Sequence[str]) -> None:
        self.ids = list(ids)
        self.version += 1

    def handles(self) -> list[StateHandle]:
        state = self.storage.below("state")
        return [
            load_handle(state, 0, partition, self.version, store_id or "")
            for partition, store_id in enumerate(self.ids)
        ]

    def written(self) -> list[States]:
        """The operator state of the last version, as its handles have it."""
        state = self.storage.below("state")
        return [
            load_operator_state(state, handle.operator_state) if handle.operator_state else ()
            for handle in self.handles()
        ]

    def rescale(self, parallelism: int, handles: Sequence[StateHandle] | None = None) -> None:
        handles = handles or self.handles()
        subtasks = tuple(OperatorSubtaskState(h.partition, (h,)) for h in handles)
        like = handles[0]
        operator = OperatorState(
            0, like.operator_name, len(handles), like.max_parallelism, True, subtasks
        )
        manifest_id = new_manifest_id()
        metadata = CheckpointMetadata(
            1, self.version - 1, "query", 0, (operator,), (), CheckpointStatistics()
        )
        store_manifest(self.storage, manifest_id, metadata)
        self.ids = [manifest_id] * parallelism


@pytest.fixture
def partitions(spark: SparkSession, tmp_path: Path) -> Iterator[Partitions]:
    partitions = Partitions(spark, tmp_path)
    yield partitions
    partitions.harness.close()


def split(*items: bytes, name: str = "offsets") -> OperatorStateItems:
    return OperatorStateItems(name, "split", items)


def all_items(states: Sequence[States], name: str) -> Counter[bytes]:
    return Counter(i for each in states for s in each if s.name == name for i in s.items)


def snapshots(draw: random.Random, partition: int, version: int) -> States:
    """What a processor might write: each item names its partition, version and number."""

    def items(most: int) -> tuple[bytes, ...]:
        return tuple(b"%d.%d.%d" % (partition, version, n) for n in range(draw.randint(0, most)))

    states = [
        split(*items(7)),
        OperatorStateItems("seen", "union", items(3)),
        OperatorStateItems("rules", "broadcast", (b"", b"rule %d" % version)),
    ]
    return tuple(draw.sample(states, draw.randint(1, 3)))


@pytest.mark.parametrize("chain", [(3, 5, 2), (2, 2, 1)], ids=str)
def test_partitions_get_what_python_says_they_get(
    partitions: Partitions, chain: Sequence[int]
) -> None:
    """Through retries, aborts and batches that leave it alone, along a chain of rescales."""
    print(f"SPARKCKPT_TEST_SEED={SEED}")
    draw = random.Random(SEED)
    partitions.start(chain[0])
    expected: list[States] = [()] * chain[0]
    for parallelism in chain:
        if partitions.version:
            partitions.rescale(parallelism)
            expected = list(redistribute(expected, parallelism))
        for _ in range(1 if parallelism == 5 else 2):
            ids = []
            for partition in range(parallelism):
                given = expected[partition]
                if draw.random() < 0.3:
                    partitions.run(partition, snapshots(draw, partition, 99), end="abort")
                if draw.random() < 0.3:
                    partitions.run(partition, snapshots(draw, partition, 98))  # its commit is lost
                assert partitions.loaded(partition) == tuple(
                    replace(state, inherited=False) for state in given
                )
                new = snapshots(draw, partition, partitions.version)
                kept = tuple(s for s in given if s.name not in {state.name for state in new})
                new = draw.choice([None, new, given, new + kept])
                upgrade = draw.random() < 0.3
                ids.append(partitions.run(partition, *([new] if new else []), upgrade=upgrade))
                if new:
                    expected[partition] = tuple(
                        replace(state, inherited=replace(state, inherited=True) in given)
                        for state in new
                    )
            partitions.commit(ids)
            assert partitions.written() == expected


def test_split_items_are_counted_along_3_5_2(partitions: Partitions) -> None:
    """Nobody sets anything in between: what is carried on is what was dealt out."""
    partitions.start(3)
    sets = [(split(*(b"%d.%d" % (p, i) for i in range(4 * p))),) for p in range(3)]
    partitions.commit([partitions.run(p, states) for p, states in enumerate(sets)])
    items = all_items(partitions.written(), "offsets")
    assert sum(items.values()) == 12 and max(items.values()) == 1
    for parallelism, counts in ((5, [3, 3, 2, 2, 2]), (2, [6, 6])):
        partitions.rescale(parallelism)
        partitions.commit([partitions.run(p) for p in range(parallelism)])
        written = partitions.written()
        assert all_items(written, "offsets") == items
        assert [len(states[0].items) for states in written] == counts


def test_state_that_does_not_change_is_written_once(partitions: Partitions) -> None:
    """However old the handle is that it lies in: without a coordinator, executors clean up."""
    partitions.start(1)
    states = (split(b"a", b"b"),)
    partitions.commit([partitions.run(0, states)])
    (first,) = partitions.handles()
    assert first.operator_state is not None and first.operator_state.path == first.path
    assert partitions.harness.metric("sparkckptOperatorStateBytes") == len(write_blob(states))
    for _ in range(5):
        partitions.commit([partitions.run(0)])
        partitions.harness.maintain()
        (handle,) = partitions.handles()
        assert handle.operator_state == first.operator_state
        assert partitions.harness.metric("sparkckptOperatorStateBytes") == 0
    names = sorted(partitions.storage.below("state").find(""))
    assert [int(name.rpartition("/")[2].partition("_")[0]) for name in names] == [1, 3, 4, 5, 6]
    assert partitions.loaded(0) == states
    partitions.commit([partitions.run(0, (split(b"x"),), ())])
    assert partitions.written() == [()]
    assert partitions.handles()[0].format_version == 1


def test_a_restore_reads_it_from_elsewhere(partitions: Partitions, tmp_path: Path) -> None:
    """By URL, and from files of their own, as savepoints may have them."""
    handles = []
    partitions.start(2)
    partitions.commit([partitions.run(p) for p in range(2)])
    sets = [(split(b"a", b"b"),), (split(b"c"),)]
    for handle, states in zip(partitions.handles(), sets, strict=True):
        blob = write_blob(states)
        file = tmp_path / f"{handle.partition} elsewhere.operator-state"
        file.write_bytes(blob)
        url = f"file://{file}"
        handles.append(replace(handle, operator_state=handle_of(url, blob, states)))
    partitions.rescale(1, handles)
    assert partitions.loaded(0) == (split(b"a", b"b", b"c"),)
    partitions.commit([partitions.run(0)])
    for file in tmp_path.glob("*.operator-state"):
        file.unlink()
    assert partitions.loaded(0) == (split(b"a", b"b", b"c"),)


def test_too_much_is_refused_and_loses_nothing(partitions: Partitions) -> None:
    partitions.start(1)
    partitions.commit([partitions.run(0, (split(b"a"),))])
    with pytest.raises(Exception, match="SPARKCKPT_OPERATOR_STATE_TOO_LARGE") as refused:
        partitions.run(0, (split(b"x" * MAX_BYTES),))
    assert PREFIX + "operatorState.maxBytes" in str(refused.value)
    assert partitions.loaded(0) == (split(b"a"),)
    partitions.commit([partitions.run(0, (split(b"x" * (MAX_BYTES - 100)),))])


def test_what_is_no_operator_state_is_refused(partitions: Partitions) -> None:
    partitions.start(1)
    partitions.harness.restartAs(0, 1)
    whole = write_blob([split(b"a")])
    no_numbers = whole.replace(b"[1]", b"1.0")
    for blob in (b"", b"\x01\0\0\0\x02\0\0\0[]", whole[:-1], whole + b"x", no_numbers):
        operation = ["setOperatorState", "", 0, base64.b64encode(blob).decode()]
        with pytest.raises(Exception, match="SPARKCKPT_CORRUPT_OPERATOR_STATE"):
            partitions.harness.run(0, None, False, json.dumps([operation]), "commit")
    newer = base64.b64encode(b"\x02" + whole[1:]).decode()
    with pytest.raises(Exception, match="SPARKCKPT_NEWER_FORMAT"):
        partitions.harness.run(
            0, None, False, json.dumps([["setOperatorState", "", 0, newer]]), "commit"
        )


@pytest.mark.parametrize("rescaled", [False, True])
def test_damage_is_named_and_costs_nothing(partitions: Partitions, rescaled: bool) -> None:
    partitions.start(1)
    partitions.commit([partitions.run(0, (split(b"item"),))])
    (handle,) = partitions.handles()
    path = Path(partitions.storage.root) / "state" / handle.path
    intact = path.read_bytes()
    if rescaled:
        partitions.rescale(2)
    path.write_bytes(intact.replace(b"item", b"ITEM"))
    with pytest.raises(Exception, match=r"SPARKCKPT_CORRUPT_FILE.*operator state"):
        partitions.loaded(0)
    path.write_bytes(intact)
    assert partitions.loaded(0) == (split(b"item"),)


def test_different_modes_are_refused_by_name(partitions: Partitions) -> None:
    partitions.start(2)
    modes = ("split", "union")
    ids = [partitions.run(p, (OperatorStateItems("s", modes[p], ()),)) for p in range(2)]
    partitions.commit(ids)
    partitions.rescale(3)
    with pytest.raises(Exception, match=r"SPARKCKPT_OPERATOR_STATE_MODES.*'s'.*split and union"):
        partitions.loaded(0)
