"""Entries of Spark's commit log for state that is kept otherwise than before.

Version 1 of an entry goes with state without ids, version 2 with state that has them; version 3,
which also tells of sinks, with either.
"""

import json

from sparkckpt.sparklog.commits import NEWEST_VERSION
from sparkckpt.sparklog.edits import StateIds, commit_with_ids
from sparkckpt.sparklog.lines import json_object, versioned_lines
from sparkckpt.sparklog.spans import compact

_STATE_IDS = "stateUniqueIds"


def commit_with_state(data: bytes, where: str, state_ids: StateIds | None) -> bytes:
    """The entry for state with these ids, or for state without ids."""
    version, lines = versioned_lines(data, where, NEWEST_VERSION)
    if state_ids is not None:
        return commit_with_ids(_as_version(data, max(version, 2)), where, state_ids)
    line = lines[0] if lines else "{}"
    json_object(line, "its entry", where)
    entry = {name: value for name, value in json.loads(line).items() if name != _STATE_IDS}
    return _as_version(f"v{version}\n{compact(entry)}".encode(), 3 if version == 3 else 1)


def _as_version(data: bytes, version: int) -> bytes:
    _, _, rest = data.partition(b"\n")
    return b"v%d\n%s" % (version, rest or b"{}")
