"""The driver's storage as an fsspec file system: requests over the pipe, served by Hadoop.

Spark knows the credentials and settings of the checkpoint's storage; this process does not. So it
asks the driver, and whatever Spark can checkpoint to, the coordinator can too. Any thread may ask;
answers come in any order. Nothing here may cache: other processes change the same storage.
"""

import io
import itertools
import json
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from fsspec import AbstractFileSystem

from sparkckpt.coordinator.wire import Frame, FrameWriter

_ERRORS: dict[str, type[OSError]] = {"not_found": FileNotFoundError, "exists": FileExistsError}


class StoragePipe:
    """Requests on their way, and the threads that wait for them."""

    def __init__(self, writer: FrameWriter) -> None:
        self._writer = writer
        self._ids = itertools.count()
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[bytes]] = {}
        self._closed = False

    def request(self, op: str, path: str, payload: bytes = b"", **fields: Any) -> bytes:
        """The payload of the answer; errors of the other end are raised as OSError."""
        answer: Future[bytes] = Future()
        number = next(self._ids)
        with self._lock:
            if self._closed:
                raise ConnectionError(f"{op} {path}: Spark's driver has ended")
            self._waiting[number] = answer
        fields = {"id": number, "op": op, "path": path, **fields}
        try:
            self._writer.write(Frame("storage", fields, payload))
            return answer.result()
        finally:
            with self._lock:
                self._waiting.pop(number, None)

    def reply(self, frame: Frame) -> None:
        """Hands an answer to the thread that waits for it."""
        with self._lock:
            answer = self._waiting.pop(frame.number("id"), None)
        if answer is None:
            return
        if error := frame.fields.get("error"):
            kind = _ERRORS.get(str(error.get("kind")), OSError)
            answer.set_exception(kind(str(error.get("message"))))
        else:
            answer.set_result(frame.payload)

    def close(self) -> None:
        """No answer will come any more: whoever waits gets an error."""
        with self._lock:
            self._closed = True
            waiting = list(self._waiting.values())
            self._waiting.clear()
        for answer in waiting:
            answer.set_exception(ConnectionError("Spark's driver has ended"))


class BridgeFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Paths are Hadoop's, with or without a scheme, and are passed on as they are."""

    protocol = "sparkckpt-bridge"
    cachable = False
    takes_urls = True

    def __init__(self, pipe: StoragePipe) -> None:
        super().__init__()
        self._pipe = pipe

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return [cls._strip_protocol(p) for p in path] if isinstance(path, list) else str(path)

    def unstrip_protocol(self, name: str) -> str:
        return name

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        return _entry(path, json.loads(self._pipe.request("info", path)))

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        found = json.loads(self._pipe.request("list", path))
        entries = [_entry(_join(path, entry["name"]), entry) for entry in found]
        return entries if detail else [entry["name"] for entry in entries]

    def find(
        self,
        path: str,
        maxdepth: int | None = None,
        withdirs: bool = False,
        detail: bool = False,
        **_: Any,
    ) -> Any:
        """All files at any depth, in one request."""
        if maxdepth is not None or withdirs:
            raise NotImplementedError("find lists files at every depth")
        found = json.loads(self._pipe.request("find", path))
        entries = [_entry(_join(path, entry["name"]), entry) for entry in found]
        if detail:
            return {entry["name"]: entry for entry in entries}
        return sorted(entry["name"] for entry in entries)

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        if (start or 0) < 0 or (end or 0) < 0:
            start, end, _step = slice(start, end).indices(self.info(path)["size"])
        bounds = (("start", start), ("end", end))
        return self._pipe.request(
            "read", path, b"", **{k: at for k, at in bounds if at is not None}
        )

    def create_atomic(self, path: str, data: bytes, overwrite: bool = False) -> None:
        """A file that appears whole or not at all; FileExistsError if it may not be replaced."""
        self._pipe.request("create", path, data, overwrite=overwrite)

    def copy_atomic(self, path: str, target: str) -> None:
        """A copy that appears whole, in place of what is there; it does not pass through here."""
        self._pipe.request("copy", path, to=target)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        self.create_atomic(path, value, overwrite=mode == "overwrite")

    def rm(self, path: str | Sequence[str], recursive: bool = False, **_: Any) -> None:
        """Deletes all of these in one request; what is not there is not missed."""
        paths = [path] if isinstance(path, str) else list(path)
        if not paths:
            return
        names = json.dumps(paths).encode()
        failed = json.loads(self._pipe.request("delete", paths[0], names, recursive=recursive))
        for name, why in failed.items():
            raise OSError(f"{name}: {why} (deleting {len(failed)} of {len(paths)} files failed)")

    def rm_file(self, path: str) -> None:
        self.rm(path)

    def rmdir(self, path: str) -> None:
        """Only an empty directory: the driver refuses any other."""
        self.rm(path)

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Directories come into being with their files."""

    def _open(self, path: str, mode: str = "rb", **_: Any) -> io.BytesIO:
        if mode != "rb":
            raise NotImplementedError("files are created as a whole: use create_atomic")
        return io.BytesIO(self.cat_file(path))


def _entry(path: str, found: dict[str, Any]) -> dict[str, Any]:
    return {
        "name": path,
        "size": found["size"],
        "type": found["type"],
        "mtime": found["modifiedMs"] / 1000,
    }


def _join(directory: str, name: str) -> str:
    return f"{directory.rstrip('/')}/{name}"
