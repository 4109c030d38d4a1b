"""Completed checkpoints with their pointers in ZooKeeper and their metadata in the file system.

As with Flink's high availability, a checkpoint is complete once a node of ZooKeeper points to its
metadata. Each node is made or removed in one transaction with a check that this coordinator still
is the owner, so that one that was cut off can do no harm however late it wakes up. Below the root:

    <query id>-<hash of the location>               what it is about
    <query id>-<hash of the location>/owner         who may change it; its version is the fence
    <query id>-<hash of the location>/checkpoints/  a node for each checkpoint, named by its id

Metadata is never deleted before its pointer, and never by a coordinator that is not the owner.
"""

import bisect
import contextlib
import hashlib
import json
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

from sparkckpt.coordinator.completed import (
    CompletedCheckpoint,
    CompletedCheckpointStore,
    MetadataStorage,
)
from sparkckpt.coordinator.lease import Lease
from sparkckpt.coordinator.zkclient import (
    PATIENCE_SECONDS,
    OutcomeUnknownError,
    ZooKeeperConnection,
    kazoo_errors,
)
from sparkckpt.errors import (
    CorruptStateError,
    FileMissingError,
    NewerOwnerError,
    PossiblyInconsistentCheckpointError,
    UnsupportedFormatVersionError,
    ZooKeeperUnavailableError,
)
from sparkckpt.format.metadata import CheckpointMetadata
from sparkckpt.storage import Storage

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1


