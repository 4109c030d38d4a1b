"""Spark's own files with something in them changed: as bytes, which others write.

A restored query goes on from files that Spark has written, with another parallelism, other ids of
state and other operator ids in them. Whatever is not meant to change stays byte for byte.
"""

import json
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence

from sparkckpt.errors import CorruptStateError
from sparkckpt.sparklog.commits import NEWEST_VERSION as NEWEST_COMMIT
from sparkckpt.sparklog.lines import versioned_lines
from sparkckpt.sparklog.offsets import NEWEST_VERSION as NEWEST_OFFSETS
from sparkckpt.sparklog.operators import NEWEST_VERSION as NEWEST_OPERATOR
from sparkckpt.sparklog.operators import relative_schema_path
from sparkckpt.sparklog.spans import Span, compact, elements, members, replaced, with_member

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"
"""The parallelism of keyed operators; Spark takes it from the newest entry of its offset log."""

StateIds = Mapping[int, Sequence[Sequence[str]]]


def offsets_with_conf(data: bytes, where: str, name: str, value: str) -> bytes:
    """An entry of the offset log with another value of a setting."""
    versioned_lines(data, where, NEWEST_OFFSETS)
    start = _body(data)
    text = data.decode()

    def changed() -> str:
        end = text.find("\n", start)
        conf = members(text[:end] if end >= 0 else text, start)["conf"]
        return with_member(text, conf.start, name, value)

    return _edit(changed, where)


def commit_with_ids(data: bytes, where: str, state_ids: StateIds) -> bytes:
    """An entry of the commit log that names other state."""
    version, _ = versioned_lines(data, where, NEWEST_COMMIT)
    if version < 2:
        raise CorruptStateError(where, f"it has version {version}, which cannot name state")
    ids = {str(operator): list(map(list, stores)) for operator, stores in state_ids.items()}
    return _edit(lambda: with_member(data.decode(), _body(data), "stateUniqueIds", ids), where)


def moved_operator(
    data: bytes, where: str, operator_id: int, partitions: int, directory: str
) -> bytes:
    """The metadata of an operator under another id; `directory` is the URL of its new one."""
    version, _ = versioned_lines(data, where, NEWEST_OPERATOR)
    text = data.decode()

    def changed() -> str:
        root = members(text, _body(data))
        values: dict[Span, object] = {
            members(text, root["operatorInfo"].start)["operatorId"]: operator_id
        }
        for store in elements(text, root["stateStoreInfo"].start):
            fields = members(text, store.start)
            values[fields["numPartitions"]] = partitions
            if version > 1:
                paths = fields["stateSchemaFilePaths"]
                values |= _moved_paths(text, elements(text, paths.start), directory)
        return replaced(text, values)

    return _edit(changed, where)


def _moved_paths(text: str, paths: Iterable[Span], directory: str) -> dict[Span, object]:
    return {
        path: f"{directory}/{relative_schema_path(json.loads(text[path.start : path.end]))}"
        for path in paths
    }


def new_operator(
    operator_id: int,
    name: str,
    stores: Sequence[str],
    partitions: int,
    properties: Mapping[str, object] | None = None,
) -> bytes:
    """The metadata of an operator that has never run: of version 2 if it has properties.

    Spark goes on only with operators that have metadata. It names no schemas: Spark writes them.
    """
    version_2 = properties is not None
    schemas: dict[str, object] = {"stateSchemaFilePaths": []} if version_2 else {}
    entry: dict[str, object] = {
        "operatorInfo": {"operatorId": operator_id, "operatorName": name},
        "stateStoreInfo": [
            {"storeName": store, "numColsPrefixKey": 0, "numPartitions": partitions, **schemas}
            for store in stores
        ],
    }
    if version_2:
        entry["operatorPropertiesJson"] = compact(properties)
    return f"v{2 if version_2 else 1}\n{compact(entry)}".encode()


def new_query(query_id: uuid.UUID | str) -> bytes:
    """The file `metadata` of a query."""
    return compact({"id": str(query_id)}).encode()


def _body(data: bytes) -> int:
    """Where the line after the version begins, in characters: what precedes it is ASCII."""
    return data.find(b"\n") + 1


def _edit(changed: Callable[[], str], where: str) -> bytes:
    try:
        return changed().encode()
    except (ValueError, KeyError, RecursionError) as error:
        raise CorruptStateError(where, f"it cannot be changed: {error!r}") from error
