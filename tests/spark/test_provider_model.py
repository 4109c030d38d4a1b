"""The provider against a plain dictionary, over hundreds of versions.

A seeded random walk commits, aborts, loses attempts whose files stay behind as orphans, goes back
to older versions, restarts the provider so that state comes from files alone, lets merges finish at
random moments, and cleans up. After every step the rows read back must be those of the model. So
must be the operator state, which is replaced, carried on, or removed.
"""

import base64
import json
import os
import random
import resource
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from py4j.java_collections import MapConverter

from sparkckpt.format.operatorstate import OperatorStateItems, write_blob

PREFIX = "spark.sql.streaming.stateStore.sparkckpt."
STEPS = int(os.environ.get("SPARKCKPT_MODEL_STEPS", "150"))
RETAINED = 12
ENGINES = {
    "rocksdb": {PREFIX + "engine": "rocksdb"},
    "memory": {PREFIX + "engine": "memory"},
    "spilling": {PREFIX + "engine": "auto", PREFIX + "memory.limit": "24k"},
}
Model = dict[str, dict[int, list[str]]]


def empty() -> Model:
    return {"single": {}, "multi": {}, "ordered": {}, "operator": {}}


def encoded(*states: OperatorStateItems) -> str:
    return base64.b64encode(write_blob(states)).decode()


def new_harness(spark: Any, *arguments: Any) -> Any:
    """Py4J itself sees only Spark's own class path, not the jars of the application."""
    utils = spark._jvm.org.apache.spark.util.Utils
    harness = utils.classForName("org.apache.spark.sql.sparkckpt.ProviderHarness", True, False)
    gateway = spark.sparkContext._gateway
    array = gateway.new_array(gateway.jvm.java.lang.Object, len(arguments))
    for i, argument in enumerate(arguments):
        array[i] = (
            MapConverter().convert(argument, gateway._gateway_client)
            if isinstance(argument, dict)
            else argument
        )
    return harness.getConstructors()[0].newInstance(array)


