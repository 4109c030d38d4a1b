"""Handles and metadata of any size for the tests of checkpoints."""

import random
import uuid
from collections.abc import Sequence
from dataclasses import replace

from sparkckpt.format import (
    CheckpointMetadata,
    CheckpointStatistics,
    FamilyFiles,
    MasterState,
    OperatorState,
    OperatorSubtaskState,
    StateFileRef,
    StateHandle,
)
from sparkckpt.keygroups import DEFAULT_MAX_PARALLELISM, range_of

OFFSETS = (
    b'v1\n{"batchWatermarkMs":12,"batchTimestampMs":34,"conf":{"spark.sql.shuffle.partitions":"3"}}'
    b'\n{"logOffset":7}\n-'
)
JOIN_STORES = (
    "left-keyToNumValues",
    "left-keyWithIndexToValue",
    "right-keyToNumValues",
    "right-keyWithIndexToValue",
)


def random_handle(
    seed: random.Random,
    partition: int = 0,
    *,
    parallelism: int = 1,
    store: str = "default",
    version: int = 12,
    files: int = 2,
    families: Sequence[str] = ("default",),
    operator_id: int = 0,
) -> StateHandle:
    """A handle whose files have random ids, checksums, sizes and spans: the newest is its own."""
    owned = range_of(partition, parallelism, DEFAULT_MAX_PARALLELISM)
    directory = f"{operator_id}/{partition}/" + ("" if store == "default" else f"{store}/")
    ids = [str(uuid.UUID(int=seed.getrandbits(128))) for _ in range(max(files, 2))]

    def file(family: str, index: int) -> StateFileRef:
        at = version - files + 1 + index
        span = sorted(seed.choices(range(owned.first, owned.last + 1), k=2))
        kind = "delta" if index else "merge"
        infix = "" if family == "default" else f".{family}"
        return StateFileRef(
            path=f"{directory}{at}_{ids[index]}{infix}.{kind}.arrow",
            offset=0,
            length=seed.randint(2_000, 2_000_000),
            tail_length=seed.randint(800, 1900),
            tail_crc32=seed.getrandbits(32),
            rows=seed.randint(1, 50_000),
            first_key_group=span[0],
            last_key_group=span[1],
            first_version=at if index else 1,
            last_version=at,
            level=0 if index else 1,
            base=index == 0,
        )

    return StateHandle(
        operator_id=operator_id,
        operator_name="symmetricHashJoin",
        store_name=store,
        partition=partition,
        version=version,
        id=ids[-1],
        base_id=ids[-2],
        keyed=True,
        parallelism=parallelism,
        max_parallelism=DEFAULT_MAX_PARALLELISM,
        first_key_group=owned.first,
        last_key_group=owned.last,
        changed_rows=seed.randint(1, 50_000),
        change_digest=f"{seed.getrandbits(64):016x}",
        families=tuple(
            FamilyFiles(family, False, tuple(file(family, index) for index in range(files)))
            for family in families
        ),
    )


def random_operator(
    seed: random.Random,
    *,
    parallelism: int = 3,
    stores: Sequence[str] = JOIN_STORES,
    version: int = 12,
    files: int = 2,
    families: Sequence[str] = ("default",),
    operator_id: int = 0,
) -> OperatorState:
    def subtask(partition: int) -> OperatorSubtaskState:
        handles = [
            random_handle(
                seed,
                partition,
                parallelism=parallelism,
                store=store,
                version=version,
                files=files,
                families=families,
                operator_id=operator_id,
            )
            for store in stores
        ]
        return OperatorSubtaskState(partition, tuple(handles))

    return OperatorState(
        operator_id=operator_id,
        operator_name="symmetricHashJoin",
        parallelism=parallelism,
        max_parallelism=DEFAULT_MAX_PARALLELISM,
        keyed=True,
        subtasks=tuple(map(subtask, range(parallelism))),
    )


def metadata_of(*operators: OperatorState) -> CheckpointMetadata:
    """The metadata of a checkpoint with these operators, all at the same version."""
    version = next((h.version for operator in operators for h in operator.handles), 12)
    return CheckpointMetadata(
        checkpoint_id=7,
        batch_id=version - 1,
        query_id="2b4e0a0e-6a0c-4f5b-9a53-6b4b5f1f5a57",
        timestamp_ms=1_700_000_000_000,
        operator_states=operators,
        master_states=(
            MasterState(f"offsets/{version - 1}", OFFSETS),
            MasterState("state/0/0/_metadata/schema", b"\x00\x02v2\xff"),
        ),
        statistics=CheckpointStatistics(duration_ms=5, files=3, slowest="operator 0"),
    )


def with_handle(operator: OperatorState, partition: int, handle: StateHandle) -> OperatorState:
    """The operator with another first handle in a partition."""
    subtasks = list(operator.subtasks)
    handles = (handle, *subtasks[partition].handles[1:])
    subtasks[partition] = replace(subtasks[partition], handles=handles)
    return replace(operator, subtasks=tuple(subtasks))
