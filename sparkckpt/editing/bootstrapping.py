"""A savepoint of a query's first state, made from tables.

What a savepoint says besides state (where sources stand, which operators there are and what schemas
Spark has noted of them) only the query itself can say: it comes from a checkpoint of it that has
run, if only over an empty source. Of the state there nothing is taken over.
"""

from collections.abc import Mapping
from typing import Any

from sparkckpt.checkpoints.directory import Location
from sparkckpt.editing.editor import edit
from sparkckpt.savepoints.merging import Progress
from sparkckpt.savepoints.take import SavepointReport

StateId = str | tuple[int, str]
"""The name of a state, with its operator before it where there are several."""


def bootstrap(
    target: Location,
    states: Mapping[StateId, Any],
    *,
    like: Location,
    checkpoint_id: int | None = None,
    name: str | None = None,
    progress: Progress | None = None,
) -> SavepointReport:
    """Makes a savepoint in the new directory `target` whose only state is that in `states`.

    Each is an Arrow table or stream, a pandas or a Spark DataFrame, with the columns that
    `sparkckpt.edit(like).operator(...).state(...).schema` shows. `like` is a savepoint or a
    checkpoint of the same query, which tells all but the state.
    """
    editor = edit(like, checkpoint_id)
    for operator_id in editor.operator_ids:
        editor.operator(operator_id).drop()
    for state_id, data in states.items():
        operator, state = (None, state_id) if isinstance(state_id, str) else state_id
        editor.operator(operator).state(state).replace(data)
    return editor.write(target, name=name, progress=progress)
