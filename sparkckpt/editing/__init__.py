"""Savepoints with other state: edited, or made from tables.

`editor` is what a person holds; it notes steps (`steps`), which `merge` applies as it writes the
parts of a new savepoint, by way of `shuffle` where rows may move. `layout` turns files into tables
and back, `origin` finds the layout that a state has; `changes`, `columns` and `types` are about
its schema, `schemas` about what Spark has noted of it. `bootstrapping` is an edit of which only
tables are left. Nothing here may change what is edited.
"""

from sparkckpt.editing.bootstrapping import bootstrap
from sparkckpt.editing.editor import OperatorEditor, SavepointEditor, StateEditor, edit

__all__ = ["OperatorEditor", "SavepointEditor", "StateEditor", "bootstrap", "edit"]
