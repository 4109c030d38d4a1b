"""Pending checkpoints: any order of acknowledgements and the commit gives the same state."""

from hypothesis import given, settings
from hypothesis import strategies as st

from sparkckpt.coordinator.acks import AcknowledgeResult
from sparkckpt.coordinator.pending import PendingCheckpoint
from sparkckpt.format import StateHandle
from tests.unit.coordinator_samples import OPERATORS, FakeQuery, Store, ack_of

QUERY = FakeQuery(operators=(0, 1))
ATTEMPTS = {store: [QUERY.attempt(0, store) for _ in range(3)] for store in QUERY.stores}
WINNERS = {store: attempts[1] for store, attempts in ATTEMPTS.items()}
STATE_IDS = {
    operator_id: [
        [WINNERS[Store(operator_id, partition, name)].id for name in OPERATORS[operator_id][1]]
        for partition in range(QUERY.parallelism)
    ]
    for operator_id in QUERY.operators
}
ALL = [handle for attempts in ATTEMPTS.values() for handle in attempts]


@settings(max_examples=150, deadline=None)
@given(st.permutations(ALL), st.integers(0, len(ALL)), st.integers(0, len(ALL)))
def test_any_order_gives_the_same_state(
    order: list[StateHandle], commit_after: int, lost: int
) -> None:
    pending = PendingCheckpoint(0)
    for handle in order[:commit_after]:
        assert pending.acknowledge(ack_of(handle)) is AcknowledgeResult.NEW
    pending.commit(STATE_IDS)
    for handle in order[commit_after : max(commit_after, lost)]:
        won = handle in WINNERS.values()
        expected = AcknowledgeResult.NEW if won else AcknowledgeResult.STALE
        assert pending.acknowledge(ack_of(handle)) is expected
    by_id = {handle.id: handle for handle in ALL}
    assert pending.is_fully_acknowledged is not bool(pending.outstanding())
    for store in pending.outstanding():
        pending.supply(store, by_id[store.id])
    assert pending.is_fully_acknowledged
    assert list(pending.handles()) == list(WINNERS.values())
    assert set(pending.losers()).isdisjoint(WINNERS.values())
    operators = pending.operator_states()
    assert [operator.operator_name for operator in operators] == [
        OPERATORS[operator_id][0] for operator_id in QUERY.operators
    ]
    assert [h for operator in operators for h in operator.handles] == list(WINNERS.values())


def test_a_repeated_ack_is_a_duplicate() -> None:
    pending = PendingCheckpoint(0)
    pending.acknowledge(ack_of(ALL[0]))
    assert pending.acknowledge(ack_of(ALL[0])) is AcknowledgeResult.DUPLICATE


def test_only_attempts_from_the_same_base_must_agree() -> None:
    store = QUERY.stores[0]
    pending = PendingCheckpoint(0)
    pending.acknowledge(ack_of(QUERY.attempt(0, store)))
    pending.acknowledge(ack_of(QUERY.attempt(0, QUERY.stores[1], digest="1" * 16)))
    assert pending.nondeterministic is None
    pending.acknowledge(ack_of(QUERY.attempt(0, store, digest="1" * 16)))
    assert pending.nondeterministic is not None
