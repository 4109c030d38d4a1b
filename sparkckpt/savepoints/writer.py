"""Writes a savepoint: state as full files, and last the metadata that makes it one.

Who has state to write, be it merged, edited or made from nothing, hands it over store by store, as
tables in ascending key groups, and says at the end which checkpoint it all is. Files are named and
referred to so that the directory can be moved. It must never write the metadata before every file
that it names.
"""

import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

import pyarrow as pa

from sparkckpt.coordinator.committed import STATE
from sparkckpt.coordinator.savepoints import SAVEPOINT_PATH, SavepointMarker
from sparkckpt.errors import FileExistsAlreadyError, SavepointExistsError
from sparkckpt.format import (
    CheckpointMetadata,
    CheckpointStatistics,
    FamilyFiles,
    MasterState,
    OperatorState,
    OperatorSubtaskState,
    StateFamily,
    StateFileRef,
    StateHandle,
    metadata_path,
    write_metadata,
)
from sparkckpt.format.manifest import new_manifest_id
from sparkckpt.format.operatorstate import OperatorStateHandle, OperatorStateItems
from sparkckpt.format.operatorstatefile import operator_state_path, write_operator_state
from sparkckpt.format.writer import StateFileWriter
from sparkckpt.keygroups import KeyGroupRange, range_of
from sparkckpt.paths import escaped_family
from sparkckpt.restoration.markers import BACKEND_PATH, backend_bytes
from sparkckpt.sparklog import commits_path
from sparkckpt.sparklog.edits import commit_with_ids
from sparkckpt.storage import Storage

_NO_CHANGES = "0" * 16


@dataclass(frozen=True)
class StorePart:
    """A store of one partition of an operator, or some of its key groups."""

    operator_id: int
    operator_name: str
    keyed: bool
    parallelism: int
    max_parallelism: int
    partition: int
    store_name: str
    version: int
    key_groups: KeyGroupRange

    @classmethod
    def of(cls, handle: StateHandle, key_groups: KeyGroupRange | None = None) -> "StorePart":
        """The part that a handle describes, or some of its key groups."""
        return cls(
            handle.operator_id,
            handle.operator_name,
            handle.keyed,
            handle.parallelism,
            handle.max_parallelism,
            handle.partition,
            handle.store_name,
            handle.version,
            key_groups or handle.key_groups,
        )

    @property
    def is_whole(self) -> bool:
        return self.key_groups == range_of(self.partition, self.parallelism, self.max_parallelism)


@dataclass(frozen=True)
class FamilyRows:
    """A column family to be written: tables in the form of a base, in ascending key groups."""

    family: StateFamily
    schema: pa.Schema
    tables: Iterable[pa.Table]


@dataclass(frozen=True)
class WrittenStore:
    """What was written of a store, for the metadata."""

    part: StorePart
    families: tuple[FamilyFiles, ...]
    operator_state: OperatorStateHandle | None = None


def write_store(
    state: Storage,
    part: StorePart,
    families: Iterable[FamilyRows],
    operator_states: Sequence[OperatorStateItems] = (),
) -> WrittenStore:
    """Writes the families of a store below the state root `state`, one file each, and a file with
    its operator states if it has some; of a store in several parts, the first one has them.

    Needs nothing but its arguments, so that it can be run anywhere; what it returns goes to
    `SavepointWriter.complete`. What is held in memory is one file as it is written, compressed.
    """
    written = tuple(_write_family(state, part, rows) for rows in families)
    operator_state = None
    if operator_states:
        path = operator_state_path(
            part.operator_id, part.partition, part.version, str(uuid.uuid4()), part.store_name
        )
        operator_state = write_operator_state(state, path, operator_states)
    return WrittenStore(part, written, operator_state)


def _write_family(state: Storage, part: StorePart, rows: FamilyRows) -> FamilyFiles:
    writer = StateFileWriter(rows.schema, rows.family)
    for table in rows.tables:
        if table.num_rows:
            first, last = table["kg"][0].as_py(), table["kg"][-1].as_py()
            if first not in part.key_groups or last not in part.key_groups:
                raise ValueError(f"key groups {first} to {last} do not belong to {part}")
        writer.write(table)
    data, ref = writer.finish(
        _file_path(part, rows.family.family),
        first_version=1,
        last_version=part.version,
        level=1,
        base=part.is_whole,
    )
    state.write_atomic(ref.path, data)
    return FamilyFiles(rows.family.family, rows.family.multi_valued, (ref,))


def _file_path(part: StorePart, family: str) -> str:
    store = "" if part.store_name == "default" else f"{part.store_name}/"
    name = "" if family == "default" else f".{escaped_family(family)}"
    directory = f"{part.operator_id}/{part.partition}/{store}"
    return f"{directory}{part.version}_{uuid.uuid4()}{name}.merge.arrow"


