"""The methods of Flink's CheckpointedFunction and CheckpointListener that any processor may have.

All are optional: `initialize_state(context)` before anything else of a call,
`notify_checkpoint_complete(checkpoint_id)` in the first batch after one has been completed, and
`snapshot_state(context)` at the end. What is left in the context is part of the same checkpoint as
the state of the keys.
"""

from typing import TYPE_CHECKING, Any

from sparkckpt.processor.wire import Control

if TYPE_CHECKING:
    from sparkckpt.processor.operatorstate import OperatorStateContext


class Lifecycle:
    """Calls the methods that a processor has, around one call of the worker."""

    def __init__(self, processor: Any, control: Control) -> None:
        self._processor = processor
        self._completed = control.completed_checkpoint_id
        self.keeps_state = keeps_operator_state(processor)
        self._context = _context(control.operator_state) if self.keeps_state else None

    def begin(self) -> None:
        if hasattr(self._processor, "initialize_state"):
            self._processor.initialize_state(self._context)

    def notify(self) -> None:
        if self._completed is not None and hasattr(self._processor, "notify_checkpoint_complete"):
            self._processor.notify_checkpoint_complete(self._completed)

    def end(self) -> bytes | None:
        """The blob for the operator, if there is a new one."""
        if self._context is None:
            return None
        if hasattr(self._processor, "snapshot_state"):
            self._processor.snapshot_state(self._context)
        return self._context.blob()


def keeps_operator_state(processor: Any) -> bool:
    return hasattr(processor, "initialize_state") or hasattr(processor, "snapshot_state")


def _context(blob: bytes | None) -> "OperatorStateContext":
    from sparkckpt.processor.operatorstate import OperatorStateContext

    return OperatorStateContext(blob)
