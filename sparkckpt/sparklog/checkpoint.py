"""The checkpoint directory of a streaming query, as far as Spark itself writes it.

Finds and reads the files by the names Spark gives them. It must never list a directory of state:
what a batch's state consists of is said by the commit log and by handles.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from sparkckpt.errors import FileMissingError, NotACheckpointError
from sparkckpt.sparklog.commits import CommitEntry, parse_commit
from sparkckpt.sparklog.lines import json_object
from sparkckpt.sparklog.offsets import OffsetEntry, parse_offsets
from sparkckpt.sparklog.operators import OperatorEntry, parse_operator
from sparkckpt.storage import Storage

QUERY_PATH = "metadata"


@dataclass(frozen=True)
class MasterState:
    """A file of Spark's own that a restore needs, and where it lies in the checkpoint directory."""

    path: str
    content: bytes


def offsets_path(batch_id: int) -> str:
    return f"offsets/{batch_id}"


def commits_path(batch_id: int) -> str:
    return f"commits/{batch_id}"


@dataclass(frozen=True)
class SparkCheckpoint:
    """What Spark keeps at a query's checkpointLocation, where `storage` is."""

    storage: Storage

    @classmethod
    def at(cls, storage: Storage) -> "SparkCheckpoint":
        """The checkpoint in this directory, which must be one."""
        if not storage.exists(QUERY_PATH):
            raise NotACheckpointError(storage.where(""), f"it has no file {QUERY_PATH!r}")
        return cls(storage)

    def query_id(self) -> str:
        where = self.storage.where(QUERY_PATH)
        text = self.storage.read_all(QUERY_PATH).decode(errors="replace")
        return json_object(text, "its content", where).text("id")

    def offsets(self, batch_id: int) -> OffsetEntry:
        path = offsets_path(batch_id)
        return parse_offsets(self.storage.read_all(path), self.storage.where(path), batch_id)

    def commit(self, batch_id: int) -> CommitEntry:
        path = commits_path(batch_id)
        return parse_commit(self.storage.read_all(path), self.storage.where(path), batch_id)

    def operator(self, operator_id: int, batch_id: int) -> OperatorEntry:
        """An operator as the batch ran it; its stores stand in the order of the commit's ids."""
        path = self.operator_path(operator_id, batch_id)
        return parse_operator(self.storage.read_all(path), self.storage.where(path))

    def operator_path(self, operator_id: int, batch_id: int) -> str:
        """Where the metadata of an operator lies, as the batch ran it."""
        return _operator_path(self.storage, operator_id, batch_id)

    def operator_ids(self) -> list[int]:
        """The stateful operators that the directory has state of, in ascending order. Where the
        commit log names ids of state, it names the operators too, and needs no listing."""
        return _numbers(self.storage.list_names("state"))

    def planned_batches(self) -> list[int]:
        """The batches that the offset log still has, in ascending order."""
        return self._batches("offsets")

    def committed_batches(self) -> list[int]:
        """The batches that the commit log still has, in ascending order."""
        return self._batches("commits")

    def latest_offsets(self) -> OffsetEntry | None:
        """The last batch that was planned, or None before the first."""
        batches = self.planned_batches()
        return self.offsets(batches[-1]) if batches else None

    def latest_commit(self) -> CommitEntry | None:
        """The last batch that was committed, or None before the first."""
        batches = self.committed_batches()
        return self.commit(batches[-1]) if batches else None

    def master_states(
        self, batch_id: int, known: Iterable[MasterState] = ()
    ) -> tuple[MasterState, ...]:
        """The files that a restore to this committed batch needs, in the order of their paths.

        `known` are files that need not be read again. Files of operators may be among them only if
        they come from the same run of the query: each start may add some.
        """
        return _MasterStateReader(self.storage, known).read(batch_id)

    def _batches(self, log: str) -> list[int]:
        return _numbers(self.storage.list_names(log))


class _MasterStateReader:
    """Reads the files of one batch, except those that are known."""

    def __init__(self, storage: Storage, known: Iterable[MasterState]) -> None:
        self._storage = storage
        self._known = {state.path: state for state in known}

    def read(self, batch_id: int) -> tuple[MasterState, ...]:
        commit = self._file(commits_path(batch_id))
        entry = parse_commit(commit.content, self._storage.where(commit.path), batch_id)
        states = [self._file(QUERY_PATH), self._file(offsets_path(batch_id)), commit]
        if batch_id > 0:
            states += self._file_if_there(offsets_path(batch_id - 1))
        for operator_id in entry.state_ids:
            states += self._of_operator(operator_id, batch_id)
        return tuple(sorted(states, key=lambda state: state.path))

    def _file(self, path: str) -> MasterState:
        return self._known.get(path) or MasterState(path, self._storage.read_all(path))

    def _file_if_there(self, path: str) -> list[MasterState]:
        try:
            return [self._file(path)]
        except FileMissingError:
            return []

    def _of_operator(self, operator_id: int, batch_id: int) -> list[MasterState]:
        directory = f"state/{operator_id}/"
        known = [state for path, state in self._known.items() if path.startswith(directory)]
        if known:
            return known
        metadata = self._file(_operator_path(self._storage, operator_id, batch_id))
        operator = parse_operator(metadata.content, self._storage.where(metadata.path))
        schemas = sorted({path for store in operator.stores for path in store.schema_paths})
        if "/v2/" in metadata.path:
            return [metadata, *(self._file(directory + path) for path in schemas)]
        # An operator that was added by a restore has a schema only once it has run.
        found = (self._file_if_there(directory + path) for path in schemas)
        return [metadata, *(state for states in found for state in states)]


def _operator_path(storage: Storage, operator_id: int, batch_id: int) -> str:
    """The metadata of an operator: of version 2, the newest that the batch ran with."""
    directory = f"state/{operator_id}/_metadata"
    starts = [
        start for start in _numbers(storage.list_names(f"{directory}/v2")) if start <= batch_id
    ]
    return f"{directory}/v2/{starts[-1]}" if starts else f"{directory}/metadata"


def _numbers(names: Iterable[str]) -> list[int]:
    """The batches among the names in a log; temporary files and checksums are none."""
    return sorted(int(name) for name in names if name.isascii() and name.isdecimal())
