"""Import and export of checkpoints, step by step.

The query is the same before and after: it keeps its id, its batch ids, its offsets and its
watermark. So it must not be started on both directories.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sparkckpt.checkpoints.directory import Location
from sparkckpt.errors import (
    AlreadyOnSparkckptError,
    ForeignCheckpointError,
    InvalidConfError,
    SourceChangedError,
    UnsupportedProviderError,
)
from sparkckpt.keygroups import DEFAULT_MAX_PARALLELISM
from sparkckpt.restoration.exclusive import refuse_others, wall_clock
from sparkckpt.restoration.markers import (
    pinned_max_parallelism,
    refuse_claimed,
    refuse_unfinished,
)
from sparkckpt.restoration.plan import check_max_parallelism, check_parallelism
from sparkckpt.restoration.source import open_storage
from sparkckpt.restoration.state import DIRECTORY, newest_batches
from sparkckpt.sparklog.edits import SHUFFLE_PARTITIONS
from sparkckpt.storage import Storage
from sparkckpt.transfer.job import Progress, Side, move_state, transfer_session
from sparkckpt.transfer.operatorstate import refuse_operator_state
from sparkckpt.transfer.report import TransferReport
from sparkckpt.transfer.source import (
    HDFS_BACKED,
    PROVIDER,
    ROCKSDB,
    SPARKCKPT,
    SourceCheckpoint,
)
from sparkckpt.transfer.target import Transfer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

STRICT_DISTRIBUTION = "spark.sql.streaming.statefulOperator.useStrictDistribution"
"""Without it Spark may shuffle by a part of the key, and look for state where none was put."""

_MOST_PARTITIONS = 1_000_000


def import_checkpoint(
    source: Location,
    target: Location,
    *,
    parallelism: int | None = None,
    max_parallelism: int = DEFAULT_MAX_PARALLELISM,
    spark: "SparkSession | None" = None,
    confs: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> TransferReport:
    """Makes a sparkckpt checkpoint, in the new directory `target`, of a stopped query's checkpoint
    on Spark's RocksDB or HDFS-backed state store.

    By default the parallelism stays as it was. `confs` are for the Spark application that is
    started if none runs.
    """
    checkpoint = SourceCheckpoint.read(*open_storage(source))
    _refuse_unusable(checkpoint.storage)
    if checkpoint.provider == SPARKCKPT:
        raise AlreadyOnSparkckptError(checkpoint.storage.where(""))
    if checkpoint.provider not in (ROCKSDB, HDFS_BACKED):
        raise UnsupportedProviderError(checkpoint.storage.where(""), checkpoint.provider)
    wanted = checkpoint.parallelism if parallelism is None else parallelism
    check_max_parallelism(max_parallelism)
    check_parallelism(wanted, max_parallelism)
    changes = {PROVIDER: SPARKCKPT, SHUFFLE_PARTITIONS: str(wanted)}
    transfer = Transfer("import", checkpoint, *open_storage(target))
    return _Move(
        transfer,
        Side(
            checkpoint.parallelism,
            {**checkpoint.confs, PROVIDER: checkpoint.provider},
            checkpoint.format_version,
        ),
        Side(wanted, {**checkpoint.confs, **changes}, 2, max_parallelism),
        changes,
    ).run(spark, confs or {}, progress)


def export_checkpoint(
    source: Location,
    target: Location,
    *,
    parallelism: int | None = None,
    checkpoint_format: int = 1,
    drop_operator_state: bool = False,
    spark: "SparkSession | None" = None,
    confs: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> TransferReport:
    """Makes a checkpoint for Spark's own RocksDB state store, in the new directory `target`, of a
    stopped query's sparkckpt checkpoint, at its last committed batch.

    `checkpoint_format` is Spark's spark.sql.streaming.stateStore.checkpointFormatVersion: 1 is its
    default, and goes on without any setting. Operator state, for which Spark has no place, is
    refused unless it is to be dropped.
    """
    checkpoint = SourceCheckpoint.read(*open_storage(source))
    storage = checkpoint.storage
    _refuse_unusable(storage)
    if checkpoint.provider != SPARKCKPT:
        raise ForeignCheckpointError(storage.where(""))
    refuse_others(storage, wall_clock())
    wanted = checkpoint.parallelism if parallelism is None else parallelism
    if not 1 <= wanted <= _MOST_PARTITIONS:
        raise InvalidConfError.value("parallelism", wanted, "it must be at least 1")
    if checkpoint_format not in (1, 2):
        raise InvalidConfError.value("checkpoint_format", checkpoint_format, "it must be 1 or 2")
    if not drop_operator_state:
        refuse_operator_state(checkpoint)
    changes = {PROVIDER: ROCKSDB, SHUFFLE_PARTITIONS: str(wanted), STRICT_DISTRIBUTION: "true"}
    transfer = Transfer("export", checkpoint, *open_storage(target))
    return _Move(
        transfer,
        Side(checkpoint.parallelism, checkpoint.confs, 2, pinned_max_parallelism(storage)),
        Side(wanted, {**checkpoint.confs, **changes}, checkpoint_format),
        changes,
    ).run(spark, confs or {}, progress)


@dataclass(frozen=True)
class _Move:
    """A transfer, how either side keeps its state, and what changes in the offset log."""

    transfer: Transfer
    source: Side
    target: Side
    changes: Mapping[str, str]

    def run(
        self, spark: "SparkSession | None", confs: Mapping[str, str], progress: Progress | None
    ) -> TransferReport:
        started = time.monotonic()
        transfer = self.transfer
        transfer.begin()
        if self.target.max_parallelism is not None:
            transfer.write_backend(self.target.max_parallelism)
        with transfer_session(spark, confs) as session:
            moved = move_state(session, transfer, self.source, self.target, progress or _ignore)
        checkpoint = transfer.source
        if newest_batches(checkpoint.storage) != checkpoint.batches:
            raise SourceChangedError(transfer.source_url, transfer.target_url)
        transfer.write_operators(self.target.parallelism)
        with_ids = self.target.format_version == 2
        transfer.write_logs(self.changes, moved.state_ids if with_ids else None)
        transfer.end()
        return TransferReport(
            source=transfer.source_url,
            target=transfer.target_url,
            batch_id=checkpoint.batch_id,
            planned_batch_id=checkpoint.planned_batch_id,
            former_parallelism=self.source.parallelism,
            parallelism=self.target.parallelism,
            operators=moved.operators,
            seconds=time.monotonic() - started,
        )


def _refuse_unusable(storage: Storage) -> None:
    names = storage.list_names(DIRECTORY)
    refuse_unfinished(storage, names)
    refuse_claimed(storage, names)


def _ignore(done: int, total: int) -> None:
    """Nobody watches."""
