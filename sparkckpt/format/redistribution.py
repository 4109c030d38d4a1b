"""Who gets which operator state when the partitions of an operator change.

Pure, the Python twin of `OperatorStateRedistribution.scala`. No item of split state may be given to
two partitions or to none; what the partitions had stays in their order, and items in theirs.
"""

from collections.abc import Iterable, Sequence
from itertools import chain

from sparkckpt.errors import OperatorStateModesError
from sparkckpt.format.operatorstate import (
    BROADCAST,
    SPLIT,
    UNION,
    OperatorStateInfo,
    OperatorStateItems,
)

Items = tuple[bytes, ...]


def redistribute(
    written: Sequence[Sequence[OperatorStateItems]], parallelism: int
) -> tuple[tuple[OperatorStateItems, ...], ...]:
    """The operator states of each new partition, from those of each former one.

    Split: the items of all are dealt out in turn; nothing moves if the parallelism stays. Union:
    the items of all to each; a copy that was inherited counts once. Broadcast: one's to each.
    """
    names = dict.fromkeys(state.name for states in written for state in states)
    dealt = [_deal(name, written, parallelism) for name in names]
    return tuple(tuple(shares[partition] for shares in dealt) for partition in range(parallelism))


def mode_of(name: str, states: Iterable[OperatorStateInfo | OperatorStateItems]) -> str:
    """The one mode in which all partitions have written a state."""
    modes = dict.fromkeys(state.mode for state in states if state.name == name)
    if len(modes) > 1:
        raise OperatorStateModesError(name, list(modes))
    return next(iter(modes))


def _deal(
    name: str, written: Sequence[Sequence[OperatorStateItems]], parallelism: int
) -> list[OperatorStateItems]:
    holders = {
        partition: state
        for partition, states in enumerate(written)
        for state in states
        if state.name == name
    }
    mode = mode_of(name, holders.values())
    if mode == SPLIT:
        return [
            OperatorStateItems(name, SPLIT, items)
            for items in _split(holders, len(written), parallelism)
        ]
    items = _union(holders.values()) if mode == UNION else next(iter(holders.values())).items
    return [OperatorStateItems(name, mode, items, inherited=mode == UNION)] * parallelism


def _split(holders: dict[int, OperatorStateItems], former: int, parallelism: int) -> list[Items]:
    if parallelism == former:
        nothing = OperatorStateItems("", SPLIT, ())
        return [holders.get(partition, nothing).items for partition in range(parallelism)]
    items = tuple(chain.from_iterable(state.items for state in holders.values()))
    return [items[partition::parallelism] for partition in range(parallelism)]


def _union(states: Iterable[OperatorStateItems]) -> Items:
    """Of copies that were inherited, the first stands for all."""
    items: list[bytes] = []
    copied = False
    for state in states:
        if not (state.inherited and copied):
            items += state.items
        copied |= state.inherited
    return tuple(items)


def bytes_of_largest(written: Sequence[Sequence[OperatorStateInfo]], parallelism: int) -> int:
    """About how many bytes of operator state a new partition gets, without reading any."""
    states = list(chain.from_iterable(written))
    total = 0
    for name in dict.fromkeys(state.name for state in states):
        holders = [state for state in states if state.name == name]
        mode = mode_of(name, holders)
        if mode == BROADCAST:
            total += holders[0].bytes
        elif mode == UNION:
            inherited = [state.bytes for state in holders if state.inherited][:1]
            total += sum(inherited) + sum(s.bytes for s in holders if not s.inherited)
        else:
            total += sum(state.bytes for state in holders) // parallelism
    return total
