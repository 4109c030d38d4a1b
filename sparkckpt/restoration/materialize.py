"""A new checkpoint directory from a checkpoint of another one.

A marker comes first and goes last: while it stands, no query starts there and the same restore may
be run again, which clears away what the other has left, but not while that one is at work: it holds
the lease of the target. In between the files that the state lies in
are made sure of (pinned, claimed or copied), then the directory is built up, Spark's logs last.
Nothing is written into the target before it is known that the restore is possible, and the source
is never changed but for a pin, or a lease and the claim.
"""

import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

from sparkckpt.checkpoints.directory import Location
from sparkckpt.coordinator.committed import STATE
from sparkckpt.coordinator.restored import (
    CLAIM,
    COPY,
    NO_CLAIM,
    RESTORED_PATH,
    RESTORING_PATH,
    read_restored,
)
from sparkckpt.errors import CheckpointNotFoundError
from sparkckpt.format.manifest import new_manifest_id
from sparkckpt.restoration.copies import (
    StateCopy,
    copied_states,
    copy_sources,
    copy_states,
    referred_states,
)
from sparkckpt.restoration.exclusive import Clock, Exclusive, exclusively, wall_clock
from sparkckpt.restoration.leftovers import clear_leftover, leftover_of
from sparkckpt.restoration.markers import (
    Restoring,
    pinned_max_parallelism,
    restored_bytes,
)
from sparkckpt.restoration.plan import state_of
from sparkckpt.restoration.report import RestoreReport, operator_reports, totals
from sparkckpt.restoration.request import MODES, RestoreOptions, RestorePlan, plan_restore
from sparkckpt.restoration.source import (
    Needed,
    Snapshot,
    Source,
    claim,
    lay_pins,
    open_storage,
    remove_pins,
    take_snapshot,
    unclaim,
)
from sparkckpt.restoration.state import Progress, checkpoint_ids
from sparkckpt.restoration.target import TargetFiles
from sparkckpt.sparklog import SparkCheckpoint
from sparkckpt.sparklog.checkpoint import QUERY_PATH
from sparkckpt.storage import Storage

_TRIES = 5


def restore(
    source: Location,
    target: Location,
    *,
    parallelism: int | None = None,
    mode: str = NO_CLAIM,
    allow_non_restored_state: bool = False,
    map_operators: Mapping[int, int] | None = None,
    drop_operators: Sequence[int] = (),
    add_operators: Mapping[int, str] | None = None,
    checkpoint_id: int | None = None,
    max_parallelism: int | None = None,
    progress: Progress | None = None,
) -> RestoreReport:
    """Makes a checkpointLocation of `target`, on which a query goes on from a checkpoint.

    `source` is a checkpointLocation, of which the newest checkpoint is taken or that with
    `checkpoint_id`, or a directory `_sparkckpt/chk-<id>` in one. With `mode="no-claim"` the target
    uses the source's files until its own merges have replaced them; with "claim" they become its
    own, and no query may run on the source any more; with "copy" they are copied first.

    `parallelism` is the number of state partitions, by default that of the source. Operators keep
    their ids unless `map_operators` gives other ones, old to new; `drop_operators` are left out
    and `add_operators` start empty, id to Spark's name of the operator (of transformWithState with
    its modes, `NAME:TIMEMODE:OUTPUTMODE`). State that would be left behind is an error without
    `allow_non_restored_state`. `max_parallelism` is another number of key groups.

    A restore that was broken off can be run again with the same arguments. `progress` is told how
    many files are copied, and how many there are.
    """
    options = RestoreOptions(
        parallelism=parallelism,
        mode=mode,
        allow_non_restored_state=allow_non_restored_state,
        map_operators=dict(map_operators or {}),
        drop_operators=tuple(drop_operators),
        add_operators=dict(add_operators or {}),
        max_parallelism=max_parallelism,
    )
    return restore_into(
        Source.at(source, checkpoint_id), *open_storage(target), options, progress=progress
    )


