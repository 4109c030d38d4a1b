"""What the metadata of checkpoints says, compared with itself: no file is read.

The format refuses metadata that contradicts itself in form. Here are the rules about what it means:
that it is the state which Spark has committed, and that a change set is the one of its handle.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from sparkckpt.checkpoints.problems import FILE_ERRORS, FileError
from sparkckpt.errors import CorruptStateError
from sparkckpt.format.handle import StateFileRef, StateHandle
from sparkckpt.format.manifest import is_manifest, named_manifest
from sparkckpt.format.metadata import CheckpointMetadata, metadata_path
from sparkckpt.sparklog import CommitEntry, commits_path, parse_commit


def inconsistencies(
    metadata: CheckpointMetadata, before: CheckpointMetadata | None, where: str
) -> Iterator[FileError]:
    """What is wrong with a checkpoint; `before` is the one that was completed before it."""
    try:
        whats = list(_of_commit(metadata))
    except FILE_ERRORS as error:
        yield error
        whats = []
    for handle in metadata.handles:
        whats += _of_handle(handle)
    if before is not None:
        whats += _of_chain(metadata, before)
    for what in whats:
        yield CorruptStateError(where, what)


def _of_commit(metadata: CheckpointMetadata) -> Iterator[str]:
    """Spark's own files must be readable, and its commit log must name these very handles, or a
    manifest in place of them."""
    _ = metadata.offsets
    path = commits_path(metadata.batch_id)
    where = f"{path} in {metadata_path(metadata.checkpoint_id)}"
    entry = parse_commit(metadata.master_state(path), where, metadata.batch_id)
    if named_manifest(entry, where) is not None:
        yield from _of_manifest(metadata, entry, path)
        return
    ids = {
        operator.operator_id: tuple(
            tuple(handle.id for handle in subtask.handles) for subtask in operator.subtasks
        )
        for operator in metadata.operator_states
    }
    if ids != dict(entry.state_ids):
        yield f"{path} names other handles than it has"


def _of_manifest(metadata: CheckpointMetadata, entry: CommitEntry, path: str) -> Iterator[str]:
    """The manifest stands for each partition of the parallelism it was written in, at least."""
    parallelism = {o.operator_id: o.parallelism for o in metadata.operator_states}
    if parallelism.keys() != entry.state_ids.keys():
        yield f"{path} names other operators than it has"
    for operator_id, partitions in entry.state_ids.items():
        if len(partitions) < parallelism.get(operator_id, 0):
            yield f"{path} names fewer partitions of operator {operator_id} than it has"


def _of_handle(handle: StateHandle) -> Iterator[str]:
    own: list[StateFileRef] = []
    for family in handle.families:
        if _applies_twice(family.files):
            yield f"{handle.path} applies a file twice in column family {family.family!r}"
        for file in family.files:
            if file.last_version > handle.version:
                yield f"{handle.path} has {file.path}, which is of version {file.last_version}"
            if file.level == 0 and file.last_version == handle.version:
                own.append(file)
    for file in own:
        key_groups = file.key_groups
        if file.rows and key_groups.clip_to(handle.key_groups) != key_groups:
            yield (
                f"{handle.path} has changes of the key groups {key_groups}, but owns "
                f"{handle.key_groups}"
            )
    rows = sum(file.rows for file in own)
    if rows != handle.changed_rows:
        yield f"{handle.path} has {rows} changed rows, and says {handle.changed_rows}"


def _applies_twice(files: Sequence[StateFileRef]) -> bool:
    """Slices of one file may stand in a list, if no key group is in two of them."""
    slices = sorted((f.path, f.offset, f.first_key_group, f.last_key_group) for f in files)
    return any(a[:2] == b[:2] and b[2] <= a[3] for a, b in pairwise(slices))


def _of_chain(metadata: CheckpointMetadata, before: CheckpointMetadata) -> Iterator[str]:
    """A version is made from the one that the batch before it has committed.

    Between two batches the query may have been restored or rescaled: then all stores are made from
    one manifest.
    """
    if (metadata.query_id, metadata.batch_id) != (before.query_id, before.batch_id + 1):
        return
    bases = {handle.base_id for handle in metadata.handles}
    manifest = next(filter(is_manifest, bases), None)
    if manifest is not None:
        if len(bases) > 1:
            yield f"some of its handles were made from {manifest}, and some were not"
        return
    former = _by_store(before)
    for handle in metadata.handles:
        base = former.get(_store(handle))
        if base is not None and handle.base_id != base.id:
            yield f"{handle.path} was made from {handle.base_id}, not from {base.path}"


def _by_store(metadata: CheckpointMetadata) -> Mapping[Sequence[object], StateHandle]:
    return {_store(handle): handle for handle in metadata.handles}


def _store(handle: StateHandle) -> Sequence[object]:
    """Stores of another parallelism are others: they own other key groups."""
    return handle.operator_id, handle.partition, handle.store_name, handle.parallelism
