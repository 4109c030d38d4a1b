"""The state of a column family, out of the files that a handle lists.

Files are read side by side, some key groups at a time, so that state of any size passes through in
bounded memory: what is held is a few record batches of each file. It must never decide which files
make up a version; that is what the handle says.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparkckpt.errors import CorruptStateError, UnknownFamilyError
from sparkckpt.format.handle import DEFAULT_NAME, StateFileRef, StateHandle
from sparkckpt.format.resolve import DELETE, align, resolve
from sparkckpt.format.statefile import BatchIndex, StateFamily, StateFile
from sparkckpt.keygroups import KeyGroupRange
from sparkckpt.storage import Storage

ROWS_AT_ONCE = 1 << 17


def read_state(
    storage: Storage,
    handle: StateHandle,
    family: str = DEFAULT_NAME,
    key_groups: KeyGroupRange | None = None,
) -> pa.Table:
    """The state of a column family in a handle's version, of its key groups or some of them."""
    stream = StateStream.open(storage, handle, family, key_groups)
    return pa.concat_tables([stream.schema.empty_table(), *stream]).combine_chunks()


class StateStream:
    """The state of a column family, in tables of ascending key groups; iterated once.

    Each table has the form of a base (PROTOCOL.md section 4) and holds its key groups whole.
    """

    def __init__(
        self, files: Sequence["_FileRows"], newest: StateFile, rows_at_once: int = ROWS_AT_ONCE
    ) -> None:
        self.family: StateFamily = newest.metadata.family
        self.schema: pa.Schema = newest.schema.remove_metadata()
        self._files = files
        self._rows_at_once = rows_at_once

    @classmethod
    def open(
        cls,
        storage: Storage,
        handle: StateHandle,
        family: str = DEFAULT_NAME,
        key_groups: KeyGroupRange | None = None,
        rows_at_once: int = ROWS_AT_ONCE,
    ) -> "StateStream":
        """The family in a handle's version; `storage` is at the state root."""
        refs = handle.files_of(family)
        if not refs:
            names = [known.family for known in handle.families]
            raise UnknownFamilyError(storage.where(handle.path), family, names)
        wanted = handle.key_groups if key_groups is None else handle.key_groups.clip_to(key_groups)
        opened = []
        for ref in refs:
            inside = wanted and ref.rows > 0 and ref.key_groups.clip_to(wanted)
            if inside or ref is refs[-1]:
                file = StateFile.open(storage, ref)
                _check_family(file, handle, family)
                opened.append((file, inside or None))
        files = [_FileRows(file, inside) for file, inside in opened if inside]
        return cls(files, opened[-1][0], rows_at_once)

    def __iter__(self) -> Iterator[pa.Table]:
        while (border := self._border()) is not None:
            taken = [(file, file.take_to(border)) for file in self._files]
            filled = [(file, table) for file, table in taken if table.num_rows]
            if len(filled) == 1 and (filled[0][0].ref.base or not self.family.multi_valued):
                # A base is the state already; and changes are, but for the deletes, where each key
                # has one at most.
                rows = align(filled[0][1], self.schema)
                deletes = pc.equal(rows["op"], DELETE)
                yield rows.filter(pc.invert(deletes)) if pc.any(deletes).as_py() else rows
            elif filled:
                tables = [*(table for _, table in filled), self.schema.empty_table()]
                yield resolve(tables, single_valued=not self.family.multi_valued)

    def _border(self) -> int | None:
        """The last key group of the next table: where the file with most left has had its share."""
        rests = [file.rest for file in self._files]
        if not any(rests):
            return None
        longest = rests.index(max(rests))
        return self._files[longest].border(self._rows_at_once * rests[longest] // sum(rests))


class _FileRows:
    """The rows of a file in some key groups, that are taken in their order."""

    def __init__(self, file: StateFile, key_groups: KeyGroupRange) -> None:
        self.ref: StateFileRef = file.ref
        self._file = file
        self._key_groups = key_groups
        self._batches = [b for b in file.batches if b.key_groups.overlaps(key_groups)]
        self._next = 0
        self._held: pa.Table = file.schema.empty_table()
        self.rest = sum(batch.rows for batch in self._batches)
        """The rows that are left, or some more: at the ends batches have rows of other groups."""

    def border(self, rows: int) -> int:
        """The key group with which so many rows have been taken, or nearly so: that ends a record
        batch, where it is not the last one."""
        ahead = self._held.num_rows
        for batch in self._batches[self._next :]:
            ahead += batch.rows
            if ahead >= rows:
                return min(batch.last_key_group, self._key_groups.last)
        return self._key_groups.last

    def take_to(self, key_group: int) -> pa.Table:
        """The next rows, up to the last one of this key group."""
        first = self._next
        while (
            self._next < len(self._batches)
            and self._batches[self._next].first_key_group <= key_group
        ):
            self._next += 1
        wanted = self._batches[first : self._next]
        read = zip(wanted, self._file.read_batches(wanted), strict=True)
        parts = [self._held, *(self._inside(batch, rows) for batch, rows in read)]
        rows = pa.concat_tables(parts).combine_chunks()
        end = int(np.searchsorted(rows["kg"].to_numpy(), np.uint16(key_group), side="right"))
        self._held = rows.slice(end)
        self.rest = self._held.num_rows + sum(b.rows for b in self._batches[self._next :])
        return rows.slice(0, end)

    def _inside(self, batch: BatchIndex, read: pa.RecordBatch) -> pa.Table:
        rows = pa.Table.from_batches([read], self._file.schema)
        inside = self._key_groups
        if batch.key_groups.clip_to(inside) == batch.key_groups:
            return rows
        key_groups = rows["kg"].to_numpy()
        first = int(np.searchsorted(key_groups, np.uint16(inside.first), side="left"))
        last = int(np.searchsorted(key_groups, np.uint16(inside.last), side="right"))
        return rows.slice(first, last - first)


def _check_family(file: StateFile, handle: StateHandle, family: str) -> None:
    found = file.metadata.family
    if (found.family, found.max_parallelism) != (family, handle.max_parallelism):
        raise CorruptStateError(
            file.where,
            f"it holds the column family {found.family!r} in {found.max_parallelism} key groups, "
            f"but {handle.path} takes it for {family!r} in {handle.max_parallelism}",
        )