def restore_into(
    source: Source,
    target: Storage,
    target_url: str,
    options: RestoreOptions,
    *,
    run_id: str | None = None,
    clock: Clock = wall_clock,
    progress: Progress | None = None,
) -> RestoreReport:
    """The same between directories that are open already. With `run_id` the target is that of a
    query of which this run is about to start: it has its id, and keeps it."""
    run = _Restore(source, target, target_url, options, run_id, clock, progress or _say_nothing)
    return run.run()


@dataclass(frozen=True)
class _Restore:
    source: Source
    target: Storage
    target_url: str
    options: RestoreOptions
    run_id: str | None
    clock: Clock
    progress: Progress

    @property
    def started(self) -> bool:
        return self.run_id is not None

    def run(self) -> RestoreReport:
        began = time.monotonic()
        self.source.refuse_if_unusable(self.target_url)
        self._leftover()
        with (
            exclusively(self.source.storage, "restore", self.clock)
            if self.options.mode == CLAIM
            else nullcontext()
        ) as owned_source:
            plan = self._plan()
            with exclusively(self.target, "restore", self.clock, self.run_id) as owned:
                # Another may have restored, or begun to, while this one was planned.
                leftover = self._leftover()
                pin = self._mark(overwrite=leftover is not None)
                plan, pin, pinned = self._protect(plan, pin, owned_source)
                if leftover is not None:
                    remove_pins(self.source, leftover.pin, {self.source.url, *pinned})
                return self._build(owned, plan, pin, pinned, leftover is not None, began)

    def _leftover(self) -> Restoring | None:
        return leftover_of(self.target, self.source.url, MODES, self.started)

    def _mark(self, overwrite: bool) -> str:
        """Says in the target what is under way, and draws a name for the pin that it needs.

        Each try has a name of its own: who has read a pin does not look whether it has changed.
        """
        pin = f"restore-{uuid.uuid4()}"
        marker = Restoring.here(self.source.url, self.options.mode, pin)
        self.target.write_atomic(RESTORING_PATH, marker.to_bytes(), overwrite=overwrite)
        return pin

    def _plan(self) -> RestorePlan:
        snapshot = take_snapshot(self.source, self.clock, held=self.options.mode == CLAIM)
        key_groups = pinned_max_parallelism(self.source.storage)
        return plan_restore(snapshot, key_groups, self.options)

    def _protect(
        self, plan: RestorePlan, pin: str, owned_source: Exclusive | None
    ) -> tuple[RestorePlan, str, tuple[str, ...]]:
        """Makes sure that the source keeps what the target needs, or needs to copy.

        A running query may remove the checkpoint before it sees the pin. Then a newer one is taken,
        unless this very one was asked for.
        """
        source = self.source
        for _ in range(_TRIES):
            needed = Needed.of(source, plan.snapshot.metadata)
            in_source = owned_source is None
            pinned = lay_pins(source, needed, pin, self.target_url, in_source)
            if owned_source is not None:
                claim(owned_source, source, self.target_url)
                remove_pins(source, pin, [source.url])
            else:
                unclaim(source, self.target_url)
            if plan.snapshot.is_still_there(source):
                return plan, pin, pinned
            remove_pins(source, pin, pinned)
            if source.checkpoint_id is not None:
                break
            plan, pin = self._plan(), self._mark(overwrite=True)
        gone = str(plan.snapshot.checkpoint_id)
        ids = list(map(str, checkpoint_ids(source.names())))
        raise CheckpointNotFoundError(source.storage.where(""), gone, ids)

    def _build(
        self,
        owned: Exclusive,
        plan: RestorePlan,
        pin: str,
        pinned: Sequence[str],
        again: bool,
        began: float,
    ) -> RestoreReport:
        snapshot, source, target = plan.snapshot, self.source, self.target
        metadata, mode = snapshot.metadata, self.options.mode
        files = self._files(plan)
        copies: dict[str, StateCopy] = {}
        if mode == COPY:
            states, copies = copied_states(files.states, source.root)
        else:
            states = referred_states(files.states, source.root)
        files = replace(files, states=states)
        present = self._clear(copies.values()) if again else {}
        copy_states(
            source.storage.below(STATE),
            target.below(STATE),
            copies.values(),
            present,
            self._progress(owned),
        )
        owned.confirm()
        for path, data in files.before_sources():
            target.write_atomic(path, data, overwrite=True)
        copy_sources(source.storage, target)
        owned.confirm()
        for path, data in files.after_sources():
            target.write_atomic(path, data, overwrite=True)
        if mode == COPY:
            remove_pins(source, pin, pinned)
        kept = pin if pinned and mode != COPY else None
        target.write_atomic(
            RESTORED_PATH,
            restored_bytes(
                checkpoint_id=self._restored_id(snapshot),
                batch_id=metadata.batch_id,
                source=source.url,
                state_root=source.root.url,
                mode=mode,
                pin=kept,
                pinned=pinned if kept else (),
            ),
            overwrite=True,
        )
        target.delete([RESTORING_PATH])
        count, size = totals(files.states)
        return RestoreReport(
            source=source.storage.where(""),
            target=target.where(""),
            mode=mode,
            checkpoint_id=snapshot.checkpoint_id,
            batch_id=metadata.batch_id,
            planned_batch_id=metadata.batch_id + 1 if snapshot.planned else None,
            query_id=files.query_id or SparkCheckpoint(target).query_id(),
            former_parallelism=plan.former_parallelism,
            parallelism=plan.parallelism,
            max_parallelism=plan.max_parallelism,
            operators=operator_reports(plan.operators, metadata.operator_states),
            not_restored=plan.not_restored,
            files_referenced=0 if mode == COPY else count,
            files_copied=len(copies),
            bytes=size,
            seconds=time.monotonic() - began,
            pin=kept,
            warnings=plan.warnings,
        )

    def _progress(self, owned: Exclusive) -> Progress:
        """Copying may take longer than a lease lasts."""

        def progress(done: int, total: int) -> None:
            owned.keep()
            self.progress(done, total)

        return progress

    def _files(self, plan: RestorePlan) -> TargetFiles:
        metadata = plan.snapshot.metadata
        manifest_id = new_manifest_id()
        query_id: str | None = str(uuid.uuid4())
        if self.started:
            query_id = None
        elif self.options.mode == CLAIM:
            query_id = metadata.query_id
        return TargetFiles(
            url=self.target_url,
            source=self.source.storage.where(""),
            metadata=metadata,
            operators=plan.operators,
            added=plan.changes.added,
            states=[
                state_of(
                    operator,
                    metadata.operator_states,
                    manifest_id,
                    metadata.batch_id + 1,
                    plan.former_max_parallelism,
                )
                for operator in plan.operators
            ],
            manifest_id=manifest_id,
            parallelism=plan.parallelism,
            max_parallelism=plan.max_parallelism,
            query_id=query_id,
            planned=plan.snapshot.planned,
        )

    def _clear(self, wanted: Iterable[StateCopy]) -> dict[str, int]:
        """Removes what a restore that was broken off has left, but for whole files of state that
        are wanted; those, relative to the state root, with their lengths."""
        found = self.target.below(STATE).find("")
        lengths = {copy.target: copy.length for copy in wanted}
        kept = {path: size for path, size in found.items() if lengths.get(path) == size}
        spared = {f"{STATE}/{path}" for path in kept}
        clear_leftover(self.target, {*spared, *((QUERY_PATH,) if self.started else ())})
        return kept

    def _restored_id(self, snapshot: Snapshot) -> int:
        """New checkpoints get ids above it."""
        if snapshot.checkpoint_id is not None:
            return snapshot.checkpoint_id
        restored = read_restored(self.source.storage)
        return max(snapshot.newest_id, restored.checkpoint_id if restored else 0)


def _say_nothing(done: int, total: int) -> None:
    """Nobody watches."""