class ZooKeeperCompletedCheckpointStore(CompletedCheckpointStore):
    """A checkpoint is complete if a node of ZooKeeper points to its metadata.

    It must be claimed before anything is added or discarded.
    """

    def __init__(
        self,
        files: MetadataStorage,
        retained: int,
        connection: ZooKeeperConnection,
        node: str,
        about: Mapping[str, str],
    ) -> None:
        super().__init__(files, retained)
        self._connection = connection
        self._node = node
        self._about = about
        self._owner_node = f"{node}/owner"
        self._pointers_node = f"{node}/checkpoints"
        self._lease: Lease | None = None
        self._owner_version: int | None = None
        self._unknown: dict[int, CompletedCheckpoint] = {}

    @classmethod
    def at(
        cls,
        storage: Storage,
        query_id: str,
        quorum: str,
        root: str = "/sparkckpt",
        retained: int = 10,
        patience_s: float = PATIENCE_SECONDS,
    ) -> "ZooKeeperCompletedCheckpointStore":
        """The store of a checkpoint directory; it connects when it is used."""
        location = storage.where("")
        # A copy of a checkpoint directory has the same query id, but checkpoints of its own.
        digest = hashlib.sha256(location.encode()).hexdigest()[:16]
        names = [name for name in root.split("/") if name not in ("", ".", "..")]
        return cls(
            MetadataStorage(storage),
            retained,
            ZooKeeperConnection(quorum, patience_s),
            "/" + "/".join([*names, f"{query_id}-{digest}"]),
            {"queryId": query_id, "location": location},
        )

    def claim(self, lease: Lease) -> None:
        """Shuts former owners out, and points to what nobody had the time to point to.

        The lease is looked at between reading and changing the owner's node: of two coordinators
        that do this at the same time the one with the newer lease comes out as the owner.
        """
        self._lease, self._owner_version = lease, None
        try:
            self._make_nodes()
            version = self._become_owner(lease)
        except kazoo_errors().NoNodeError as error:
            raise self._node_removed() from error
        self._adopt(version)
        self._owner_version = version

    def _become_owner(self, lease: Lease) -> int:
        """Returns the version of the owner's node that only this coordinator knows as its own."""
        version = None
        while version is None:
            seen = self._call("get", self._owner_node)[1].version
            if not lease.is_held():
                raise NewerOwnerError(self._about["location"])
            with contextlib.suppress(kazoo_errors().BadVersionError):
                owner = lease.owner.to_bytes()
                version = self._call("set", self._owner_node, owner, seen).version
        return int(version)

    def add(self, metadata: CheckpointMetadata) -> CompletedCheckpoint:
        if self._owner_version is None:
            if self._lease is None:
                raise ValueError("the store has not been claimed")
            self.claim(self._lease)
        self._connection.require()
        self._settle()
        return super().add(metadata)

    def close(self) -> None:
        self._connection.close()

    def _publish(self, checkpoint: CompletedCheckpoint) -> None:
        checkpoint_id = checkpoint.checkpoint_id
        try:
            self._point_to(checkpoint_id, self._owner_version)
        except OutcomeUnknownError as error:
            self._unknown[checkpoint_id] = checkpoint
            where = self._files.where(checkpoint_id)
            raise PossiblyInconsistentCheckpointError(checkpoint_id, where, str(error)) from error

    def _withdraw(self, checkpoint_id: int) -> None:
        pointer = self._pointer(checkpoint_id)
        failure = self._change(lambda change: change.delete(pointer), self._owner_version)
        if failure is not None and not isinstance(failure, kazoo_errors().NoNodeError):
            raise ZooKeeperUnavailableError(self._connection.quorum, repr(failure)) from failure
        self._unknown.pop(checkpoint_id, None)

    def _published(self, found: Mapping[int, bool]) -> Collection[int]:
        try:
            names = self._call("get_children", self._pointers_node)
        except kazoo_errors().NoNodeError:
            return []
        return [int(name) for name in names if name.isascii() and name.isdecimal()]

    def _make_nodes(self) -> None:
        """Makes what is not there, and refuses what a newer release has made."""
        about = json.dumps({"formatVersion": FORMAT_VERSION, **self._about}).encode()
        for node, data in (
            (self._node, about),
            (self._owner_node, b""),
            (self._pointers_node, b""),
        ):
            try:
                self._call("create", node, data, makepath=True)
            except kazoo_errors().NodeExistsError:
                continue
        where = f"ZooKeeper's node {self._node}"
        try:
            version = json.loads(self._call("get", self._node)[0])["formatVersion"]
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptStateError(where, f"it has no formatVersion: {error!r}") from error
        if version != FORMAT_VERSION:
            raise UnsupportedFormatVersionError(where, version, FORMAT_VERSION)

    def _adopt(self, version: int) -> None:
        """Points to complete metadata that is newer than all that is pointed to.

        Its coordinator had ended before it could do so, or had worked without ZooKeeper.
        """
        newest = max(self._published({}), default=0)
        for checkpoint_id, has_metadata in self._files.find().items():
            if has_metadata and checkpoint_id > newest and not self._is_damaged(checkpoint_id):
                self._point_to(checkpoint_id, version)
                logger.info("Checkpoint %d is registered in ZooKeeper now", checkpoint_id)

    def _is_damaged(self, checkpoint_id: int) -> bool:
        try:
            self._files.read(checkpoint_id)
        except (CorruptStateError, FileMissingError):
            return True
        except UnsupportedFormatVersionError:
            return False
        return False

    def _settle(self) -> None:
        """Makes sure of pointers that have perhaps been made before the connection was lost."""
        for checkpoint_id, checkpoint in list(self._unknown.items()):
            self._point_to(checkpoint_id, self._owner_version)
            with self._lock:
                bisect.insort(self._completed, checkpoint, key=lambda c: c.checkpoint_id)
                self._inconsistent = [
                    i for i in self._inconsistent if i.checkpoint_id != checkpoint_id
                ]
            del self._unknown[checkpoint_id]
            logger.info("Checkpoint %d is complete after all", checkpoint_id)

    def _point_to(self, checkpoint_id: int, owner_version: int | None) -> None:
        """Makes a pointer. If there is one, it is ours: only the owner makes them."""
        data = json.dumps({"path": self._files.where(checkpoint_id)}).encode()
        pointer = self._pointer(checkpoint_id)
        failure = self._change(lambda change: change.create(pointer, data), owner_version)
        if failure is not None and not isinstance(failure, kazoo_errors().NodeExistsError):
            raise ZooKeeperUnavailableError(self._connection.quorum, repr(failure)) from failure

    def _change(
        self, operation: Callable[[Any], None], owner_version: int | None
    ) -> Exception | None:
        """Does something as the owner; returns what ZooKeeper has against the operation itself."""
        quorum = self._connection.quorum
        if owner_version is None:
            raise ZooKeeperUnavailableError(quorum, f"its node {self._node} is being claimed")

        def send(client: Any) -> Any:
            transaction = client.transaction()
            transaction.check(self._owner_node, owner_version)
            operation(transaction)
            return transaction.commit_async()

        owned, done = self._connection.call(send)
        if isinstance(owned, kazoo_errors().BadVersionError):
            raise NewerOwnerError(self._about["location"])
        if isinstance(owned, kazoo_errors().NoNodeError):
            self._owner_version = None
            raise self._node_removed()
        return done if isinstance(done, Exception) else None

    def _node_removed(self) -> ZooKeeperUnavailableError:
        why = f"its node {self._node} has been removed, or cannot be made"
        return ZooKeeperUnavailableError(self._connection.quorum, why)

    def _pointer(self, checkpoint_id: int) -> str:
        return f"{self._pointers_node}/{checkpoint_id}"

    def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        return self._connection.call(
            lambda client: getattr(client, f"{method}_async")(*arguments, **options)
        )
