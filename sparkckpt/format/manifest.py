"""Manifests: all stores of a checkpoint under one id, which `commits/<batch>` may name.

A restore or rescale writes one, in the bytes of a checkpoint's metadata, and has Spark's commit log
name it in place of every store's own id. Here is where they lie and how they are read and written.
Nothing here may look at state, or decide which partition gets what of it.
"""

import re
import uuid

from sparkckpt.errors import CorruptStateError
from sparkckpt.format.metadata import (
    CheckpointMetadata,
    metadata_path,
    read_metadata,
    write_metadata,
)
from sparkckpt.sparklog import CommitEntry, commits_path, parse_commit
from sparkckpt.storage import Storage

MANIFESTS = "_sparkckpt/manifests"
"""Where they lie, relative to the checkpoint directory."""

_PREFIX = "manifest-"
_UUID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_ID = re.compile(_PREFIX + _UUID)


def is_manifest(manifest_id: str | None) -> bool:
    """Whether an id in the commit log, or the base of a handle, names a manifest."""
    return manifest_id is not None and _ID.fullmatch(manifest_id) is not None


def new_manifest_id() -> str:
    return _PREFIX + str(uuid.uuid4())


def manifest_path(manifest_id: str) -> str:
    """Where a manifest lies, relative to the checkpoint directory."""
    if not is_manifest(manifest_id):
        raise ValueError(f"{manifest_id!r} is no id of a manifest")
    return f"{MANIFESTS}/{manifest_id}"


def named_manifest(entry: CommitEntry, where: str) -> str | None:
    """The manifest that an entry of the commit log names, for all stores of all operators."""
    ids = {
        store_id
        for partitions in entry.state_ids.values()
        for stores in partitions
        for store_id in stores
    }
    manifests = sorted(filter(is_manifest, ids))
    if manifests and len(ids) > 1:
        raise CorruptStateError(where, f"besides {manifests[0]} it names other ids")
    return manifests[0] if manifests else None


def manifest_of(metadata: CheckpointMetadata) -> str | None:
    """The manifest that the commit of a checkpoint's batch names, if it was restored or rescaled.

    Its handles are then those of another parallelism, or of another directory: what they say is
    the state, but files with their names need not exist.
    """
    path = commits_path(metadata.batch_id)
    where = f"{path} in {metadata_path(metadata.checkpoint_id)}"
    commits = [state.content for state in metadata.master_states if state.path == path]
    if not commits:
        return None
    return named_manifest(parse_commit(commits[0], where, metadata.batch_id), where)


def load_manifest(storage: Storage, manifest_id: str) -> CheckpointMetadata:
    """What a manifest says; `storage` is at the checkpoint directory."""
    path = manifest_path(manifest_id)
    return read_metadata(storage.read_all(path), storage.where(path))


def store_manifest(storage: Storage, manifest_id: str, metadata: CheckpointMetadata) -> None:
    """Creates a manifest, whole or not at all; `storage` is at the checkpoint directory."""
    storage.write_atomic(manifest_path(manifest_id), write_metadata(metadata))
