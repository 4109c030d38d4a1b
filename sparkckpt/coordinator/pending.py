"""A checkpoint in the making: what is acknowledged of one batch, and what is still missing.

Tasks may be retried or run twice, so that a store may be acknowledged under several ids. Only the
one that Spark's commit log names is state of the batch. Pure: it neither reads nor writes, and must
never let an id into a checkpoint that Spark has not committed.
"""

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from sparkckpt.coordinator.acks import Ack, AcknowledgeResult
from sparkckpt.format.handle import StateHandle
from sparkckpt.format.metadata import OperatorState, OperatorSubtaskState

StateIds = Mapping[int, Sequence[Sequence[str]]]
"""The ids in an entry of the commit log: by operator, partition and position of the store."""


class CommittedStore(NamedTuple):
    """A store as the commit log names it: by its position among the operator's, not by name."""

    operator_id: int
    partition: int
    position: int
    id: str


def committed_stores(state_ids: StateIds) -> tuple[CommittedStore, ...]:
    """The stores of an entry of the commit log, in its order."""
    return tuple(
        CommittedStore(operator_id, partition, position, store_id)
        for operator_id, partitions in sorted(state_ids.items())
        for partition, ids in enumerate(partitions)
        for position, store_id in enumerate(ids)
    )


class Phase(enum.Enum):
    """How far a batch has come."""

    RUNNING = "running"
    """Spark has not committed it, as far as is known."""
    COMMITTED = "committed"
    """Spark has committed it; it is to become a checkpoint, or a live version."""
    LIVE = "live"
    """Its files are registered; it becomes a checkpoint only if it is the last of its run."""


class PendingCheckpoint:
    """The acknowledgements of one batch."""

    def __init__(self, batch_id: int, wanted: bool = True) -> None:
        self.batch_id = batch_id
        self.wanted = wanted
        """Whether the batch is to become a checkpoint; the interval leaves some out."""
        self.phase = Phase.RUNNING
        self.committed_ms = 0
        self.retry_ms = 0
        """Not to be looked at before."""
        self.failure = ""
        """Why the last try did not succeed."""
        self.finalizing = False
        """From here on there is no way back: its metadata is being stored."""
        self._acks: dict[tuple[int, int, str], Ack] = {}
        self._read: dict[tuple[int, int, str], StateHandle] = {}
        self._stores: tuple[CommittedStore, ...] | None = None
        self._winners: frozenset[tuple[int, int, str]] = frozenset()
        self._missing: set[tuple[int, int, str]] = set()
        self.manifest_id: str | None = None
        """The manifest that the commit log names in place of all stores' own ids, if it does."""
        self._manifest: tuple[OperatorState, ...] | None = None
        self._digests: dict[tuple[int, int, str, str | None], str] = {}
        self.nondeterministic: StateHandle | None = None
        """A handle whose change set differs from that of another attempt at the same batch."""

    def acknowledge(self, ack: Ack) -> AcknowledgeResult:
        handle = ack.handle
        key = (handle.operator_id, handle.partition, handle.id)
        if key in self._acks:
            return AcknowledgeResult.DUPLICATE
        self._compare_digest(handle)
        if self._stores is not None and key not in self._winners:
            return AcknowledgeResult.STALE
        self._acks[key] = ack
        self._missing.discard(key)
        return AcknowledgeResult.NEW

    def _compare_digest(self, handle: StateHandle) -> None:
        attempt = (handle.operator_id, handle.partition, handle.store_name, handle.base_id)
        if self._digests.setdefault(attempt, handle.change_digest) != handle.change_digest:
            self.nondeterministic = handle

    def commit(self, state_ids: StateIds, manifest_id: str | None = None) -> None:
        """Takes in what Spark's commit log names; all else belongs to attempts that lost."""
        self.manifest_id = manifest_id
        self._stores = committed_stores(state_ids)
        self._winners = frozenset((s.operator_id, s.partition, s.id) for s in self._stores)
        self._missing = {key for key in self._winners if key not in self._acks}

    def supply(self, store: CommittedStore, handle: StateHandle) -> None:
        """Takes a handle that was read from storage, because its acknowledgement is missing."""
        key = (store.operator_id, store.partition, store.id)
        self._read[key] = handle
        self._missing.discard(key)

    def supply_manifest(self, operators: Iterable[OperatorState]) -> None:
        """Takes what the manifest says. There are no acknowledgements to wait for: a manifest is
        committed while no query runs."""
        self._manifest = tuple(operators)
        self._missing.clear()

    @property
    def is_looked_up(self) -> bool:
        """Whether the entry of the commit log is known."""
        return self._stores is not None

    @property
    def committed_ids(self) -> frozenset[tuple[int, int, str]]:
        """Operator, partition and id of every store, once the commit log is known."""
        return self._winners

    def outstanding(self) -> list[CommittedStore]:
        """The committed stores whose handles are not known yet."""
        if self.manifest_id is not None:
            return []
        return [store for store in self._known_stores() if self._handle_of(store) is None]

    @property
    def is_fully_acknowledged(self) -> bool:
        """Whether the handle of every committed store is known."""
        return self._stores is not None and not self._missing

    def handles(self) -> Iterator[StateHandle]:
        """The handles of the committed stores, in the order of the commit log."""
        if self._manifest is not None:
            yield from (handle for operator in self._manifest for handle in operator.handles)
            return
        for store in self._known_stores():
            handle = self._handle_of(store)
            if handle is not None:
                yield handle

    def acks(self) -> list[Ack]:
        """The acknowledgements of the committed stores, as far as they have come."""
        keys = ((s.operator_id, s.partition, s.id) for s in self._known_stores())
        return [self._acks[key] for key in keys if key in self._acks]

    def losers(self) -> list[StateHandle]:
        """The acknowledged handles that Spark has not committed."""
        return [ack.handle for key, ack in self._acks.items() if key not in self._winners]

    def operator_states(self) -> tuple[OperatorState, ...]:
        """The state of the batch, which must be fully acknowledged."""
        if self._manifest is not None:
            return self._manifest
        by_operator: dict[int, dict[int, list[StateHandle]]] = {}
        for store in self._known_stores():
            handle = self._handle_of(store)
            if handle is None:
                raise ValueError(f"batch {self.batch_id} has no handle of {store}")
            partitions = by_operator.setdefault(store.operator_id, {})
            partitions.setdefault(store.partition, []).append(handle)
        return tuple(
            _operator_state(operator_id, partitions)
            for operator_id, partitions in by_operator.items()
        )

    def _known_stores(self) -> tuple[CommittedStore, ...]:
        if self._stores is None:
            raise ValueError(f"the commit log's entry of batch {self.batch_id} is not known yet")
        return self._stores

    def _handle_of(self, store: CommittedStore) -> StateHandle | None:
        key = (store.operator_id, store.partition, store.id)
        ack = self._acks.get(key)
        return ack.handle if ack is not None else self._read.get(key)


def _operator_state(
    operator_id: int, partitions: Mapping[int, Sequence[StateHandle]]
) -> OperatorState:
    first = next(iter(partitions.values()))[0]
    return OperatorState(
        operator_id=operator_id,
        operator_name=first.operator_name,
        parallelism=first.parallelism,
        max_parallelism=first.max_parallelism,
        keyed=first.keyed,
        subtasks=tuple(
            OperatorSubtaskState(partition, tuple(handles))
            for partition, handles in sorted(partitions.items())
        ),
    )
