"""Rows on their way to the parts of a savepoint that their keys belong to.

Edited rows may have other keys, or come in any order: each goes to a file of its part in a
temporary directory, and a part is read whole when it is written. So what is held in memory is one
part for each thread.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from sparkckpt.keygroups import KeyGroupRange


class Shuffle:
    """The rows of one state, by part; `ranges` are the key groups of each, ascending."""

    def __init__(self, directory: Path, ranges: Sequence[KeyGroupRange], schema: pa.Schema) -> None:
        directory.mkdir()
        self._directory = directory
        self._ranges = [one for one in ranges if len(one)]
        self._firsts = np.array([one.first for one in self._ranges])
        self._schema = schema

    def fill(self, tables: Iterable[pa.Table]) -> None:
        """Takes all rows."""
        writers: dict[int, pa.ipc.RecordBatchStreamWriter] = {}
        try:
            for rows in tables:
                parts = np.searchsorted(self._firsts, rows["kg"].to_numpy(), side="right") - 1
                for part in np.unique(parts).tolist():
                    if part not in writers:
                        path = str(self._path(self._ranges[part]))
                        writers[part] = pa.ipc.new_stream(path, self._schema)
                    inside = rows.filter(pa.array(parts == part)).cast(self._schema)
                    writers[part].write_table(inside)
        finally:
            for writer in writers.values():
                writer.close()

    def rows(self, part: KeyGroupRange) -> pa.Table:
        """The rows of a part, in the order in which they came."""
        path = self._path(part)
        if not path.exists():
            return self._schema.empty_table()
        with pa.memory_map(str(path)) as source, pa.ipc.open_stream(source) as reader:
            return reader.read_all()

    def _path(self, part: KeyGroupRange) -> Path:
        return self._directory / f"{part.first}.arrows"
