"""The files of a restored directory, but for its state: what Spark finds when it starts there.

They come from the checkpoint's metadata, with the parallelism, the operator ids, the ids of state
and the paths changed. Pure: which bytes go where, in the order in which they are to be written.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sparkckpt.errors import CheckpointNotRestorableError
from sparkckpt.format.manifest import manifest_path
from sparkckpt.format.metadata import CheckpointMetadata, OperatorState, write_metadata
from sparkckpt.restoration.additions import NewOperator
from sparkckpt.restoration.markers import BACKEND_PATH, backend_bytes
from sparkckpt.restoration.plan import OperatorPlan, ids_of
from sparkckpt.restoration.state import LogEntry
from sparkckpt.sparklog import MasterState, commits_path, offsets_path
from sparkckpt.sparklog.checkpoint import QUERY_PATH
from sparkckpt.sparklog.edits import (
    SHUFFLE_PARTITIONS,
    commit_with_ids,
    moved_operator,
    new_operator,
    new_query,
    offsets_with_conf,
)

_OF_OPERATOR = re.compile(r"state/(\d+)/(.+)")
_METADATA = re.compile(r"_metadata/(?:metadata|v2/\d+)")


@dataclass(frozen=True)
class TargetFiles:
    """All that a restored directory is made of; `url` is its canonical URL."""

    url: str
    source: str
    metadata: CheckpointMetadata
    operators: Sequence[OperatorPlan]
    added: Mapping[int, NewOperator]
    states: Sequence[OperatorState]
    """As the manifest lists them."""
    manifest_id: str
    parallelism: int
    max_parallelism: int
    query_id: str | None
    """None: the query that the directory belongs to already."""
    planned: LogEntry | None

    def before_sources(self) -> Iterator[tuple[str, bytes]]:
        """What does not make the directory one that Spark goes on from."""
        yield BACKEND_PATH, backend_bytes(self.max_parallelism)
        yield manifest_path(self.manifest_id), self._manifest()
        for plan in self.operators:
            if plan.restored_from is None:
                yield self._new_operator(plan)
            else:
                yield from self._operator(plan, plan.restored_from)

    def after_sources(self) -> Iterator[tuple[str, bytes]]:
        """What does."""
        batch_id = self.metadata.batch_id
        if self.query_id is not None:
            yield QUERY_PATH, new_query(self.query_id)
        yield commits_path(batch_id), self._commit()
        if batch_id > 0:
            yield from self._offsets_before()
        yield self._offsets(self._state(offsets_path(batch_id)))
        if self.planned is not None:
            yield self._offsets(MasterState(self.planned.path, self.planned.content))

    def _manifest(self) -> bytes:
        """Spark's own files are in the directory itself, changed."""
        manifest = replace(
            self.metadata,
            query_id=self.query_id or self.metadata.query_id,
            operator_states=tuple(self.states),
            master_states=(),
        )
        return write_metadata(manifest)

    def _operator(self, plan: OperatorPlan, old_id: int) -> Iterator[tuple[str, bytes]]:
        directory = f"state/{plan.operator_id}"
        for state in self.metadata.master_states:
            found = _OF_OPERATOR.fullmatch(state.path)
            if found is None or int(found[1]) != old_id:
                continue
            content = state.content
            if _METADATA.fullmatch(found[2]):
                content = moved_operator(
                    content,
                    self._where(state.path),
                    plan.operator_id,
                    self.parallelism,
                    f"{self.url}/{directory}",
                )
            yield f"{directory}/{found[2]}", content

    def _new_operator(self, plan: OperatorPlan) -> tuple[str, bytes]:
        added = self.added[plan.operator_id]
        data = new_operator(
            plan.operator_id, plan.name, plan.stores, self.parallelism, added.properties
        )
        name = "metadata" if added.properties is None else f"v2/{self.metadata.batch_id}"
        return f"state/{plan.operator_id}/_metadata/{name}", data

    def _commit(self) -> bytes:
        path = commits_path(self.metadata.batch_id)
        content = self.metadata.master_state(path)
        if not self.operators and not self.metadata.operator_states:
            return content
        ids = ids_of(self.operators, self.manifest_id)
        return commit_with_ids(content, self._where(path), ids)

    def _offsets_before(self) -> Iterator[tuple[str, bytes]]:
        """Spark takes from it where the last batch began."""
        path = offsets_path(self.metadata.batch_id - 1)
        for state in self.metadata.master_states:
            if state.path == path:
                yield self._offsets(state)
                return
        if self.planned is None:
            raise CheckpointNotRestorableError(
                self.source,
                f"{path} is neither in the checkpoint of batch {self.metadata.batch_id} nor in the "
                "offset log any more. Restore a newer checkpoint",
            )

    def _offsets(self, state: MasterState) -> tuple[str, bytes]:
        where = self._where(state.path)
        data = offsets_with_conf(state.content, where, SHUFFLE_PARTITIONS, str(self.parallelism))
        return state.path, data

    def _state(self, path: str) -> MasterState:
        return MasterState(path, self.metadata.master_state(path))

    def _where(self, path: str) -> str:
        return f"{path} of batch {self.metadata.batch_id} in {self.source}"
