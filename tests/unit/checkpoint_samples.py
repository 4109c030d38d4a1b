"""Checkpoint directories with real state in them, made by the coordinator, but without Spark."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from sparkckpt.format import (
    OperatorStateHandle,
    OperatorStateItems,
    StateFile,
    StateFileRef,
    StateHandle,
    resolve,
    write_state_file,
)
from sparkckpt.format.handle import HEADER_LENGTH
from sparkckpt.format.operatorstate import handle_of, write_blob
from sparkckpt.keygroups import range_of
from sparkckpt.storage import Storage
from tests.unit.coordinator_samples import MAX_PARALLELISM, FakeQuery, Run, Store
from tests.unit.format_samples import FAMILY, table_of

ROWS = 20


class StatefulQuery(FakeQuery):
    """Writes real rows: inlined in the handle in even batches, in files of their own in odd."""

    def _delta(self, store: Store, version: int, stem: str) -> tuple[StateFileRef, bytes]:
        inlined = version % 2 == 0
        data, ref = write_state_file(
            self._rows(store, version),
            self._family(store),
            f"{stem}.handle" if inlined else f"{stem}.delta.arrow",
            first_version=version,
            last_version=version,
            offset=HEADER_LENGTH if inlined else 0,
            record_batch_rows=8,
        )
        if not inlined:
            self.write(f"state/{ref.path}", data)
        return ref, data if inlined else b""

    def _merge(self, store: Store, version: int, files: tuple[StateFileRef, ...]) -> StateFileRef:
        state = self.storage.below("state")
        data, ref = write_state_file(
            resolve([StateFile.open(state, ref).read() for ref in files]),
            self._family(store),
            super()._merge(store, version, files).path,
            first_version=files[0].first_version,
            last_version=files[-1].last_version,
            level=1,
            base=True,
            record_batch_rows=8,
        )
        self.write(f"state/{ref.path}", data)
        return ref

    def _rows(self, store: Store, version: int) -> pa.Table:
        owned = range_of(store.partition, self.parallelism, MAX_PARALLELISM)
        return table_of(
            [
                (
                    owned.first + row * len(owned) // ROWS,
                    0,
                    {"k": f"key {row}", "x": float(store.partition)},
                    {"n": version},
                )
                for row in range(ROWS)
            ]
        )

    @staticmethod
    def _family(store: Store) -> Any:
        return replace(FAMILY, operator_id=store.operator_id, store_name=store.name)


class OperatorStateQuery(StatefulQuery):
    """Besides, its first operator has operator state: replaced in every third batch, in the handle,
    and in batch 4 in a file of its own; carried on in between."""

    def _operator_state(
        self, base: StateHandle | None, store: Store, version: int, stem: str, before: int
    ) -> tuple[OperatorStateHandle | None, bytes]:
        carried = base.operator_state if base else None
        if store.operator_id != 0 or (carried and version % 3 != 1):
            return carried, b""
        states = operator_states(store.partition, version)
        blob = write_blob(states)
        if version == 4:
            path = f"{stem}.operator-state"
            self.write(f"state/{path}", blob)
            return handle_of(path, blob, states), b""
        return handle_of(f"{stem}.handle", blob, states, HEADER_LENGTH + before), blob


def operator_states(partition: int, version: int) -> tuple[OperatorStateItems, ...]:
    """Items that tell which partition and version has written them."""
    split = tuple(f"{partition} {version} {item}".encode() for item in range(3 + partition))
    return (
        OperatorStateItems("offsets", "split", split),
        OperatorStateItems("seen", "union", (b"%d" % partition,)),
        OperatorStateItems("rules", "broadcast", (b"", b"rule %d" % version)),
    )


def checkpoints_at(
    location: Path | Storage,
    batches: int = 7,
    *,
    end: bool = True,
    kind: type[StatefulQuery] = StatefulQuery,
    **settings: Any,
) -> StatefulQuery:
    """A query that has run so many batches, each of which has become a checkpoint."""
    storage = location if isinstance(location, Storage) else Storage.at(location)
    query = kind(storage, operators=(0, 1), min_batches=2)
    run = Run(query, **{"retained": 3, **settings})
    for batch in range(batches):
        run.batch(batch)
        run.work()
    if end:
        run.coordinator.query_ended()
        run.work()
    return query


def handles_of(query: FakeQuery) -> Sequence[StateHandle]:
    """Of the last batch."""
    return list(query.committed[query.latest].values())
