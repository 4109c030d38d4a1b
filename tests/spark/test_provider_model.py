"""The provider against a plain dictionary, over hundreds of versions.

A seeded random walk commits, aborts, loses attempts whose files stay behind as orphans, goes back
to older versions, restarts the provider so that state comes from files alone, lets merges finish at
random moments, and cleans up. After every step the rows read back must be those of the model.
"""

import json
import os
import random
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from py4j.java_collections import MapConverter

PREFIX = "spark.sql.streaming.stateStore.sparkckpt."
STEPS = int(os.environ.get("SPARKCKPT_MODEL_STEPS", "150"))
RETAINED = 12
Model = dict[str, dict[int, list[str]]]


def empty() -> Model:
    return {"single": {}, "multi": {}, "ordered": {}}


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

    def __init__(self, spark: Any, directory: Path, seed: int, confs: dict[str, str]) -> None:
        self.random = random.Random(seed)
        self.harness = new_harness(spark, spark.sparkContext._jsc, directory.as_uri(), confs)
        self.harness.restart()
        self.history: list[tuple[int, str | None, Model]] = [(0, None, empty())]

    def operations(self, model: Model) -> list[list[Any]]:
        """Random operations, applied to the model as they are made up."""
        made = []
        for _ in range(self.random.choice([0, 1, 3, 20, 60])):
            family = self.random.choice(["single", "multi", "ordered"])
            key = self.random.randrange(40)
            values = [
                f"{self.random.random():.6f}" for _ in range(self.random.choice([0, 1, 2, 3]))
            ]
            rows = model[family]
            names = ["put", "remove"]
            names += {"multi": ["putList", "merge", "mergeList"], "ordered": ["deleteRange"]}.get(
                family, []
            )
            name = self.random.choice(names)
            if name in ("put", "merge"):
                values = [f"{self.random.random():.6f}"]
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
            made.append([name, family, key, *values])
        return made

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


def test_spilled_changes_match_the_model(spark: Any, tmp_path: Path) -> None:
    walk = Walk(spark, tmp_path, seed=14, confs={})
    walk.harness.spillEvery(7)
    try:
        for _ in range(25):
            walk.step()
            walk.check()
        assert walk.harness.spilledBytes() > 0
    finally:
        walk.harness.spillEvery((1 << 31) - 1)
        walk.harness.close()


@pytest.mark.parametrize("inline", ["0", "20k"])
def test_random_walk_matches_the_model(spark: Any, tmp_path: Path, inline: str) -> None:
    seed = int(os.environ.get("SPARKCKPT_MODEL_SEED", random.randrange(1 << 30)))
    print(f"SPARKCKPT_MODEL_SEED={seed}")
    confs = {
        "spark.sql.streaming.minBatchesToRetain": str(RETAINED),
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
