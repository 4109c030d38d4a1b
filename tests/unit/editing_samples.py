"""Savepoints of operators of all kinds, in the forms that Spark gives them, without Spark."""

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkckpt.coordinator.savepoints import SavepointMarker
from sparkckpt.editing.types import SparkType, arrow_type, field_of
from sparkckpt.format import MasterState, StateFamily
from sparkckpt.keygroups import range_of
from sparkckpt.murmur3 import hash_columns
from sparkckpt.savepoints.writer import FamilyRows, SavepointWriter, StorePart, write_store
from sparkckpt.storage import Storage

PARALLELISM = 3
MAX_PARALLELISM = 64


def struct_of(**fields: SparkType) -> SparkType:
    return {"type": "struct", "fields": [field_of(name, kind) for name, kind in fields.items()]}


@dataclass(frozen=True)
class Family:
    """Rows of a column family: keys with their values, or with lists of them."""

    key: SparkType
    value: SparkType
    rows: dict[Any, Any]
    multi_valued: bool = False
    nested_key: bool = False
    key_field: int = 0

    unsafe_value: bool = False
    is_collated: bool = False

    @property
    def value_type(self) -> pa.DataType:
        return pa.binary() if self.unsafe_value else arrow_type(self.value)

    def table(self) -> pa.Table:
        ops, keys, values = [], [], []
        for key, found in self.rows.items():
            for index, value in enumerate(found if self.multi_valued else [found]):
                keys.append(json.loads(key) if isinstance(key, str) and key[0] == "{" else key)
                ops.append(2 if index else 0)
                values.append(value)
        key = pa.array(keys, arrow_type(self.key))
        grouping = (key.field(self.key_field) if self.nested_key else key).flatten()
        if self.is_collated:
            grouping[0] = pc.utf8_upper(grouping[0])
        groups = (hash_columns(grouping, len(keys)) % MAX_PARALLELISM).astype(np.uint16)
        table = pa.table(
            [groups, pa.array(ops, pa.int8()), key, pa.array(values, self.value_type)],
            ["kg", "op", "key", "value"],
        )
        return table.take(np.argsort(groups, kind="stable"))


def keyed(**columns: Any) -> str:
    """A key of a family's rows."""
    return json.dumps(columns)


def schema_file(families: dict[str, Family]) -> bytes:
    """As Spark writes it: of version 3 if there are column families."""

    def utf(text: str) -> bytes:
        return struct.pack(">H", len(text.encode())) + text.encode()

    def chunks(schema: object) -> bytes:
        return struct.pack(">i", 1) + utf(json.dumps(schema))

    if list(families) == ["default"]:
        family = families["default"]
        return utf("v2") + chunks(family.key) + chunks(family.value)
    return (
        utf("v3")
        + struct.pack(">i", len(families))
        + b"".join(
            utf(name)
            + struct.pack(">h", 0)
            + chunks(family.key)
            + struct.pack(">h", 0)
            + chunks(family.value)
            + chunks({"keyStateEncoderType": "NoPrefixKeyStateEncoderSpec"})
            + chunks({})
            for name, family in families.items()
        )
    )


def savepoint_of(
    path: Path,
    operator: str,
    families: dict[str, Family],
    variables: list[tuple[str, str, bool]] | None = None,
    *,
    without_files: bool = False,
) -> Path:
    """A savepoint with one operator; `variables` are those of a transformWithState: the name, the
    kind and whether it expires."""
    writer = SavepointWriter(Storage.at(path), SavepointMarker.here("it", "", "pin", 0))
    writer.begin()
    written = []
    for partition in range(PARALLELISM):
        owned = range_of(partition, PARALLELISM, MAX_PARALLELISM)
        part = StorePart(
            0, operator, True, PARALLELISM, MAX_PARALLELISM, partition, "default", 1, owned
        )
        rows = []
        for name, family in families.items():
            table = family.table()
            groups = table["kg"].to_numpy()
            inside = table.filter(pa.array((groups >= owned.first) & (groups <= owned.last)))
            described = StateFamily(
                0,
                "default",
                name,
                family.multi_valued,
                MAX_PARALLELISM,
                json.dumps(family.key),
                json.dumps(family.value),
                "struct",
                "unsaferow" if family.unsafe_value else "struct",
            )
            rows.append(FamilyRows(described, table.schema, [inside]))
        written.append(write_store(writer.state, part, [] if without_files else rows))
    writer.complete(
        written,
        checkpoint_id=1,
        batch_id=0,
        query_id="4b2c7f3a-95b5-4b4a-8b3e-1f2d9be9b6c7",
        max_parallelism=MAX_PARALLELISM,
        master_states=_master_states(operator, families, variables),
    )
    return path