class Walk:
    """The harness, the model of every committed version, and the random choices."""

    def __init__(
        self,
        spark: Any,
        directory: Path,
        seed: int,
        confs: dict[str, str],
        value_length: int = 8,
    ) -> None:
        self.random = random.Random(seed)
        self.value_length = value_length
        self.harness = new_harness(spark, spark.sparkContext._jsc, directory.as_uri(), confs)
        self.harness.restart()
        self.history: list[tuple[int, str | None, Model]] = [(0, None, empty())]

    def operations(self, model: Model) -> list[list[Any]]:
        """Random operations, applied to the model as they are made up."""
        made = []
        for _ in range(self.random.choice([0, 1, 3, 20, 60])):
            family = self.random.choice(["single", "multi", "ordered"])
            key = self.random.randrange(40)
            values = [self.value() for _ in range(self.random.choice([0, 1, 2, 3]))]
            rows = model[family]
            names = ["put", "remove"] + {
                "multi": ["putList", "merge", "mergeList"],
                "ordered": ["deleteRange", "turn"],
                "single": ["turn"],
            }[family]
            name = self.random.choice(names)
            if name in ("put", "merge"):
                values = [self.value()]
            if name in ("put", "putList"):
                rows[key] = list(values)
            elif name in ("merge", "mergeList") and values:
                rows[key] = rows.get(key, []) + values
            elif name == "remove":
                rows.pop(key, None)
                values = []
            elif name == "deleteRange":
                end = key + self.random.randrange(1, 10)
                for k in [k for k in rows if key <= k < end]:
                    del rows[k]
                made.append([name, family, key, end])
                continue
            elif name == "turn":
                divisor = self.random.choice([7, 40])
                model[family] = {k: [v[::-1]] for k, (v,) in rows.items() if k % divisor}
                made.append([name, family, divisor])
                continue
            made.append([name, family, key, *values])
        if self.random.random() < 0.3:
            made.append(["setOperatorState", "", 0, self.operator_state(model)])
        return made

    def operator_state(self, model: Model) -> str:
        """New operator state, the same as before, or none."""
        if model["operator"] and self.random.random() < 0.2:
            return model["operator"][0][0]
        if self.random.random() < 0.2:
            model["operator"] = {}
            return encoded()
        items = [self.value().encode() for _ in range(self.random.choice([0, 1, 3, 200]))]
        text = encoded(
            OperatorStateItems("offsets", "split", tuple(items)),
            OperatorStateItems("rules", "broadcast", (b"",)),
        )
        model["operator"] = {0: [text]}
        return text

    def value(self) -> str:
        return f"{self.random.random():.6f}".ljust(self.value_length, "-")

    def step(self) -> None:
        if self.random.random() < 0.08 and len(self.history) > 3:
            del self.history[-self.random.randrange(1, 3) :]  # Spark goes back to an older version
        version, checkpoint, model = self.history[-1]
        fate = self.random.choices(["commit", "lost", "abort"], [8, 1, 1])[0]
        changed = deepcopy(model)
        operations = json.dumps(self.operations(changed))
        end = "abort" if fate == "abort" else "commit"
        new = self.harness.run(version, checkpoint, self.random.random() < 0.3, operations, end)
        if fate == "commit":
            self.history.append((version + 1, new, changed))
            del self.history[: -RETAINED // 2]  # what Spark may still go back to
        if self.random.random() < 0.2:
            self.harness.maintain()
        if self.random.random() < 0.1:
            self.harness.restart()

    def check(self, at: int = -1) -> None:
        version, checkpoint, model = self.history[at]
        rows = json.loads(self.harness.dump(version, checkpoint))
        for family, expected in model.items():
            found = {key: values for key, *values in rows[family]}
            # Spark's multi-value scan does not show a key whose list is empty.
            assert found == {k: v for k, v in expected.items() if v}, (family, version)


@pytest.mark.parametrize("engine", ENGINES)
def test_spilled_changes_match_the_model(spark: Any, tmp_path: Path, engine: str) -> None:
    walk = Walk(spark, tmp_path, seed=14, confs=ENGINES[engine])
    walk.harness.spillEvery(7)
    try:
        for _ in range(25):
            walk.step()
            walk.check()
        assert walk.harness.spilledBytes() > 0
    finally:
        walk.harness.spillEvery((1 << 31) - 1)
        walk.harness.close()


def test_changes_make_room_for_those_of_another_family(spark: Any, tmp_path: Path) -> None:
    """They hold all that the task has been left by someone who keeps it."""
    confs = {**ENGINES["rocksdb"], PREFIX + "coordinator.enabled": "false"}
    harness = new_harness(spark, spark.sparkContext._jsc, tmp_path.as_uri(), confs)
    harness.restart()
    expected = {
        "single": [[k, "x" * 10_000] for k in range(500)],
        "multi": [[0, "a"]],
        "ordered": [[0, "b"]],
        "operator": [],
    }
    puts = [["put", "single", *row] for row in expected["single"]]
    others = [["putList", "multi", 0, "a"], ["put", "ordered", 0, "b"]]
    try:
        operations = json.dumps([*puts, ["hoard", "", 0], *others])
        first = harness.run(0, None, False, operations, "commit")
        assert harness.spilledBytes() > 0
        found = json.loads(harness.dump(1, first))
        assert {family: sorted(rows) for family, rows in found.items()} == expected
    finally:
        harness.close()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("inline", ["0", "20k"])
def test_random_walk_matches_the_model(
    spark: Any, tmp_path: Path, inline: str, engine: str
) -> None:
    seed = int(os.environ.get("SPARKCKPT_MODEL_SEED", random.randrange(1 << 30)))
    print(f"SPARKCKPT_MODEL_SEED={seed}")
    confs = {
        "spark.sql.streaming.minBatchesToRetain": str(RETAINED),
        **ENGINES[engine],
        PREFIX + "inlineThreshold": inline,
        PREFIX + "merge.maxDeltas": "3",
        PREFIX + "recordBatchRows": "8",
        PREFIX + "coordinator.enabled": "false",
    }
    walk = Walk(spark, tmp_path, seed, confs)
    try:
        for n in range(STEPS):
            walk.step()
            if n % 3 == 0:
                walk.check()
        walk.harness.restart()
        for at in range(max(-5, -len(walk.history)), 0):
            walk.check(at)
    finally:
        walk.harness.close()
    versions = [int(f.name.partition("_")[0]) for f in tmp_path.glob("**/*.merge.arrow")]
    assert versions, "no merge happened: the walk did not test what it should"
    assert min(versions) > 1, "nothing was cleaned up"


def test_memory_is_given_back(spark: Any, tmp_path: Path) -> None:
    """Values of some size, so that pages fill up and what is dead in them outweighs the rest."""
    seed = int(os.environ.get("SPARKCKPT_MODEL_SEED", random.randrange(1 << 30)))
    print(f"SPARKCKPT_MODEL_SEED={seed}")
    confs = {PREFIX + "engine": "memory", PREFIX + "coordinator.enabled": "false"}
    walk = Walk(spark, tmp_path, seed, confs, value_length=3000)
    try:
        for _ in range(60):
            walk.step()
            walk.check()
        # Half of what is held may be dead, besides a page for each of four families.
        held, live = (
            walk.harness.metric(f"sparkckptMemory{kind}Bytes") for kind in ("Page", "Record")
        )
        assert held <= 2 * live + 4 * 256 * 1024
    finally:
        walk.harness.close()


def test_a_batch_that_is_repeated_is_taken_back_in_memory(spark: Any, tmp_path: Path) -> None:
    """Nothing is read from files for it: they are gone."""
    confs = {PREFIX + "engine": "memory", PREFIX + "coordinator.enabled": "false"}
    harness = new_harness(spark, spark.sparkContext._jsc, tmp_path.as_uri(), confs)
    harness.restart()
    blob = encoded(OperatorStateItems("offsets", "split", (b"1", b"2")))

    def run(
        version: int, checkpoint: str | None, *operations: list[Any], end: str = "commit"
    ) -> Any:
        return harness.run(version, checkpoint, False, json.dumps(operations), end)

    def rows(version: int, checkpoint: str) -> Any:
        return json.loads(harness.dump(version, checkpoint))

    try:
        first = run(
            *(0, None, ["put", "single", 1, "a"], ["putList", "multi", 1, "a", "b"]),
            *(["put", "ordered", 1, "a"], ["put", "ordered", 2, "b"]),
            ["setOperatorState", "", 0, blob],
        )
        expected = rows(1, first)
        assert expected == {
            "single": [[1, "a"]],
            "multi": [[1, "a", "b"]],
            "ordered": [[1, "a"], [2, "b"]],
            "operator": [[0, blob]],
        }
        changes: list[list[Any]] = [
            *(["put", "single", 1, "x"], ["put", "single", 2, "x"], ["merge", "multi", 1, "c"]),
            *(
                ["putList", "multi", 2],
                ["deleteRange", "ordered", 1, 3],
                ["put", "ordered", 4, "x"],
                ["setOperatorState", "", 0, encoded()],
            ),
        ]
        run(1, first, *changes)
        (tmp_path / "0").rename(tmp_path / "gone")
        assert rows(1, first) == expected
        run(1, first, *changes, end="abort")
        assert rows(1, first) == expected
        run(1, first, ["remove", "single", 1], ["remove", "multi", 1], end="abort")
        assert rows(1, first) == expected
    finally:
        harness.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_load_that_fails_halfway_leaves_nothing_behind(
    spark: Any, tmp_path: Path, engine: str
) -> None:
    confs = {
        **ENGINES[engine],
        PREFIX + "inlineThreshold": "0",
        PREFIX + "recordBatchRows": "8",
        PREFIX + "coordinator.enabled": "false",
    }
    harness = new_harness(spark, spark.sparkContext._jsc, tmp_path.as_uri(), confs)
    harness.restart()
    try:
        puts = json.dumps([["put", "single", k, str(k)] for k in range(64)])
        checkpoint = harness.run(0, None, False, puts, "commit")
        harness.restart()
        (file,) = tmp_path.glob("**/*single*.arrow")
        for checksum in tmp_path.glob("**/.*.crc"):
            checksum.unlink()  # Hadoop's, which says that the whole file is damaged
        intact = file.read_bytes()
        damaged = bytearray(intact)
        damaged[len(intact) // 2] ^= 0xFF
        file.write_bytes(damaged)
        with pytest.raises(Exception, match="SPARKCKPT_CORRUPT"):
            harness.run(1, checkpoint, False, "[]", "commit")
        file.write_bytes(intact)
        removal = json.dumps([["remove", "single", k] for k in range(32)])
        checkpoint = harness.run(1, checkpoint, False, removal, "commit")
        rows = json.loads(harness.dump(2, checkpoint))["single"]
        assert sorted(rows) == [[k, str(k)] for k in range(32, 64)]
    finally:
        harness.close()


def test_a_load_that_finds_no_memory_does_not_blame_the_file(spark: Any, tmp_path: Path) -> None:
    confs = {PREFIX + "engine": "memory", PREFIX + "coordinator.enabled": "false"}
    harness = new_harness(spark, spark.sparkContext._jsc, tmp_path.as_uri(), confs)
    harness.restart()
    arrow = spark._jvm.org.apache.spark.sql.util.ArrowUtils.rootAllocator()
    limit = arrow.getLimit()
    try:
        puts = json.dumps([["put", "single", k, str(k)] for k in range(64)])
        checkpoint = harness.run(0, None, False, puts, "commit")
        harness.restart()
        arrow.setLimit(arrow.getAllocatedMemory() + 1)
        with pytest.raises(Exception, match="SPARKCKPT_NO_MEMORY_TO_READ"):
            harness.dump(1, checkpoint)
        arrow.setLimit(limit)
        assert len(json.loads(harness.dump(1, checkpoint))["single"]) == 64
    finally:
        arrow.setLimit(limit)
        harness.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_large_load_matches_what_was_written(spark: Any, tmp_path: Path, engine: str) -> None:
    """So much that RocksDB gets it as files: several of one family, and keys on both sides of zero,
    which in the order of their bytes agree in more than the eight that are sorted by first."""
    confs = {**ENGINES[engine], PREFIX + "coordinator.enabled": "false"}
    harness = new_harness(spark, spark.sparkContext._jsc, tmp_path.as_uri(), confs)
    rows = {
        "single": {k: f"{k}".ljust(230_000, "-") for k in range(150)},
        "ordered": {k: f"{k}".ljust(150, "-") for k in range(-5_000, 5_000)},
    }

    def run(version: int, checkpoint: str | None, *operations: list[Any]) -> Any:
        harness.restart()
        return harness.run(version, checkpoint, False, json.dumps(operations), "commit")

    try:
        puts = [["put", name, k, v] for name, family in rows.items() for k, v in family.items()]
        checkpoint = run(0, None, *puts)
        checkpoint = run(
            *(1, checkpoint, ["put", "single", 7, "x"], ["remove", "single", 8]),
            *(["put", "ordered", -7, "x"], ["deleteRange", "ordered", 10, 20]),
        )
        if engine == "rocksdb":
            assert harness.metric("rocksdbTotalBytesWritten") < 1 << 20, "not as files"
        rows["single"][7] = rows["ordered"][-7] = "x"
        del rows["single"][8]
        for k in range(10, 20):
            del rows["ordered"][k]
        found = json.loads(harness.dump(2, checkpoint))
        assert dict(found["single"]) == rows["single"]
        assert found["ordered"] == sorted(map(list, rows["ordered"].items()))
    finally:
        harness.close()


@pytest.mark.parametrize("sizes", [(17, 19), (19, 17)])
def test_a_load_takes_a_row_larger_than_all_before_it(
    spark: Any, tmp_path: Path, sizes: tuple[int, int]
) -> None:
    """More than a file for RocksDB takes; the key groups say which of the two comes first."""
    confs = {**ENGINES["rocksdb"], PREFIX + "coordinator.enabled": "false"}
    harness = new_harness(spark, spark.sparkContext._jsc, tmp_path.as_uri(), confs)
    harness.restart()
    rows = [[k, str(k) * (size * 1_000_000)] for k, size in enumerate(sizes)]
    try:
        puts = json.dumps([["put", "single", *row] for row in rows])
        checkpoint = harness.run(0, None, False, puts, "commit")
        harness.restart()
        assert sorted(json.loads(harness.dump(1, checkpoint))["single"]) == rows
    finally:
        harness.close()


def test_too_much_for_the_memory_is_refused_and_loses_nothing(spark: Any, tmp_path: Path) -> None:
    confs = {
        PREFIX + "engine": "memory",
        PREFIX + "memory.limit": "32m",
        PREFIX + "coordinator.enabled": "false",
    }
    harness = new_harness(spark, spark.sparkContext._jsc, tmp_path.as_uri(), confs)
    harness.restart()
    try:
        first = harness.run(0, None, False, json.dumps([["put", "single", 1, "a"]]), "commit")
        large = [["put", "single", k, "x" * 1_000_000] for k in range(40)]
        with pytest.raises(Exception, match="SPARKCKPT_MEMORY_EXCEEDED") as refused:
            harness.run(1, first, False, json.dumps(large), "commit")
        assert PREFIX + "engine=auto" in str(refused.value)
        harness.run(1, first, False, json.dumps([["put", "single", 2, "b"]]), "commit")
        assert json.loads(harness.dump(1, first))["single"] == [[1, "a"]]
    finally:
        harness.close()


def test_a_batch_that_outgrows_memory_goes_on_in_rocksdb(spark: Any, tmp_path: Path) -> None:
    """In the middle of whatever it does, and without counting a key twice or not at all."""
    confs = {PREFIX + "memory.limit": "1m", PREFIX + "coordinator.enabled": "false"}
    harness = new_harness(spark, spark.sparkContext._jsc, tmp_path.as_uri(), confs)
    x = "x" * 300_000

    def rows(version: int, checkpoint: str) -> Any:
        found = json.loads(harness.dump(version, checkpoint))
        return {family: sorted(of) for family, of in found.items()}

    growing: list[list[list[Any]]] = [
        [["put", "single", k, x] for k in range(1, 6)],
        [["put", "single", 1, x + "y"]] * 6,
        [["putList", "multi", 1, x, x, x, x, x]],
        [["putList", "multi", 1, "old"], ["mergeList", "multi", 1, x, x, x, x, x]],
        [["merge", "multi", 1, x]] * 6,
        [["put", "ordered", k, x] for k in range(1, 6)],
    ]
    try:
        for operations in growing:
            harness.restart()
            few = [["put", "single", 0, "a"], ["put", "single", 9, "b"], ["remove", "single", 9]]
            few += [["putList", "multi", 0], ["put", "ordered", 0, "a"]]
            first = harness.run(0, None, False, json.dumps(few), "commit")
            assert (harness.metric("sparkckptSpilledStores"), harness.keys()) == (0, 3)

            second = harness.run(1, first, False, json.dumps(operations), "commit")
            grown = rows(2, second)
            keys = {(op[1], op[2]) for op in operations} | {("single", 0), ("ordered", 0)}
            assert (harness.metric("sparkckptSpilledStores"), harness.keys()) == (1, len(keys) + 1)
            assert sum(len(grown[family]) for family in ("single", "multi", "ordered")) == len(keys)

            harness.restart()
            is_too_large = len(json.dumps(grown)) > 1 << 20
            empty_list = json.dumps([["remove", "multi", 0]])
            third = harness.run(2, second, False, empty_list, "commit")
            spilled = harness.metric("sparkckptSpilledStores")
            assert (spilled, harness.keys()) == (is_too_large, len(keys))
            assert rows(3, third) == grown
    finally:
        harness.close()


@pytest.mark.skipif(sys.platform != "linux", reason="it limits the files of another process")
def test_a_move_that_fails_for_the_disk_says_so_and_loses_nothing(
    spark: Any, tmp_path: Path
) -> None:
    """RocksDB is ended with it, and does not wait for the store that was to be moved."""
    confs = {
        PREFIX + "memory.limit": "6m",
        PREFIX + "coordinator.enabled": "false",
        "spark.sql.streaming.stateStore.rocksdb.lockAcquireTimeoutMs": "1000",
    }
    harness = new_harness(spark, spark.sparkContext._jsc, tmp_path.as_uri(), confs)
    harness.restart()
    jvm = spark._jvm.java.lang.ProcessHandle.current().pid()
    soft, hard = resource.prlimit(jvm, resource.RLIMIT_FSIZE)
    pseudo_random = random.Random(7)

    def puts(keys: range) -> str:
        return json.dumps(
            [["put", "single", k, pseudo_random.randbytes(100_000).hex()] for k in keys]
        )

    def rows(checkpoint: str) -> Any:
        return sorted(json.loads(harness.dump(1, checkpoint))["single"])

    try:
        harness.run(0, None, False, puts(range(50)), "commit")  # RocksDB's library is unpacked
        assert harness.metric("sparkckptSpilledStores") == 1
        harness.restart()
        first = harness.run(0, None, False, puts(range(20)), "commit")
        before = rows(first)
        resource.prlimit(jvm, resource.RLIMIT_FSIZE, (1 << 20, hard))
        with pytest.raises(Exception, match="File too large"):
            harness.run(1, first, False, puts(range(20, 50)), "commit")
        resource.prlimit(jvm, resource.RLIMIT_FSIZE, (soft, hard))
        assert rows(first) == before
        harness.run(1, first, False, puts(range(20, 50)), "commit")
        assert harness.metric("sparkckptSpilledStores") == 1
    finally:
        resource.prlimit(jvm, resource.RLIMIT_FSIZE, (soft, hard))
        harness.close()


def test_state_in_memory_is_accounted_for_by_spark(spark: Any, tmp_path: Path) -> None:
    """So cached data makes room for it; besides it there are blocks of a few kilobytes."""
    confs = {PREFIX + "coordinator.enabled": "false"}
    harness = new_harness(spark, spark.sparkContext._jsc, tmp_path.as_uri(), confs)
    harness.restart()
    before = harness.storageMemory()
    try:
        puts = json.dumps([["put", "single", k, "x" * 1000] for k in range(1000)])
        harness.run(0, None, False, puts, "commit")
        assert harness.storageMemory() - before >= 1_000_000
    finally:
        harness.close()
    assert harness.storageMemory() - before < 100_000


def test_a_store_that_is_loaded_anew_returns_to_memory(spark: Any, tmp_path: Path) -> None:
    confs = {PREFIX + "memory.limit": "1m", PREFIX + "coordinator.enabled": "false"}
    harness = new_harness(spark, spark.sparkContext._jsc, tmp_path.as_uri(), confs)
    harness.restart()
    little = json.dumps([["put", "single", 0, "a"]])
    much = json.dumps([["put", "single", k, "x" * 300_000] for k in range(1, 6)])
    try:
        first = harness.run(0, None, False, little, "commit")
        for _ in range(2):  # Spark goes back to the first version
            harness.run(1, first, False, much, "commit")
            assert harness.metric("sparkckptSpilledStores") == 1
            second = harness.run(1, first, False, little, "commit")
            assert (harness.metric("sparkckptSpilledStores"), harness.keys()) == (0, 1)
            assert json.loads(harness.dump(2, second))["single"] == [[0, "a"]]
    finally:
        harness.close()


def test_a_restarted_query_has_the_memory_of_its_former_run(spark: Any, tmp_path: Path) -> None:
    """Spark unloads the provider of that run much later, and until then it still works."""
    confs = {PREFIX + "memory.limit": "4m", PREFIX + "coordinator.enabled": "false"}
    former, restarted = (
        new_harness(spark, spark.sparkContext._jsc, tmp_path.as_uri(), confs) for _ in range(2)
    )
    puts = json.dumps([["put", "single", k, "x" * 300_000] for k in range(10)])
    try:
        former.restart()
        first = former.run(0, None, False, puts, "commit")
        restarted.restart()
        restarted.run(1, first, False, json.dumps([["put", "single", 10, "x"]]), "commit")
        assert restarted.metric("sparkckptSpilledStores") == 0
        assert len(json.loads(former.dump(1, first))["single"]) == 10
    finally:
        former.close()
        restarted.close()


def test_state_leaves_alone_what_tasks_may_claim(spark: Any, tmp_path: Path) -> None:
    """Tasks can have cached blocks dropped to get at it, but not state."""
    confs = {PREFIX + "memory.limit": "1g", PREFIX + "coordinator.enabled": "false"}
    harness = new_harness(spark, spark.sparkContext._jsc, tmp_path.as_uri(), confs)
    executor_conf = spark.sparkContext._jsc.sc().conf()
    fraction = "spark.memory.storageFraction"
    puts = json.dumps([["put", "single", k, "x" * 1_000_000] for k in range(20)])
    try:
        for value, moved in [("0.01", 1), ("0.5", 0)]:  # of about 1 GiB
            executor_conf.set(fraction, value)
            harness.restart()
            harness.run(0, None, False, puts, "commit")
            assert harness.metric("sparkckptSpilledStores") == moved
    finally:
        harness.close()
        executor_conf.remove(fraction)


def simulate_merges(
    harness: Any, commits: list[int], state: int, max_deltas: int = 16
) -> tuple[int, int]:
    """Bytes that merges write, and the most files a version has; a base weighs at most `state`."""
    files: list[tuple[int, int, bool]] = []
    written = most = 0
    for length in commits:
        files.append((length, 0, False))
        plan = harness.mergePlan(max_deltas, 1.0, json.dumps([[*map(int, file)] for file in files]))
        if plan is not None:
            first, until = json.loads(plan)
            merged = files[first:until]
            size = min(state, sum(file[0] for file in merged))
            files[first:until] = [(size, max(file[1] for file in merged) + 1, first == 0)]
            written += size
        most = max(most, len(files))
    return written, most


def test_merges_are_bounded_in_bytes_and_files(spark: Any, tmp_path: Path) -> None:
    harness = new_harness(spark, spark.sparkContext._jsc, tmp_path.as_uri(), {})
    filled_then_trickling = [250_000] * 4 + [2_500] * 96
    written, most = simulate_merges(harness, filled_then_trickling, state=1_000_000)
    assert written < 2 * sum(filled_then_trickling[4:]), (
        "a few changes must not have the whole state rewritten"
    )
    assert most <= 40
    equal = [1_000] * 400
    written, most = simulate_merges(harness, equal, state=20_000)
    assert written < 3 * sum(equal)
    assert most <= 40
    growing = [1_000] * 400
    written, most = simulate_merges(harness, growing, state=400_000)
    assert written < 8 * sum(growing)
    assert most <= 60


@pytest.mark.parametrize("coordinator", ["true", "false"])
def test_a_coordinator_alone_deletes(spark: Any, tmp_path: Path, coordinator: str) -> None:
    """It knows what its checkpoints consist of; Spark only which batches it may go back to."""
    confs = {
        "spark.sql.streaming.minBatchesToRetain": "2",
        PREFIX + "engine": "memory",
        PREFIX + "inlineThreshold": "0",
        PREFIX + "coordinator.enabled": coordinator,
    }
    harness = new_harness(spark, spark.sparkContext._jsc, tmp_path.as_uri(), confs)
    harness.restart()
    try:
        checkpoint = None
        for version in range(6):
            put = json.dumps([["put", "single", 1, str(version)]])
            checkpoint = harness.run(version, checkpoint, False, put, "commit")
        committed = {path.name for path in tmp_path.glob("0/0/[!.]*")}
        harness.maintain()
        left = {path.name for path in tmp_path.glob("0/0/[!.]*")}
    finally:
        harness.close()
    assert (left >= committed) is (coordinator == "true")
