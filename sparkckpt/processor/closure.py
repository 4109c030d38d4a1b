"""What is pickled into a query's plan in the place of the user's function.

Our operator calls it with the record batches of a task. Where a plan runs on Spark's own operator
instead, it is called as that calls functions, and does what it would have done without us: a query
that was defined with acceleration always also works without.
"""

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sparkckpt.processor.wire import Batches, Control


@dataclass(frozen=True)
class InBandFunction:
    """`number` is the one under which the driver's JVM knows the processor's spec."""

    run: Callable[[Batches, Control], Batches]
    fallback: Callable[..., Any]
    name: str
    number: int

    @property
    def __name__(self) -> str:
        return f"{self.name} [in-band #{self.number}]"

    def __repr__(self) -> str:
        return self.__name__

    def __call__(self, *args: Any) -> Any:
        if len(args) == 1:
            _freeze_imports()
            return self.run(args[0], Control.of_task())
        return self.fallback(*args)


_is_frozen = False


def _freeze_imports() -> None:
    """A worker collects garbage after every task, and most of what it would look at are modules."""
    global _is_frozen
    if not _is_frozen:
        gc.freeze()
        _is_frozen = True
