"""Many handles of one operator as columns of JSON, which is how metadata holds them.

A checkpoint refers to thousands of files whose descriptions differ in little. Written field by
field, equal and similar values stand next to each other, and zstd reduces them to what is random:
ids and checksums. The fields are those of a handle's description and are checked by the same code.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import islice
from operator import attrgetter
from typing import Any

from sparkckpt.fields import Fields
from sparkckpt.format.handle import (
    FamilyFiles,
    StateFileRef,
    StateHandle,
    camel_case,
    family_from,
    handle_from,
    max_parallelism_of,
)

_SHARED = ("operator_id", "operator_name", "keyed", "parallelism", "max_parallelism")
"""What the handles of an operator agree in: it stands once, not in a column."""


def _columns_of(kind: Any, *without: str) -> Mapping[str, str]:
    """Attribute to column."""
    names = (field.name for field in fields(kind) if field.name not in without)
    return {name: camel_case(name) for name in names}


_HANDLE = _columns_of(StateHandle, *_SHARED, "families", "operator_state")
_FAMILY = _columns_of(FamilyFiles, "files")
_FILE = _columns_of(StateFileRef)


def to_columns(handles: Sequence[StateHandle]) -> dict[str, Any]:
    """The tables `handles`, `families` and `files`; a row counts the rows of the next it owns."""
    families = [family for handle in handles for family in handle.families]
    files = [file for family in families for file in family.files]
    return {
        "handles": _table(handles, _HANDLE) | {"families": [len(h.families) for h in handles]},
        "families": _table(families, _FAMILY) | {"files": [len(f.files) for f in families]},
        "files": _table(files, _FILE),
    }


def from_columns(operator: Fields) -> Iterator[StateHandle]:
    """The handles in the tables of an operator, which has their shared fields too."""
    max_parallelism = max_parallelism_of(operator)
    shared = operator.pick([camel_case(name) for name in _SHARED])
    handles, families, files = (
        operator.object(name, f"the table {name!r}") for name in ("handles", "families", "files")
    )
    file_rows = _rows(files, _FILE)
    family_rows = _rows(families, _FAMILY)
    files_of = iter(_counts(families, "files", len(family_rows), len(file_rows)))
    handle_rows = _rows(handles, _HANDLE)
    families_of = _counts(handles, "families", len(handle_rows), len(family_rows))
    next_file, next_family = iter(file_rows), iter(family_rows)
    for row, count in zip(handle_rows, families_of, strict=True):
        yield handle_from(
            Fields({**shared, **_named(row, _HANDLE)}, "a handle", operator.where),
            [
                family_from(
                    Fields(_named(family, _FAMILY), "a family", operator.where),
                    islice(next_file, next(files_of)),
                    max_parallelism,
                )
                for family in islice(next_family, count)
            ],
        )


def _table(rows: Sequence[object], columns: Mapping[str, str]) -> dict[str, Sequence[object]]:
    values = zip(*map(attrgetter(*columns), rows), strict=True) if rows else [()] * len(columns)
    return dict(zip(columns.values(), values, strict=True))


def _rows(table: Fields, columns: Mapping[str, str]) -> list[tuple[Any, ...]]:
    values = [table.array(name) for name in columns.values()]
    table.require(len({len(column) for column in values}) == 1, "the columns differ in length")
    return list(zip(*values, strict=True))


def _counts(table: Fields, name: str, rows: int, total: int) -> list[int]:
    counts = table.integers(name)
    table.require(len(counts) == rows, "the columns differ in length")
    table.require(sum(counts) == total, f"'{name}' counts {sum(counts)}, but there are {total}")
    return counts


def _named(row: Sequence[Any], columns: Mapping[str, str]) -> dict[str, Any]:
    return dict(zip(columns.values(), row, strict=True))
