"""The server from which a worker fetches state that was not sent, as the operator runs one."""

import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any

import pyarrow as pa

SECRET = "secret of a test"


class FetchServer:
    """Answers one connection after the other until it is closed."""

    def __init__(self, fetch: Callable[[int, int], pa.Table]) -> None:
        self._fetch = fetch
        self._socket = socket.create_server(("localhost", 0))
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> "FetchServer":
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Closing alone does not wake who waits in accept.
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, connection.makefile("rwb") as stream:
                self._answer(stream)

    def _answer(self, stream: Any) -> None:
        (length,) = struct.unpack(">i", stream.read(4))
        if stream.read(length) != SECRET.encode():
            return
        while request := stream.read(12):
            number, variable = struct.unpack(">qi", request)
            try:
                reply = _stream_of(self._fetch(number, variable))
                stream.write(struct.pack(">q", len(reply)) + reply)
            except LookupError as error:
                message = str(error).encode()
                stream.write(struct.pack(">qi", -1, len(message)) + message)
            stream.flush()


def _stream_of(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())
