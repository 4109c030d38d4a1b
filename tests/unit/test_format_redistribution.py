"""Operator state is dealt out without losing or doubling an item."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkckpt.errors import OperatorStateModesError
from sparkckpt.format import OperatorStateItems, redistribute
from sparkckpt.format.redistribution import bytes_of_largest

Written = Sequence[Sequence[OperatorStateItems]]
PARALLELISM = st.integers(1, 8)


def items_of(states: Written, name: str) -> list[tuple[bytes, ...]]:
    return [
        next((state.items for state in partition if state.name == name), ()) for partition in states
    ]


def all_items(states: Written, name: str) -> list[bytes]:
    return list(chain.from_iterable(items_of(states, name)))


@st.composite
def written(draw: st.DrawFn) -> Written:
    """Each item tells its partition; partitions may lack a state, or have one without items."""
    partitions = []
    for partition in range(draw(PARALLELISM)):
        states = [
            OperatorStateItems(
                name,
                mode,
                tuple(f"{partition}.{item}".encode() for item in range(draw(st.integers(0, 9)))),
            )
            for name, mode in (("offsets", "split"), ("seen", "union"), ("rules", "broadcast"))
            if draw(st.integers(0, 3))
        ]
        partitions.append(draw(st.permutations(states)))
    return partitions


@given(written(), st.lists(PARALLELISM, min_size=1, max_size=4))
def test_along_any_chain_each_split_item_is_in_one_place(
    states: Written, chain_: list[int]
) -> None:
    before = Counter(all_items(states, "offsets"))
    for parallelism in chain_:
        states = redistribute(states, parallelism)
        assert len(states) == parallelism
        assert Counter(all_items(states, "offsets")) == before


@given(written(), PARALLELISM)
def test_split_items_are_dealt_out_evenly_and_in_turn(states: Written, parallelism: int) -> None:
    dealt = items_of(redistribute(states, parallelism), "offsets")
    if parallelism == len(states):
        assert dealt == items_of(states, "offsets")
    else:
        items = all_items(states, "offsets")
        assert dealt == [tuple(items[p::parallelism]) for p in range(parallelism)]


@given(written(), st.lists(PARALLELISM, min_size=1, max_size=4))
def test_union_goes_to_all_and_does_not_grow_by_itself(states: Written, chain_: list[int]) -> None:
    everything = tuple(all_items(states, "seen"))
    has_some = any(state.name == "seen" for partition in states for state in partition)
    for parallelism in chain_:
        states = redistribute(states, parallelism)
        found = items_of(states, "seen")
        assert found == [everything if has_some else ()] * parallelism


def test_a_union_copy_counts_once_beside_what_others_have_written_since() -> None:
    copy = OperatorStateItems("seen", "union", (b"a", b"b"), inherited=True)
    own = OperatorStateItems("seen", "union", (b"c",))
    (dealt,) = redistribute([[copy], [own], [copy]], 1)
    assert dealt == (OperatorStateItems("seen", "union", (b"a", b"b", b"c"), inherited=True),)


@given(written(), PARALLELISM)
def test_broadcast_is_one_partitions(states: Written, parallelism: int) -> None:
    holders = [s.items for partition in states for s in partition if s.name == "rules"]
    expected = holders[0] if holders else ()
    assert items_of(redistribute(states, parallelism), "rules") == [expected] * parallelism


def test_states_without_items_are_known_to_all() -> None:
    empty = OperatorStateItems("offsets", "split", ())
    assert redistribute([[empty], []], 3) == ((empty,),) * 3
    assert redistribute([[], []], 3) == ((),) * 3


def test_different_modes_are_refused() -> None:
    states = [[OperatorStateItems("s", mode, ())] for mode in ("split", "union")]
    with pytest.raises(OperatorStateModesError, match=r"'s' was written .* as split and union"):
        redistribute(states, 1)


def test_the_size_is_foreseen() -> None:
    copy = OperatorStateItems("seen", "union", (b"12", b"3"), inherited=True)
    states = [
        [
            OperatorStateItems("offsets", "split", (b"1234",) * 3),
            replace(copy, items=(b"own",), inherited=False),
            OperatorStateItems("rules", "broadcast", (b"1" * 100,)),
        ],
        [OperatorStateItems("offsets", "split", (b"1234",) * 3), copy],
        [copy, OperatorStateItems("rules", "broadcast", (b"1" * 100,))],
    ]
    infos = [[state.info for state in partition] for partition in states]
    for parallelism in (1, 2, 6):
        (partition, *_) = redistribute(states, parallelism)
        size = sum(state.info.bytes for state in partition)
        assert bytes_of_largest(infos, parallelism) == size == 24 // parallelism + 6 + 100
