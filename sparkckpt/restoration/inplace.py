"""Another parallelism for a stopped query, in its own checkpoint directory.

No state is touched. A manifest of the last committed batch is written; the commit log is made to
name it, which is right for the old parallelism and the new one; then the newest entry of the offset
log gets the new parallelism: that is the switch. Killed before it, the query goes on as it was;
after it, rescaled. Every step may be done again.
"""

import time
from collections.abc import Sequence
from dataclasses import replace

from sparkckpt.checkpoints.directory import CheckpointDirectory, Location
from sparkckpt.errors import (
    CheckpointChangedError,
    CheckpointNotRestorableError,
    IsASavepointError,
)
from sparkckpt.format.manifest import manifest_path, new_manifest_id
from sparkckpt.format.metadata import write_metadata
from sparkckpt.keygroups import DEFAULT_MAX_PARALLELISM
from sparkckpt.restoration.exclusive import Clock, Exclusive, exclusively, wall_clock
from sparkckpt.restoration.markers import (
    pinned_max_parallelism,
    refuse_claimed,
    refuse_unfinished,
)
from sparkckpt.restoration.plan import OperatorPlan, check_parallelism, ids_of, plan_operators
from sparkckpt.restoration.report import RescaleReport, operator_reports, totals
from sparkckpt.restoration.state import (
    DIRECTORY,
    CommittedBatch,
    Logs,
    Progress,
    committed_batch,
)
from sparkckpt.sparklog.edits import SHUFFLE_PARTITIONS, commit_with_ids, offsets_with_conf
from sparkckpt.storage import Storage


def rescale(path: Location, parallelism: int, *, progress: Progress | None = None) -> RescaleReport:
    """Has the stopped query with this checkpointLocation go on with so many state partitions.

    Raises QueryRunningError while a query runs there, and InvalidParallelismError for a number
    that is not from 1 to the checkpoint's number of key groups.
    """
    directory = CheckpointDirectory.open(path)
    if directory.savepoint is not None:
        raise IsASavepointError(directory.storage.where(""))
    return rescale_in(directory.storage, parallelism, progress=progress)


def rescale_in(
    storage: Storage,
    parallelism: int,
    *,
    run_id: str | None = None,
    clock: Clock = wall_clock,
    progress: Progress | None = None,
) -> RescaleReport:
    """The same for the directory that `storage` is at; with `run_id` for a run of the query that
    is about to start there, which takes over at once from a former one."""
    started = time.monotonic()
    names = storage.list_names(DIRECTORY)
    refuse_unfinished(storage, names)
    refuse_claimed(storage, names)
    check_parallelism(parallelism, pinned_max_parallelism(storage) or DEFAULT_MAX_PARALLELISM)
    logs = Logs.read(storage)
    if logs.parallelism == parallelism:
        return _unchanged(storage, logs, started)
    with exclusively(storage, "rescale", clock, run_id) as exclusive:
        return _rescale(exclusive, parallelism, names, progress or _say_nothing, started)


def _rescale(
    exclusive: Exclusive,
    parallelism: int,
    names: Sequence[str],
    progress: Progress,
    started: float,
) -> RescaleReport:
    storage = exclusive.storage
    logs = Logs.read(storage)
    if logs.offsets_log is None:
        raise CheckpointNotRestorableError(
            storage.where(""),
            "no batch was ever planned there. Start the query with another "
            f"{SHUFFLE_PARTITIONS} instead",
        )
    batch: CommittedBatch | None = None
    if logs.commit is not None and logs.commit.state_ids:
        batch = committed_batch(storage, logs.commit, names, progress)
    operators = batch.metadata.operator_states if batch else ()
    for operator in operators if pinned_max_parallelism(storage) is None else ():
        check_parallelism(parallelism, operator.max_parallelism)
    plans = [
        replace(plan, former_parallelism=logs.parallelism or plan.former_parallelism)
        if plan.keyed
        else plan
        for plan in plan_operators(operators, parallelism)
    ]
    log = logs.offsets_log
    data = offsets_with_conf(log.content, log.where, SHUFFLE_PARTITIONS, str(parallelism))
    manifest_id, named = None, logs
    if batch is not None:
        manifest_id, named = _name_manifest(exclusive, batch, logs, plans)
    _refuse_changes(exclusive, named)
    storage.write_atomic(log.path, data, overwrite=True)
    files, size = totals(operators)
    return RescaleReport(
        path=storage.where(""),
        changed=True,
        checkpoint_id=batch.checkpoint_id if batch else None,
        batch_id=logs.commit.batch_id if logs.commit else None,
        former_parallelism=logs.parallelism
        or max((o.parallelism for o in operators if o.keyed), default=None),
        parallelism=parallelism,
        operators=operator_reports(plans, operators),
        manifest=manifest_id,
        files=files,
        bytes=size,
        seconds=time.monotonic() - started,
    )


def _name_manifest(
    exclusive: Exclusive, batch: CommittedBatch, logs: Logs, plans: Sequence[OperatorPlan]
) -> tuple[str, Logs]:
    """Has the commit log name a manifest, for the old parallelism and the new one; the logs as
    they are then."""
    storage, commit, log = exclusive.storage, logs.commit, logs.commit_log
    assert commit is not None and log is not None, "only a committed batch has state"
    manifest_id = batch.manifest_id
    if manifest_id is None:
        manifest_id = new_manifest_id()
        data = batch.data or write_metadata(batch.metadata)
        exclusive.confirm()
        storage.write_atomic(manifest_path(manifest_id), data)
    longest = max(map(len, commit.state_ids.values()))
    ids = ids_of(plans, manifest_id, at_least=longest)
    named = {operator: list(map(list, stores)) for operator, stores in commit.state_ids.items()}
    if ids != named:
        data = commit_with_ids(log.content, log.where, ids)
        _refuse_changes(exclusive, logs)
        storage.write_atomic(log.path, data, overwrite=True)
        logs = logs.with_commit(data)
    return manifest_id, logs


def _refuse_changes(exclusive: Exclusive, logs: Logs) -> None:
    """Raises CheckpointChangedError if the logs are not these any more: a query whose coordinator
    is off has no lease, and is known by nothing else."""
    exclusive.confirm()
    if Logs.read(exclusive.storage) != logs:
        raise CheckpointChangedError(exclusive.storage.where(""))


def _unchanged(storage: Storage, logs: Logs, started: float) -> RescaleReport:
    return RescaleReport(
        path=storage.where(""),
        changed=False,
        checkpoint_id=None,
        batch_id=logs.commit.batch_id if logs.commit else None,
        former_parallelism=logs.parallelism,
        parallelism=logs.parallelism or 0,
        operators=(),
        manifest=None,
        files=0,
        bytes=0,
        seconds=time.monotonic() - started,
    )


def _say_nothing(done: int, total: int) -> None:
    """Nobody watches."""