def _master_states(
    operator: str, families: dict[str, Family], variables: list[tuple[str, str, bool]] | None
) -> list[MasterState]:
    store: dict[str, object] = {
        "storeName": "default",
        "numColsPrefixKey": 0,
        "numPartitions": PARALLELISM,
    }
    info = {"operatorInfo": {"operatorId": 0, "operatorName": operator}, "stateStoreInfo": [store]}
    entry: dict[str, object] = dict(info)
    metadata, schema, version = "state/0/_metadata/metadata", "state/0/0/_metadata/schema", 1
    if variables is not None:
        metadata, schema = "state/0/_metadata/v2/0", "state/0/_stateSchema/default/0_a"
        store["stateSchemaFilePaths"] = [f"file:/old/{schema}"]
        declared = [
            {"stateName": name, "stateVariableType": kind, "ttlEnabled": ttl}
            for name, kind, ttl in variables
        ]
        entry["operatorPropertiesJson"] = json.dumps({"stateVariables": declared})
        version = 2
    conf = {"spark.sql.shuffle.partitions": str(PARALLELISM)}
    offsets = {"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": conf}
    ids = {"0": [["id"]] * PARALLELISM}
    commit = {"nextBatchWatermarkMs": 0, "stateUniqueIds": ids}
    return [
        MasterState("commits/0", f"v2\n{json.dumps(commit)}".encode()),
        MasterState("metadata", b'{"id":"4b2c7f3a-95b5-4b4a-8b3e-1f2d9be9b6c7"}'),
        MasterState("offsets/0", f"v1\n{json.dumps(offsets)}\n0".encode()),
        MasterState(schema, schema_file(families)),
        MasterState(metadata, f"v{version}\n{json.dumps(entry)}".encode()),
    ]


def groups(path: Path, is_collated: bool = False) -> Path:
    """Of an applyInPandasWithState: 40 keys, of which each third has a timeout and one no state."""
    rows = {
        keyed(k=f"key {i}", g=i % 4): {
            "groupState": None if i == 39 else {"n": i, "name": f"<{i}>"},
            "timeoutTimestamp": 1000 * i if i % 3 == 0 else -1,
        }
        for i in range(40)
    }
    value = struct_of(groupState=struct_of(n="integer", name="string"), timeoutTimestamp="long")
    family = Family(struct_of(k="string", g="integer"), value, rows, is_collated=is_collated)
    return savepoint_of(path, "applyInPandasWithState", {"default": family})


def variables(path: Path, *, without_files: bool = False) -> Path:
    """Of a transformWithState: value, list, map and expiring state of 30 keys."""
    key = struct_of(k="long")
    pair = struct_of(key=key, userKey=struct_of(u="string"))
    keys = [keyed(k=i) for i in range(30)]
    families = {
        "total": Family(key, struct_of(sum="long"), {k: {"sum": i} for i, k in enumerate(keys)}),
        "seen": Family(
            key,
            struct_of(v="long"),
            {k: [{"v": v} for v in range(i % 3 + 1)] for i, k in enumerate(keys)},
            multi_valued=True,
        ),
        "$rowCounter_seen": Family(
            key, struct_of(count="long"), {k: {"count": i % 3 + 1} for i, k in enumerate(keys)}
        ),
        "byUser": Family(
            pair,
            struct_of(n="long"),
            {
                keyed(key={"k": i}, userKey={"u": u}): {"n": i}
                for i in range(30)
                for u in ("a", "b")
            },
            nested_key=True,
        ),
        "late": Family(
            key,
            struct_of(value=struct_of(x="double"), ttlExpirationMs="long"),
            {k: {"value": {"x": 0.5}, "ttlExpirationMs": 5000} for k in keys},
        ),
    }
    by_key = struct_of(key=key, expiryTimestampMs="long")
    by_time = struct_of(expiryTimestampMs="long", key=key)
    times = {keyed(key={"k": i}, expiryTimestampMs=i): {"x": False} for i in range(5)}
    families["$procTimers_keyToTimestamp"] = Family(
        by_key, struct_of(x="boolean"), times, nested_key=True
    )
    families["$procTimers_timestampToKey"] = Family(
        by_time, struct_of(x="boolean"), times, nested_key=True, key_field=1
    )
    declared = [
        ("total", "ValueState", False),
        ("seen", "ListState", False),
        ("byUser", "MapState", False),
        ("late", "ValueState", True),
    ]
    name = "transformWithStateInPandasExec"
    return savepoint_of(path, name, families, declared, without_files=without_files)


def deduplicated(path: Path) -> Path:
    """Of a dropDuplicates: 30 keys whose values are Spark's rows of one null."""
    null = (1).to_bytes(8, "little") + bytes(8)
    rows = {keyed(k=i): null for i in range(30)}
    family = Family(struct_of(k="long"), struct_of(__dummy__="void"), rows, unsafe_value=True)
    return savepoint_of(path, "dedupe", {"default": family})