class SavepointWriter:
    """A savepoint in the making, in the directory `target`."""

    def __init__(self, target: Storage, marker: SavepointMarker) -> None:
        self._target = target
        self.marker = marker

    def begin(self, again: bool = False) -> None:
        """Says in the target what is under way; with `again` in place of one broken off."""
        self._target.write_atomic(SAVEPOINT_PATH, self.marker.to_bytes(), overwrite=again)

    @property
    def state(self) -> Storage:
        """The state root, for `write_store`."""
        return self._target.below(STATE)

    def complete(
        self,
        stores: Iterable[WrittenStore],
        *,
        checkpoint_id: int,
        batch_id: int,
        query_id: str,
        max_parallelism: int,
        master_states: Sequence[MasterState],
        duration_ms: int = 0,
    ) -> CheckpointMetadata:
        """Makes it a savepoint: of the state in `stores`, whose files are all written.

        For every operator there are some for each store of each partition, which together have all
        its key groups; of a store with several, those come in their order. `master_states` are the
        files of Spark's own that a query goes on from (PROTOCOL.md section 7), the entry of its
        commit log among them.
        """
        operators = tuple(_operators(stores))
        refs = [data for o in operators for handle in o.handles for data in handle.data]
        size = sum(ref.length for ref in refs)
        metadata = CheckpointMetadata(
            checkpoint_id=checkpoint_id,
            batch_id=batch_id,
            query_id=query_id,
            timestamp_ms=self.marker.created_ms,
            operator_states=operators,
            master_states=tuple(_under_one_id(master_states, batch_id, operators)),
            statistics=CheckpointStatistics(
                duration_ms=duration_ms, state_bytes=size, files=len(refs), new_files=len(refs)
            ),
        )
        data = write_metadata(metadata)
        self._target.write_atomic(BACKEND_PATH, backend_bytes(max_parallelism), overwrite=True)
        try:
            self._target.write_atomic(metadata_path(checkpoint_id), data)
        except FileExistsAlreadyError as error:
            where = self._target.where("")
            raise SavepointExistsError.complete(where, self.marker.name) from error
        return metadata


def _operators(
    written: Iterable[WrittenStore],
) -> Iterator[OperatorState]:
    stores: dict[tuple[int, int, str], list[WrittenStore]] = {}
    for one in written:
        store = (one.part.operator_id, one.part.partition, one.part.store_name)
        stores.setdefault(store, []).append(one)
    handles = [_handle(found) for found in stores.values()]
    handles.sort(key=attrgetter("operator_id", "partition"))
    for operator_id, group in groupby(handles, attrgetter("operator_id")):
        of_operator = list(group)
        some = of_operator[0]
        yield OperatorState(
            operator_id=operator_id,
            operator_name=some.operator_name,
            parallelism=some.parallelism,
            max_parallelism=some.max_parallelism,
            keyed=some.keyed,
            subtasks=tuple(
                OperatorSubtaskState(partition, tuple(of_partition))
                for partition, of_partition in groupby(of_operator, attrgetter("partition"))
            ),
        )


def _handle(found: Sequence[WrittenStore]) -> StateHandle:
    part = found[0].part
    lists: dict[str, FamilyFiles] = {}
    for one in found:
        for family in one.families:
            before = lists[family.family].files if family.family in lists else ()
            files = tuple(file for file in family.files if file.rows or not before)
            lists[family.family] = FamilyFiles(
                family.family, family.multi_valued, _without_empty((*before, *files))
            )
    owned = range_of(part.partition, part.parallelism, part.max_parallelism)
    return StateHandle(
        operator_id=part.operator_id,
        operator_name=part.operator_name,
        store_name=part.store_name,
        partition=part.partition,
        version=part.version,
        id=str(uuid.uuid4()),
        base_id=None,
        keyed=part.keyed,
        parallelism=part.parallelism,
        max_parallelism=part.max_parallelism,
        first_key_group=owned.first,
        last_key_group=owned.last,
        changed_rows=0,
        change_digest=_NO_CHANGES,
        families=tuple(lists.values()),
        operator_state=found[0].operator_state,
    )


def _without_empty(files: tuple[StateFileRef, ...]) -> tuple[StateFileRef, ...]:
    """Without those that have no rows, but for one: it still says what the rows would be."""
    return tuple(file for file in files if file.rows) or files[:1]


def _under_one_id(
    states: Iterable[MasterState], batch_id: int, operators: Iterable[OperatorState]
) -> Iterator[MasterState]:
    """The commit names a manifest: the handles are no files, only what they list is."""
    manifest_id = new_manifest_id()
    ids = {
        operator.operator_id: [
            [manifest_id] * len(subtask.handles) for subtask in operator.subtasks
        ]
        for operator in operators
    }
    path = commits_path(batch_id)
    for state in states:
        if state.path == path and ids:
            yield MasterState(path, commit_with_ids(state.content, path, ids))
        else:
            yield state
