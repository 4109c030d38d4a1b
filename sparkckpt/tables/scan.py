"""Rows of one column family of an operator, over all its partitions, resolved and typed.

What a version consists of is said by handles, and what files come to is worked out by `format`;
here the parts of all partitions get one schema, and bytes of Spark's own rows become values. It
must never hold more than a part of the state.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import pyarrow as pa

from sparkckpt.format.handle import FamilyFiles, StateHandle
from sparkckpt.format.metadata import OperatorState
from sparkckpt.format.reading import StateStream
from sparkckpt.format.resolve import resolve
from sparkckpt.format.statefile import UNSAFE_ROW, StateFamily, StateFile
from sparkckpt.keygroups import KeyGroupRange
from sparkckpt.storage import Storage
from sparkckpt.tables.unsaferow import decode_rows

SIDES = ("key", "value")


@dataclass(frozen=True)
class FamilyState:
    """A column family in all partitions of an operator; `storage` is at the state root."""

    storage: Storage
    family: str
    handles: tuple[StateHandle, ...]
    """Those that have files of the family, in the order of their key groups."""
    like: "FamilyState | None" = None
    """What has the types of this one, which has no file that could tell them."""

    @classmethod
    def of(
        cls, storage: Storage, operator: OperatorState, store: str, family: str
    ) -> "FamilyState":
        handles = [h for h in operator.handles if h.store_name == store and h.files_of(family)]
        return cls(storage, family, tuple(handles))

    @property
    def files(self) -> Iterator[FamilyFiles]:
        return (f for h in self.handles for f in h.families if f.family == self.family)

    @property
    def multi_valued(self) -> bool:
        return any(files.multi_valued for files in self.files)

    @property
    def rows(self) -> int:
        """The rows in all files: at least as many as there are in the state."""
        return sum(ref.rows for files in self.files for ref in files.files)

    @property
    def bytes(self) -> int:
        refs = {(r.path, r.offset): r.length for files in self.files for r in files.files}
        return sum(refs.values())

    @cached_property
    def _newest(self) -> StateFile:
        refs = (ref for files in self.files for ref in files.files)
        return StateFile.open(self.storage, max(refs, key=lambda ref: ref.last_version))

    @property
    def footer(self) -> StateFamily:
        """What the newest file says of the family."""
        return self._newest.metadata.family

    @cached_property
    def types(self) -> dict[str, pa.StructType]:
        """The types of key and value, whichever way they lie in files."""
        if not self.handles:
            return self.like.types if self.like else dict.fromkeys(SIDES, pa.struct([]))
        empty = self._typed(self._newest.schema.empty_table(), SIDES)
        return {side: empty.schema.field(side).type for side in SIDES}

    def tables(
        self, key_groups: Sequence[KeyGroupRange], sides: Sequence[str] = SIDES
    ) -> Iterator[pa.Table]:
        """The rows of these key groups, in the columns of a state file, but only those sides."""
        for handle in self.handles:
            schema = self._newest.schema.remove_metadata()
            for wanted in key_groups:
                inside = handle.key_groups.clip_to(wanted)
                if inside is None or not _has_any(handle, self.family, inside):
                    continue
                for rows in StateStream.open(self.storage, handle, self.family, inside):
                    if rows.schema != schema:
                        rows = resolve([rows, schema.empty_table()])
                    if rows.num_rows:
                        yield self._typed(rows, sides)

    def _typed(self, rows: pa.Table, sides: Sequence[str]) -> pa.Table:
        """The rows with typed sides, and without those that are not asked for."""
        footer = self.footer
        described = {
            "key": (footer.key_encoding, footer.key_schema),
            "value": (footer.value_encoding, footer.value_schema),
        }
        for side in SIDES:
            encoding, schema = described[side]
            index = rows.schema.get_field_index(side)
            if side not in sides:
                rows = rows.remove_column(index)
            elif encoding == UNSAFE_ROW:
                decoded = decode_rows(rows[side].combine_chunks(), schema, self._newest.where)
                rows = rows.set_column(index, side, decoded)
        return rows


def _has_any(handle: StateHandle, family: str, key_groups: KeyGroupRange) -> bool:
    return any(ref.rows and ref.key_groups.overlaps(key_groups) for ref in handle.files_of(family))
