"""How a checkpoint came about, in figures. Pure."""

from sparkckpt.coordinator.acks import Ack
from sparkckpt.coordinator.pending import PendingCheckpoint
from sparkckpt.format.handle import StateFileRef
from sparkckpt.format.metadata import CheckpointStatistics
from sparkckpt.format.operatorstate import OperatorStateHandle


def statistics_of(pending: PendingCheckpoint, now_ms: int) -> CheckpointStatistics:
    """The figures of a fully acknowledged batch that completes now.

    Stores whose acknowledgement was lost have no times, and what they wrote is their files alone.
    What was committed with a manifest was written before, by another run or another query.
    """
    acks = {ack.handle.path: ack for ack in pending.acks()}
    lengths: dict[tuple[str, int], int] = {}
    paths: set[str] = set()
    new_paths: set[str] = set()
    delta_bytes = 0
    for handle in pending.handles():
        lengths.update(((data.path, data.offset), data.length) for data in handle.data)
        paths.update(data.path for data in handle.data)
        if pending.manifest_id is not None:
            continue
        own: list[StateFileRef | OperatorStateHandle] = [
            file for file in handle.files if file.level == 0 and file.last_version == handle.version
        ]
        if handle.operator_state is not None and handle.operator_state.path == handle.path:
            own.append(handle.operator_state)
        paths.add(handle.path)
        new_paths.update([handle.path], (file.path for file in own))
        ack = acks.get(handle.path)
        delta_bytes += ack.bytes_written if ack else sum(file.length for file in own)
    received = [ack.received_ms for ack in acks.values()]
    return CheckpointStatistics(
        duration_ms=max(0, now_ms - min(received)) if received else 0,
        ack_spread_ms=max(received) - min(received) if received else 0,
        sync_ms=max((ack.sync_ms for ack in acks.values()), default=0),
        write_ms=max((ack.write_ms for ack in acks.values()), default=0),
        state_bytes=sum(lengths.values()),
        delta_bytes=delta_bytes,
        files=len(paths),
        new_files=len(new_paths),
        slowest=_in_words(max(acks.values(), key=_time_of)) if acks else "",
    )


def _time_of(ack: Ack) -> int:
    return ack.sync_ms + ack.write_ms


def _in_words(ack: Ack) -> str:
    handle = ack.handle
    return (
        f"operator {handle.operator_id}, partition {handle.partition}, "
        f"store {handle.store_name}: {_time_of(ack)} ms"
    )
