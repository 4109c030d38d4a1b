"""A connection to ZooKeeper that may be lost at any moment, and says what that means for a request.

A request ends in one of three ways: it is answered; it surely was not carried out; or nobody knows,
since the connection broke after it was sent. It is sent again while there is patience, so it must
be one that can be. Nothing here waits for longer than that: who calls has other things to do. kazoo
is imported when a connection is opened, since it comes with an extra.
"""

import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from sparkckpt.conf import PREFIX
from sparkckpt.errors import ZooKeeperNotConfiguredError, ZooKeeperUnavailableError

logger = logging.getLogger(__name__)

SESSION_SECONDS = 10.0
PATIENCE_SECONDS = 5.0
"""So long a lost connection is waited for, counted from its loss: one outage, not every request,
costs that time."""
RENEWAL_SECONDS = 60.0
"""After so long without a connection a client is replaced. A server that has lost its data turns
those away who have seen later data."""
_PAUSE_SECONDS = 0.05

Request = Callable[[Any], Any]
"""Sends something with a kazoo client, and returns kazoo's asynchronous result."""


class OutcomeUnknownError(ZooKeeperUnavailableError):
    """The connection was lost after the request was sent."""


class ZooKeeperConnection:
    """One session with the servers of a quorum, opened with the first request.

    Safe to be used by several threads.
    """

    def __init__(self, quorum: str, patience_s: float = PATIENCE_SECONDS) -> None:
        self.quorum = quorum
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._client: Any = None
        self._opened = 0.0
        self._lost = 0.0
        self._connected = threading.Event()
        self._closed = False

    @property
    def is_connected(self) -> bool:
        return self._connected.is_set()

    def call(self, request: Request) -> Any:
        """The answer to a request. kazoo's errors about nodes are answers too, and raised.

        Raises OutcomeUnknownError if it may have been carried out without an answer, and
        ZooKeeperUnavailableError if it surely was not.
        """
        errors, timed_out = _kazoo().exceptions, _kazoo().handlers.threading.KazooTimeoutError
        unanswered: Exception | None = None
        deadline = time.monotonic() + self._patience_s
        while True:
            client = self._connect(deadline)
            if client is None:
                raise self._failure(unanswered)
            try:
                return request(client).get(timeout=max(_PAUSE_SECONDS, deadline - time.monotonic()))
            except (errors.NoNodeError, errors.NodeExistsError, errors.BadVersionError):
                raise
            except (errors.NoAuthError, errors.AuthFailedError) as error:
                why = "it does not grant access to its nodes"
                raise ZooKeeperUnavailableError(self.quorum, why) from error
            except (errors.KazooException, timed_out) as error:
                unanswered = error
            time.sleep(_PAUSE_SECONDS)
            if time.monotonic() >= deadline:
                raise self._failure(unanswered)

    def require(self) -> None:
        """Raises ZooKeeperUnavailableError if there is no connection and none comes soon."""
        if self._connect(time.monotonic() + self._patience_s) is None:
            raise self._failure(None)

    def close(self) -> None:
        """Ends the session in the background."""
        with self._lock:
            self._closed = True
            client, self._client = self._client, None
        self._connected.clear()
        _stop(client)

    def _connect(self, deadline: float) -> Any:
        """The client once it is connected, or None if that takes too long."""
        with self._lock:
            if self._client is None and not self._closed:
                self._open()
                self._lost = self._opened
            deadline = min(deadline, self._lost + self._patience_s)
        if self._connected.wait(max(0.0, deadline - time.monotonic())):
            return self._client
        with self._lock:
            disconnected_s = time.monotonic() - max(self._lost, self._opened)
            if not self._closed and disconnected_s > RENEWAL_SECONDS:
                _stop(self._client)
                self._open()
        return None

    def _open(self) -> None:
        kazoo = _kazoo()
        try:
            if not self.quorum:
                raise ValueError("no server is named")
            client = kazoo.client.KazooClient(
                self.quorum,
                timeout=SESSION_SECONDS,
                connection_retry={"max_tries": -1, "delay": 0.1, "max_delay": 2},
                logger=_quiet_logger(),
            )
        except (ValueError, kazoo.exceptions.KazooException) as error:
            raise ZooKeeperNotConfiguredError.quorum(
                f"{PREFIX}zookeeper.quorum", self.quorum, str(error)
            ) from error
        self._client, self._opened = client, time.monotonic()
        self._connected.clear()
        client.add_listener(lambda state: self._changed(client, state))
        client.start_async()

    def _changed(self, client: Any, state: str) -> None:
        """Called by kazoo, on its own thread and never under our lock."""
        if client is not self._client:
            return
        if state == "CONNECTED":
            logger.info("Connected to ZooKeeper at %s", self.quorum)
            self._connected.set()
        elif self._connected.is_set():
            self._lost = time.monotonic()
            self._connected.clear()
            logger.warning("The connection to ZooKeeper at %s is lost", self.quorum)

    def _failure(self, unanswered: Exception | None) -> ZooKeeperUnavailableError:
        if unanswered is None:
            return ZooKeeperUnavailableError(self.quorum, "there is no connection")
        why = f"a request was not answered ({type(unanswered).__name__})"
        return OutcomeUnknownError(self.quorum, why)


def kazoo_errors() -> Any:
    """kazoo's module of errors, which has no types."""
    return _kazoo().exceptions


def _kazoo() -> Any:
    try:
        import kazoo.client
        import kazoo.exceptions
        import kazoo.handlers.threading
    except ImportError as error:
        raise ZooKeeperNotConfiguredError.client(sys.executable) from error
    return kazoo


def _quiet_logger() -> logging.Logger:
    """kazoo tells of every attempt to connect; it is enough to be told of the outcome."""
    quiet = logger.getChild("kazoo")
    quiet.setLevel(logging.ERROR)
    return quiet


def _stop(client: Any) -> None:
    def stop() -> None:
        try:
            client.stop()
            client.close()
        except Exception as error:
            logger.debug("A ZooKeeper session was not ended in order: %s", error)

    if client is not None:
        threading.Thread(target=stop, name="sparkckpt-zookeeper-stop", daemon=True).start()
