"""The directory that a checkpoint is moved into.

A marker comes first and goes last: while it is there, a run that was killed may be run again, and
queries with sparkckpt do not start. Plain Spark does not start either where there is state without
logs. The logs come after the state, and those entries that Spark begins with come last.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from sparkckpt.restoration.copies import copy_files, copy_sources
from sparkckpt.restoration.leftovers import clear_leftover, leftover_of
from sparkckpt.restoration.markers import BACKEND_PATH, RESTORING_PATH, Restoring, backend_bytes
from sparkckpt.restoration.state import DIRECTORY
from sparkckpt.sparklog import commits_path, offsets_path
from sparkckpt.sparklog.checkpoint import QUERY_PATH
from sparkckpt.sparklog.edits import StateIds, moved_operator, offsets_with_conf
from sparkckpt.storage import Storage
from sparkckpt.transfer.commits import commit_with_state
from sparkckpt.transfer.source import SourceCheckpoint

_NO_PIN = "none"
"""A transfer leaves nothing behind in its source."""


@dataclass(frozen=True)
class Transfer:
    """A move of one checkpoint into a new directory; `operation` is import or export."""

    operation: str
    source: SourceCheckpoint
    target: Storage
    target_url: str
    """Canonical."""

    @property
    def source_url(self) -> str:
        return self.source.url

    def begin(self) -> None:
        """Marks the target, which must be empty, or what a former run of the same left there."""
        leftover = leftover_of(self.target, self.source_url, (self.operation,))
        if leftover is not None:
            clear_leftover(self.target)
        marker = Restoring.here(self.source_url, self.operation, _NO_PIN).to_bytes()
        self.target.write_atomic(RESTORING_PATH, marker, overwrite=leftover is not None)

    def write_backend(self, max_parallelism: int) -> None:
        self.target.write_atomic(BACKEND_PATH, backend_bytes(max_parallelism))

    def write_operators(self, parallelism: int) -> None:
        """The metadata of the operators and the schemas it names."""
        for operator in self.source.operators:
            schemas = {path for store in operator.schemas for path in store}
            copy_files(self.source.storage, self.target, schemas)
            data = moved_operator(
                operator.metadata.content,
                operator.metadata.where,
                operator.operator_id,
                parallelism,
                f"{self.target_url}/{operator.directory}",
            )
            self.target.write_atomic(operator.metadata.path, data)

    def write_logs(self, confs: Mapping[str, str], state_ids: StateIds | None) -> None:
        """What Spark restarts the query from. Until the last entry is there, it finds a batch
        without the one before it, and refuses to go on: newer entries come first."""
        source = self.source
        copy_sources(source.storage, self.target)
        source.storage.copy(QUERY_PATH, self.target, QUERY_PATH)
        if source.commit is not None and source.batch_id is not None:
            data = commit_with_state(source.commit.content, source.commit.where, state_ids)
            self.target.write_atomic(commits_path(source.batch_id), data)
        for batch, file in sorted(source.offsets.items(), reverse=True):
            content = file.content
            for name, value in confs.items():
                content = offsets_with_conf(content, file.where, name, value)
            self.target.write_atomic(offsets_path(batch), content)

    def end(self) -> None:
        self.target.delete([RESTORING_PATH])
        self.target.delete_directory(DIRECTORY)
