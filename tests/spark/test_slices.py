"""The JVM cuts a manifest as Python does, so that reports say what partitions really load."""

import os
import random
import re
from dataclasses import astuple

from pyspark.sql import SparkSession

from sparkckpt.format import FamilyFiles, StateFileRef, StateHandle
from sparkckpt.format.metadata import (
    CheckpointMetadata,
    CheckpointStatistics,
    OperatorState,
    OperatorSubtaskState,
    write_metadata,
)
from sparkckpt.format.slices import slices_of
from sparkckpt.keygroups import KeyGroupRange, range_of

SEED = int(os.environ.get("SPARKCKPT_TEST_SEED", "20240301"))
KEY_GROUPS = 128
VERSION = 40


def random_file(
    draw: random.Random, owned: KeyGroupRange, version: int, base: bool
) -> StateFileRef:
    first = draw.randint(owned.first, owned.last)
    return StateFileRef(
        path=draw.choice(["0/1/7_x.handle", "file:///elsewhere/a.arrow", f"0/0/{version}.arrow"]),
        offset=draw.randrange(100),
        length=draw.randrange(1000, 2**40),
        tail_length=draw.randrange(1, 1000),
        tail_crc32=draw.randrange(2**32),
        rows=draw.choice([0, 1, 2**40]),
        first_key_group=first,
        last_key_group=draw.randint(first, owned.last),
        first_version=1,
        last_version=version,
        level=draw.randrange(3),
        base=base,
    )


def random_handle(draw: random.Random, partition: int, parallelism: int, store: str) -> StateHandle:
    owned = range_of(partition, parallelism, KEY_GROUPS)

    def family(name: str) -> FamilyFiles:
        versions = sorted(draw.randint(1, VERSION) for _ in range(draw.randrange(5)))
        files = (random_file(draw, owned, v, base=i == 0) for i, v in enumerate(versions))
        return FamilyFiles(name, name == "list", tuple(files))

    return StateHandle(
        operator_id=3,
        operator_name="transformWithStateExec",
        store_name=store,
        partition=partition,
        version=VERSION,
        id=f"id-{store}-{partition}",
        base_id=None,
        keyed=True,
        parallelism=parallelism,
        max_parallelism=KEY_GROUPS,
        first_key_group=owned.first,
        last_key_group=owned.last,
        changed_rows=0,
        change_digest="0" * 16,
        families=tuple(
            family(name) for name in ("default", "list", "$ttl_ü") if draw.random() < 0.8
        ),
    )


def manifest_of(handles: list[StateHandle], parallelism: int) -> bytes:
    subtasks = tuple(
        OperatorSubtaskState(p, tuple(h for h in handles if h.partition == p))
        for p in range(parallelism)
    )
    operator = OperatorState(3, "transformWithStateExec", parallelism, KEY_GROUPS, True, subtasks)
    return write_metadata(
        CheckpointMetadata(1, VERSION - 1, "query", 0, (operator,), (), CheckpointStatistics())
    )


def as_scala(families: tuple[FamilyFiles, ...]) -> str:
    def text(value: object) -> str:
        return str(value).lower() if isinstance(value, bool) else str(value)

    def of(family: FamilyFiles) -> str:
        files = ", ".join(
            f"StateFileRef({','.join(map(text, astuple(file)))})" for file in family.files
        )
        return f"FamilyFiles({family.family},{text(family.multi_valued)},[{files}])"

    return ", ".join(map(of, families))


def as_lists(scala: str) -> str:
    """The text without the kinds of its sequences."""
    return re.sub(r"(List|Vector)\(", "[", scala).replace("))", ")]")


def test_slices_of_random_manifests(spark: SparkSession) -> None:
    print(f"SPARKCKPT_TEST_SEED={SEED}")
    draw = random.Random(SEED)
    ours = spark._jvm.org.apache.spark.sql.sparkckpt
    for _ in range(40):
        parallelism = draw.randint(1, 7)
        handles = [
            random_handle(draw, partition, parallelism, store)
            for partition in range(parallelism)
            for store in ("left", "right")
        ]
        manifest = ours.format.Manifest.deserialize(manifest_of(handles, parallelism), "a manifest")
        operator = manifest.operators().apply(3)
        wanted = draw.randint(1, 9)
        for partition in range(wanted):
            owned = range_of(partition, wanted, KEY_GROUPS)
            for store in ("left", "right", "added"):
                expected = slices_of([h for h in handles if h.store_name == store], owned)
                key_groups = ours.KeyGroupRange(owned.first, owned.last)
                found = operator.slices(store, key_groups).mkString(", ")
                assert as_lists(found) == as_scala(expected)
