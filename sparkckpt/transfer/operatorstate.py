"""Whether a checkpoint that is to leave for Spark's own stores has operator state. Only reads."""

from sparkckpt.errors import OperatorStateNotExportableError
from sparkckpt.format.metadata import CheckpointMetadata
from sparkckpt.restoration.state import DIRECTORY, committed_batch
from sparkckpt.sparklog import parse_commit
from sparkckpt.transfer.source import SourceCheckpoint


def refuse_operator_state(checkpoint: SourceCheckpoint) -> None:
    """Raises OperatorStateNotExportableError if the last committed batch has some."""
    if checkpoint.commit is None or checkpoint.batch_id is None or not checkpoint.operators:
        return
    storage, log = checkpoint.storage, checkpoint.commit
    commit = parse_commit(log.content, log.where, checkpoint.batch_id)
    batch = committed_batch(storage, commit, storage.list_names(DIRECTORY), _ignore)
    states = names_of_operator_states(batch.metadata)
    if states:
        raise OperatorStateNotExportableError(storage.where(""), states)


def names_of_operator_states(metadata: CheckpointMetadata) -> list[str]:
    """Each once, in words."""
    states = (
        f"{info.name!r} of operator {handle.operator_id} ({handle.operator_name})"
        for handle in metadata.handles
        for info in (handle.operator_state.states if handle.operator_state else ())
    )
    return list(dict.fromkeys(states))


def _ignore(done: int, total: int) -> None:
    """Nobody watches."""
