"""The checkpoint whose state is read, and what keeps its files while a query runs.

Which checkpoint a path means is decided as for a restore. A running query subsumes checkpoints and
deletes what no other needs: while state is read, a pin holds its files. Where none can be laid, for
want of the right to write, whoever reads must be ready to find that a file is gone.
"""

import logging
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

from sparkckpt.checkpoints.directory import Location
from sparkckpt.coordinator.pins import READER, pin_path
from sparkckpt.errors import (
    CheckpointSubsumedError,
    FileMissingError,
    UnknownOperatorError,
    UnreadableFileError,
    UnwritableFileError,
)
from sparkckpt.format.metadata import CheckpointMetadata, OperatorState, metadata_path
from sparkckpt.restoration.exclusive import is_in_use, wall_clock
from sparkckpt.restoration.markers import pin_bytes
from sparkckpt.restoration.source import Source, take_snapshot
from sparkckpt.storage import Storage
from sparkckpt.tables.shapes import Variable, variables_in

logger = logging.getLogger(__name__)

_READERS = "_sparkckpt/readers"
"""Where a pin says that its reader is. Nothing is there: `clean` removes the pin of one that was
killed."""


@dataclass
class _Hold:
    """How many are reading at the moment, and the pin that they share, if there is one."""

    readers: int = 0
    pin: str | None = None


@dataclass(frozen=True)
class StateSnapshot:
    """The state of one checkpoint."""

    source: Source
    metadata: CheckpointMetadata
    checkpoint_id: int | None
    """None: the last committed batch, which has no checkpoint."""
    _hold: _Hold = field(default_factory=_Hold, repr=False, compare=False)

    @classmethod
    def open(cls, path: Location, checkpoint_id: int | None = None) -> "StateSnapshot":
        """The checkpoint that is named; else the newest state of the query, running or stopped."""
        source = Source.at(path, checkpoint_id)
        source.refuse_if_unusable(source.url)
        taken = take_snapshot(source, wall_clock)
        return cls(source, taken.metadata, taken.checkpoint_id)

    @property
    def state(self) -> Storage:
        """The state root."""
        return self.source.storage.below("state")

    @property
    def where(self) -> str:
        return self.source.storage.where("")

    def __str__(self) -> str:
        if self.checkpoint_id is None:
            return f"batch {self.metadata.batch_id} of {self.where}"
        return f"checkpoint {self.checkpoint_id} of {self.where}"

    def operator(self, operator_id: int | None) -> OperatorState:
        """The operator with this id; without one, the only one."""
        operators = {o.operator_id: o for o in self.metadata.operator_states}
        if operator_id is None and len(operators) == 1:
            operator_id = next(iter(operators))
        if operator_id is None or operator_id not in operators:
            named = [f"{o.operator_id} ({o.operator_name})" for o in operators.values()]
            raise UnknownOperatorError(str(self), operator_id, named)
        return operators[operator_id]

    def variables(self, operator_id: int) -> list[Variable]:
        """The state variables that Spark's metadata of the operator declares."""
        directory = f"state/{operator_id}/_metadata/"
        states = (s for s in self.metadata.master_states if s.path.startswith(directory))
        return next((found for state in states if (found := variables_in(state.content))), [])

    @cached_property
    def confs(self) -> Mapping[str, str]:
        return self.metadata.confs

    @property
    def is_there(self) -> bool:
        """Whether the query has not subsumed the checkpoint meanwhile."""
        if self.checkpoint_id is None:
            return True
        return self.source.storage.exists(metadata_path(self.checkpoint_id))

    @contextmanager
    def kept(self, pin: bool = True) -> Iterator[None]:
        """Keeps the files from being deleted, where a query runs that might; without `pin` only
        says so if they were. A checkpoint that is gone is a CheckpointSubsumedError."""
        hold = self._hold
        if hold.readers == 0 and pin:
            hold.pin = self._lay_pin()
        hold.readers += 1
        try:
            if hold.readers == 1 and hold.pin is not None and not self.is_there:
                raise CheckpointSubsumedError(str(self))
            yield
        except FileMissingError as error:
            if self.is_there:
                raise
            raise CheckpointSubsumedError(str(self)) from error
        finally:
            hold.readers -= 1
            if hold.readers == 0 and hold.pin is not None:
                self.source.storage.delete([hold.pin])
                hold.pin = None

    def _lay_pin(self) -> str | None:
        storage = self.source.storage
        if self.checkpoint_id is None or not is_in_use(storage, wall_clock()):
            return None
        name = f"{READER}{uuid.uuid4()}"
        root = self.source.root
        files = list(dict.fromkeys(root.name_of(path) for path in self.metadata.files()))
        try:
            storage.write_atomic(
                pin_path(name), pin_bytes(files, f"{self.source.url}/{_READERS}/{name}")
            )
        except (UnwritableFileError, UnreadableFileError) as error:
            logger.info("State is read without a pin: %s", error)
            return None
        return pin_path(name)
