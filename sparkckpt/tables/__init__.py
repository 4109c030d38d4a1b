"""State as tables: what a checkpoint holds, to look at, to look up and to compare.

`reader` leads from a path to the states of operators, `table` reads one; `shapes` knows what
column families mean, `scan` and `unsaferow` turn files into typed rows, `keys` finds one key, and
`snapshot` chooses the checkpoint and keeps its files. `difference` compares two. Nothing here may
write state, or be needed to run a query.
"""

from sparkckpt.tables.difference import StateDiff, diff
from sparkckpt.tables.reader import OperatorStateReader, StateReader, state
from sparkckpt.tables.table import StateTable

__all__ = ["OperatorStateReader", "StateDiff", "StateReader", "StateTable", "diff", "state"]
