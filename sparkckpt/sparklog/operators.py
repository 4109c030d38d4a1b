"""Spark's metadata of a stateful operator: its name, its stores and where their schemas lie.

Operators with version 1 have one file for all time, and schemas below partition 0. Those with
version 2 get a file at each start of the query, named after the batch, which lists the paths of
their schemas.
"""

from dataclasses import dataclass

from sparkckpt.fields import Fields
from sparkckpt.sparklog.lines import json_object, versioned_lines

NEWEST_VERSION = 2
_DEFAULT_STORE = "default"
_SCHEMAS = "_stateSchema"


@dataclass(frozen=True)
class StoreEntry:
    """A state store of an operator; `schema_paths` are relative to the operator's directory."""

    name: str
    partitions: int
    schema_paths: tuple[str, ...]


@dataclass(frozen=True)
class OperatorEntry:
    """`state/<operator>/_metadata/metadata` or `state/<operator>/_metadata/v2/<batch>`."""

    operator_id: int
    operator_name: str
    stores: tuple[StoreEntry, ...]


def parse_operator(data: bytes, where: str) -> OperatorEntry:
    """The operator that these bytes describe; `where` names them in messages."""
    version, lines = versioned_lines(data, where, NEWEST_VERSION)
    entry = json_object("\n".join(lines), "its entry", where)
    operator = entry.object("operatorInfo", "its operatorInfo")
    stores = entry.objects("stateStoreInfo", "a store")
    return OperatorEntry(
        operator.integer("operatorId"),
        operator.text("operatorName"),
        tuple(_store_from(store, version) for store in stores),
    )


def _store_from(fields: Fields, version: int) -> StoreEntry:
    name = fields.text("storeName")
    if version == 1:
        directory = "0" if name == _DEFAULT_STORE else f"0/{name}"
        schemas = [f"{directory}/_metadata/schema"]
    else:
        schemas = [_relative(fields, path) for path in fields.array("stateSchemaFilePaths")]
    return StoreEntry(name, fields.integer("numPartitions", 1), tuple(schemas))


def _relative(fields: Fields, path: object) -> str:
    try:
        return relative_schema_path(str(path) if isinstance(path, str) else "")
    except ValueError as error:
        raise fields.corrupt(f"in {fields.what} {path!r} is no path of a schema") from error


def relative_schema_path(path: str) -> str:
    """The path of a schema relative to its operator's directory; ValueError if it is none.

    Spark notes absolute paths, which are wrong once the checkpoint has been moved.
    """
    before, found, after = path.rpartition(f"/{_SCHEMAS}/")
    if not (found and before and after):
        raise ValueError(f"{path!r} is no path of a schema")
    return f"{_SCHEMAS}/{after}"
