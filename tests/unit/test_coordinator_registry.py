"""The registry against a model: it frees what nobody needs any more, at once, and nothing else."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkckpt.coordinator import Holder, SharedStateRegistry

HOLDERS = [
    Holder.checkpoint(1),
    Holder.checkpoint(2),
    Holder.live(1),
    Holder.pin("1"),
    Holder.claimed_pin("1"),
]
FOREIGN = ("file:///other/state/e", "s3a://bucket/state/f")
FILES = ("a", "b", "c", "d", *FOREIGN)
STEP = st.tuples(st.sampled_from(HOLDERS), st.lists(st.sampled_from(FILES), max_size=8))


@settings(max_examples=200)
@given(st.lists(STEP, max_size=40))
def test_frees_exactly_what_nobody_needs(steps: list[tuple[Holder, list[str]]]) -> None:
    registry = SharedStateRegistry()
    model: dict[Holder, set[str]] = {}
    for holder, paths in steps:
        if holder in model:
            needed_before = set().union(*model.values())
            del model[holder]
            freed = registry.release(holder)
            assert len(freed) == len(set(freed))
            assert set(freed) == needed_before - set().union(*model.values())
        else:
            model[holder] = set(paths)
            registry.register(holder, paths)
        needed = set().union(*model.values())
        assert {path for path in FILES if path in registry} == needed
        assert registry.foreign == needed & set(FOREIGN)
        assert len(registry) == len(needed)
        assert set(registry.holders) == set(model)
        assert all(set(registry.files_of(holder)) == files for holder, files in model.items())


def test_a_holder_is_registered_once() -> None:
    registry = SharedStateRegistry()
    registry.register(Holder.live(1), ["a"])
    with pytest.raises(ValueError, match="live 1 is registered already"):
        registry.register(Holder.live(1), ["b"])


def test_nothing_is_freed_by_a_holder_that_is_not_known() -> None:
    assert SharedStateRegistry().release(Holder.pin("x")) == []


def test_equal_paths_of_many_holders_are_kept_once() -> None:
    registry = SharedStateRegistry()
    for version in (1, 2):
        registry.register(Holder.live(version), ["".join(["0/0/", "1_a.delta.arrow"])])
    first, second = (registry.files_of(Holder.live(version))[0] for version in (1, 2))
    assert first is second
