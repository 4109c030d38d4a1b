"""How long manifests are kept: as long as Spark's commit log names them.

A checkpoint whose batch was committed with a manifest has all that the manifest says in its own
metadata. So only the commit log needs the file.
"""

import re

from sparkckpt.coordinator.committed import CommittedState
from sparkckpt.errors import SparkckptError
from sparkckpt.format.manifest import MANIFESTS, is_manifest, load_manifest
from sparkckpt.storage import Storage

_TEMPORARY = re.compile(r"\.(.+)\.[0-9a-f-]{36}\.tmp")


def orphaned_manifests(storage: Storage, committed: CommittedState) -> dict[str, int]:
    """The manifests that the commit log does not name, with sizes; paths as in `storage`.

    Only who owns the checkpoint directory may ask: whoever restores writes the manifest first, and
    then has the commit log name it. `storage` is at the checkpoint directory.
    """
    found = storage.find(MANIFESTS)
    batches = committed.batches() if found else []
    return {
        path: size
        for path, size in found.items()
        if _is_orphaned(path.rpartition("/")[2], storage, committed, batches)
    }


def _is_orphaned(
    name: str, storage: Storage, committed: CommittedState, batches: list[int]
) -> bool:
    temporary = _TEMPORARY.fullmatch(name)
    if temporary is not None:
        return is_manifest(temporary[1])
    if not is_manifest(name) or not batches:
        return False
    try:
        batch_id = load_manifest(storage, name).batch_id
        if batch_id in batches:
            return committed.manifest_id(batch_id) != name
    except SparkckptError:
        # It cannot be told what it is for: it is damaged, or of a newer format.
        return False
    return batch_id < batches[0]
