"""Parts of state files by key groups: what a partition gets when others have written the state.

Pure, the Python twin of `Slices.scala`. A slice is a reference to a file whose span says which rows
count; no file is opened or rewritten. It must never give a row to two partitions, nor change the
order in which the changes of one key apply.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from sparkckpt.format.handle import FamilyFiles, StateFileRef, StateHandle
from sparkckpt.keygroups import KeyGroupRange


def clip(file: StateFileRef, key_groups: KeyGroupRange) -> StateFileRef | None:
    """The file with only the rows of these key groups, or None if it can have none."""
    both = file.key_groups.clip_to(key_groups) if file.rows else None
    if both is None or both == file.key_groups:
        return file if both else None
    return replace(file, first_key_group=both.first, last_key_group=both.last)


def slices_of(handles: Iterable[StateHandle], key_groups: KeyGroupRange) -> tuple[FamilyFiles, ...]:
    """The file lists of a store that owns these key groups, from the handles that had them.

    The handles are those of one version of a store. Their ranges do not overlap, so that any order
    is right that keeps the order of each; by versions, it reads as one history.
    """
    lists: dict[str, list[FamilyFiles]] = {}
    for handle in handles:
        both = handle.key_groups.clip_to(key_groups)
        if both is None:
            continue
        for family in handle.families:
            files = tuple(clipped for file in family.files if (clipped := clip(file, both)))
            if files:
                lists.setdefault(family.family, []).append(replace(family, files=files))
    return tuple(map(_merge, lists.values()))


def _merge(lists: Sequence[FamilyFiles]) -> FamilyFiles:
    """One list of several; then none of the files holds the family's whole state any more."""
    if len(lists) == 1:
        return lists[0]
    files = (replace(file, base=False) for family in lists for file in family.files)
    return replace(lists[0], files=tuple(sorted(files, key=lambda file: file.last_version)))
