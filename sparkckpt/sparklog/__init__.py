"""Spark's own checkpoint directory.

`offsets`, `commits` and `operators` parse the bytes of its files, `edits` changes such bytes, and
`checkpoint` finds the files. Formats are those of Spark 4.2 and 4.3. Nothing here may write a file,
or know one of ours.
"""

from sparkckpt.sparklog.checkpoint import MasterState, SparkCheckpoint, commits_path, offsets_path
from sparkckpt.sparklog.commits import CommitEntry, parse_commit
from sparkckpt.sparklog.offsets import OffsetEntry, parse_offsets
from sparkckpt.sparklog.operators import OperatorEntry, StoreEntry, parse_operator

__all__ = [
    "CommitEntry",
    "MasterState",
    "OffsetEntry",
    "OperatorEntry",
    "SparkCheckpoint",
    "StoreEntry",
    "commits_path",
    "offsets_path",
    "parse_commit",
    "parse_offsets",
    "parse_operator",
]
