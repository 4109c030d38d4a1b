"""The layout of a state as it is before it is edited.

The newest file of a state tells it; of a state that has no file yet, Spark's own note of its schema
does.
"""

import json

from sparkckpt.editing.layout import STRUCT, Layout
from sparkckpt.editing.schemas import noted_schemas
from sparkckpt.editing.types import arrow_type
from sparkckpt.errors import UneditableStateError, UnknownTypeError
from sparkckpt.format import StateFamily
from sparkckpt.tables.reader import OperatorStateReader
from sparkckpt.tables.scan import FamilyState
from sparkckpt.tables.shapes import LIST, StateName

_COUNTER = "$rowCounter_"


def layout_of(reader: OperatorStateReader, name: StateName) -> Layout:
    """The layout of a state of the operator."""
    snapshot, operator = reader.snapshot, reader.operator
    table = reader.table(name.name)
    variables = snapshot.variables(operator.operator_id)
    found = FamilyState.of(snapshot.state, operator, name.store, name.family)
    if found.handles:
        types = found.types
        return Layout.of(found.footer, types["key"], types["value"], table, variables)
    family = _noted(reader, name)
    what = f"the state {name.name!r} of operator {operator.operator_id}"
    if family is None:
        why = "it is empty, and Spark has not noted its schema yet"
        instead = "Take a savepoint once the query has run a batch with rows."
        raise UneditableStateError(what, "Editing", why, instead)
    try:
        key, value = (
            arrow_type(json.loads(schema)) for schema in (family.key_schema, family.value_schema)
        )
    except UnknownTypeError as error:
        why = "it is empty, and has a type that Arrow cannot hold as Spark does"
        instead = "Take a savepoint once the query has put rows into it."
        raise UneditableStateError(what, "Editing", why, instead) from error
    return Layout.of(family, key, value, table, variables)


def counter_of(reader: OperatorStateReader, name: StateName) -> StateFamily | None:
    """The family in which Spark counts the items of a list, if there is one."""
    if name.kind != LIST:
        return None
    counter = StateName(f"{_COUNTER}{name.name}", name.kind, name.store, _COUNTER + name.family)
    snapshot, operator = reader.snapshot, reader.operator
    found = FamilyState.of(snapshot.state, operator, name.store, counter.family)
    return found.footer if found.handles else _noted(reader, counter, multi_valued=False)


def _noted(
    reader: OperatorStateReader, name: StateName, multi_valued: bool | None = None
) -> StateFamily | None:
    operator = reader.operator
    states = reader.snapshot.metadata.master_states
    noted = noted_schemas(states, operator.operator_id, name.store).get(name.family)
    if noted is None:
        return None
    return StateFamily(
        operator.operator_id,
        name.store,
        name.family,
        name.kind == LIST if multi_valued is None else multi_valued,
        operator.max_parallelism,
        noted.key,
        noted.value,
        STRUCT,
        STRUCT,
    )
