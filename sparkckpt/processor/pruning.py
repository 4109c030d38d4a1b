"""Which columns Python needs for a fold: a wide row costs no more than what is folded of it."""

from collections.abc import Iterable, Sequence

from sparkckpt.processor.folds import Count, Edge, Extreme, Fold, Sum

_READ_ONE_COLUMN = (Count, Edge, Extreme, Sum)


def needed_columns(
    folds: Iterable[Fold], keys: Sequence[str], columns: Sequence[str]
) -> list[str] | None:
    """Of `columns`, in their order; None if all may be needed.

    A fold of the user's own is given the rows as they are, and may read any column. Where none is
    folded, as rows are only counted, one is sent all the same: the rows must have a length. That of
    a key is sent anyway.
    """
    folds = list(folds)
    if any(type(fold) not in _READ_ONE_COLUMN for fold in folds):
        return None
    read = {fold.column for fold in folds} - {None}
    if not read:
        read = {next((key for key in keys if key in columns), columns[0])}
    return [column for column in columns if column in read]
