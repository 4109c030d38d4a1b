"""The checkpoint that is to be moved, as Spark's own files describe it.

It may be Spark's or ours; the state itself is left to the providers that wrote it. Reads only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparkckpt.errors import (
    CorruptStateError,
    FileMissingError,
    NotACheckpointError,
    OperatorMetadataMissingError,
)
from sparkckpt.restoration.state import LogEntry, log_entry, newest_batches, parallelism_in
from sparkckpt.sparklog import (
    OperatorEntry,
    SparkCheckpoint,
    commits_path,
    offsets_path,
    parse_commit,
    parse_offsets,
    parse_operator,
)
from sparkckpt.sparklog.edits import SHUFFLE_PARTITIONS
from sparkckpt.storage import Storage

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_SPARK = "org.apache.spark.sql.execution.streaming.state"
ROCKSDB = f"{_SPARK}.RocksDBStateStoreProvider"
HDFS_BACKED = f"{_SPARK}.HDFSBackedStateStoreProvider"
SPARKCKPT = "org.apache.spark.sql.sparkckpt.state.KeyGroupStateStoreProvider"


@dataclass(frozen=True)
class SourceOperator:
    """A stateful operator; `ids[partition]` has one for each store, if stores have ids at all."""

    operator_id: int
    metadata: LogEntry
    entry: OperatorEntry
    ids: Sequence[Sequence[str]]

    @property
    def directory(self) -> str:
        return f"state/{self.operator_id}"

    @property
    def schemas(self) -> list[list[str]]:
        """By store, the paths of its schemas, relative to the checkpoint directory."""
        return [
            [f"{self.directory}/{path}" for path in store.schema_paths]
            for store in self.entry.stores
        ]


@dataclass(frozen=True)
class SourceCheckpoint:
    """The checkpoint of a query, at its last committed batch."""

    storage: Storage
    url: str
    batch_id: int | None
    planned_batch_id: int | None
    """The batch that was planned but not committed, if there is one."""
    offsets: Mapping[int, LogEntry]
    """The newest batches, as many as a restart of the query needs."""
    commit: LogEntry | None
    confs: Mapping[str, str]
    """What the offset log says last."""
    operators: tuple[SourceOperator, ...]
    format_version: int
    """Of the state: with 2, stores have ids."""

    @classmethod
    def read(cls, storage: Storage, url: str) -> "SourceCheckpoint":
        """The checkpoint in this directory, whose canonical URL this is; NotACheckpointError if
        there is none."""
        if not storage.exists(""):
            raise NotACheckpointError(storage.where(""), "it does not exist")
        spark = SparkCheckpoint.at(storage)
        planned, committed = newest_batches(storage)
        if planned is None:
            raise NotACheckpointError(
                storage.where(""), "it is the beginning of one, without any batch"
            )
        newest = [batch for batch in range(planned - 2, planned + 1) if batch >= 0]
        offsets = {batch: file for batch in newest if (file := _file(storage, offsets_path(batch)))}
        last = offsets[planned]
        commit, state_ids = None, None
        if committed is not None:
            commit = log_entry(storage, commits_path(committed))
            version = commit.content[:2]
            entry = parse_commit(commit.content, commit.where, committed)
            # An entry of version 3 may go with stores that have ids, or that have none.
            has_ids = version == b"v2" or bool(entry.state_ids)
            state_ids = entry.state_ids if has_ids else None
        return cls(
            storage=storage,
            url=url,
            batch_id=committed,
            planned_batch_id=planned if planned != committed else None,
            offsets=offsets,
            commit=commit,
            confs=parse_offsets(last.content, last.where, planned).confs,
            operators=() if committed is None else _operators(spark, committed, state_ids),
            format_version=1 if state_ids is None else 2,
        )

    @property
    def provider(self) -> str:
        """The class that keeps the state; checkpoints that do not say have Spark's old default."""
        return self.confs.get(PROVIDER, HDFS_BACKED)

    @property
    def parallelism(self) -> int:
        newest = max(self.offsets)
        log = self.offsets[newest]
        stated = parallelism_in(log.content, log.where, newest)
        if stated is None:
            raise CorruptStateError(log.where, f"it does not set {SHUFFLE_PARTITIONS}")
        return stated

    @property
    def batches(self) -> tuple[int | None, int | None]:
        """As `newest_batches` gives them."""
        return max(self.offsets), self.batch_id


def _operators(
    spark: SparkCheckpoint,
    batch_id: int,
    state_ids: Mapping[int, Sequence[Sequence[str]]] | None,
) -> tuple[SourceOperator, ...]:
    if state_ids is None:
        found = spark.operator_ids()
        return tuple(_operator(spark, operator_id, batch_id, ()) for operator_id in found)
    return tuple(
        _operator(spark, operator_id, batch_id, ids)
        for operator_id, ids in sorted(state_ids.items())
    )


def _operator(
    spark: SparkCheckpoint, operator_id: int, batch_id: int, ids: Sequence[Sequence[str]]
) -> SourceOperator:
    metadata = _file(spark.storage, spark.operator_path(operator_id, batch_id))
    if metadata is None:
        raise OperatorMetadataMissingError(spark.storage.where(""), operator_id)
    entry = parse_operator(metadata.content, metadata.where)
    return SourceOperator(operator_id, metadata, entry, ids)


def _file(storage: Storage, path: str) -> LogEntry | None:
    try:
        return log_entry(storage, path)
    except FileMissingError:
        return None
