"""Checkpoints whose keys lie in the key groups that Spark would put them in."""

from pathlib import Path

import pyarrow as pa

from sparkckpt.format import StateFamily
from sparkckpt.keygroups import range_of
from sparkckpt.murmur3 import hash_columns
from sparkckpt.storage import Storage
from tests.unit.checkpoint_samples import OperatorStateQuery, StatefulQuery
from tests.unit.coordinator_samples import MAX_PARALLELISM, Run, Store
from tests.unit.format_samples import KEY, Row, table_of

KEYS = 120
State = dict[str | None, int]


def text_of(key: int) -> str | None:
    return f"key <{key}>" if key else None


def state_after(batches: int) -> State:
    """The value of each key is the last version that has put it, and has not deleted it since."""
    state: State = {}
    for version in range(1, batches + 1):
        for key in range(KEYS):
            if changes(key, version):
                state.pop(text_of(key), None)
                if not deletes(key, version):
                    state[text_of(key)] = version
    return state


def changes(key: int, version: int) -> bool:
    return version == 1 or key % 7 == version % 7


def deletes(key: int, version: int) -> bool:
    return version > 1 and key % 3 == version % 3


class KeyedQuery(OperatorStateQuery):
    """Puts, overwrites and deletes keys of every key group."""

    def _rows(self, store: Store, version: int) -> pa.Table:
        keys = [key for key in range(KEYS) if changes(key, version)]
        values = pa.array([{"k": text_of(key), "x": 0.5} for key in keys], KEY)
        groups = (hash_columns(values.flatten(), len(keys)) % MAX_PARALLELISM).tolist()
        owned = range_of(store.partition, self.parallelism, MAX_PARALLELISM)
        rows: list[Row] = [
            (group, int(gone), value, None if gone else {"n": version})
            for key, group, value in zip(keys, groups, values.to_pylist(), strict=True)
            if group in owned and ((gone := deletes(key, version)) or True)
        ]
        return table_of(sorted(rows, key=lambda row: row[0]))

    @staticmethod
    def _family(store: Store) -> StateFamily:
        family: StateFamily = StatefulQuery._family(store)
        return family


def keyed_checkpoint(
    location: Path | Storage,
    batches: int = 7,
    *,
    end: bool = True,
    operators: tuple[int, ...] = (0,),
) -> Run:
    """A query that has run so many batches; the last three are checkpoints."""
    storage = location if isinstance(location, Storage) else Storage.at(location)
    run = Run(KeyedQuery(storage, operators=operators, min_batches=2), retained=3)
    for batch in range(batches):
        run.batch(batch)
        run.work()
    if end:
        run.coordinator.query_ended()
        run.work()
    return run
