"""Spark's files with the schemas of state, for state whose schema was edited.

Spark compares them with the query's schemas when it starts. Where it has noted several versions of
a family's schema, all of them become the new one: no row of an older version is left.
"""

from collections.abc import Sequence
from dataclasses import replace

from sparkckpt.format import MasterState, StateFamily
from sparkckpt.sparklog import parse_operator
from sparkckpt.sparklog.schemas import FamilySchema, parse_schemas, with_schemas


def schema_paths(states: Sequence[MasterState], operator_id: int, store: str) -> list[str]:
    """The files with the schemas of a store, the newest last."""
    directory = f"state/{operator_id}"
    for state in states:
        if state.path.startswith(f"{directory}/_metadata/"):
            operator = parse_operator(state.content, state.path)
            return [
                f"{directory}/{path}"
                for entry in operator.stores
                if entry.name == store
                for path in entry.schema_paths
            ]
    return []


def noted_schemas(
    states: Sequence[MasterState], operator_id: int, store: str
) -> dict[str, FamilySchema]:
    """The newest schemas that Spark has noted of a store, by column family."""
    contents = {state.path: state.content for state in states}
    found: dict[str, FamilySchema] = {}
    for path in schema_paths(states, operator_id, store):
        if path in contents:
            found |= parse_schemas(contents[path], path)
    return found


def revised_schemas(
    states: Sequence[MasterState], families: Sequence[StateFamily]
) -> list[MasterState]:
    """The files, with these families' schemas in place of those that Spark had noted."""
    changes: dict[str, dict[str, tuple[str, str]]] = {}
    for family in families:
        for path in schema_paths(states, family.operator_id, family.store_name):
            schemas = (family.key_schema, family.value_schema)
            changes.setdefault(path, {})[family.family] = schemas
    return [
        replace(state, content=with_schemas(state.content, state.path, changes[state.path]))
        if state.path in changes
        else state
        for state in states
    ]
