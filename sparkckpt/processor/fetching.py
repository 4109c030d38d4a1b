"""Fetches state that was not sent beside its key, from the operator in the same task.

One connection serves a call. What is fetched is the state as it was before the call: the changes
that the key has made since then are laid over it by who asks.
"""

import socket
import struct
from typing import Any

import pyarrow as pa

from sparkckpt.errors.processing import StateFetchError

TIMERS = -1


class Fetcher:
    """Connects when the first state is asked for."""

    def __init__(self, port: int, secret: str) -> None:
        self._port, self._secret = port, secret
        self._stream: Any = None

    def fetch(self, number: int, variable: int) -> pa.Table:
        """All that the key of this number has in a variable."""
        stream = self._connected()
        stream.write(struct.pack(">qi", number, variable))
        stream.flush()
        (length,) = struct.unpack(">q", self._read(8))
        if length < 0:
            (length,) = struct.unpack(">i", self._read(4))
            raise StateFetchError(self._read(length).decode())
        return pa.ipc.open_stream(self._read(length)).read_all()

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _connected(self) -> Any:
        if self._stream is None:
            connection = socket.create_connection(("localhost", self._port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._stream = connection.makefile("rwb", 1 << 16)
            connection.close()
            secret = self._secret.encode()
            self._stream.write(struct.pack(">i", len(secret)) + secret)
        return self._stream

    def _read(self, length: int) -> bytes:
        data: bytes = self._stream.read(length)
        if len(data) < length:
            raise StateFetchError("the connection has ended")
        return data
