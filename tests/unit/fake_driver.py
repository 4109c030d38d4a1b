"""The driver's end of the coordinator's pipe, without a driver: it has a directory."""

import contextlib
import json
import os
import queue
import shutil
import threading
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from sparkckpt.coordinator.bridge import BridgeFileSystem, StoragePipe
from sparkckpt.coordinator.wire import Frame, FrameWriter, read_frame


class FakeDriver:
    """Reads the coordinator's frames on a thread: answers `storage`, keeps everything else."""

    def __init__(self, to_coordinator: BinaryIO, from_coordinator: BinaryIO) -> None:
        self.writer = FrameWriter(to_coordinator)
        self.frames: queue.Queue[Frame] = queue.Queue()
        self.requests: list[tuple[str, str]] = []
        self.hold = threading.Event()
        self.hold.set()
        self._stream = from_coordinator
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def next_frame(self, kind: str, timeout: float = 60) -> Frame:
        """The next frame of this kind; those before it are skipped."""
        while True:
            frame = self.frames.get(timeout=timeout)
            if frame.kind == kind:
                return frame

    def _read(self) -> None:
        while frame := read_frame(self._stream):
            if frame.kind == "storage":
                threading.Thread(target=self._answer, args=(frame,), daemon=True).start()
            else:
                self.frames.put(frame)

    def _answer(self, frame: Frame) -> None:
        self.requests.append((frame.text("op"), frame.text("path")))
        self.hold.wait()
        fields: dict[str, Any] = {"id": frame.number("id")}
        payload = b""
        try:
            payload = serve(frame)
        except OSError as error:
            kinds = {FileNotFoundError: "not_found", FileExistsError: "exists"}
            fields["error"] = {"kind": kinds.get(type(error), "io"), "message": str(error)}
        with contextlib.suppress(ValueError, OSError):  # The pipe may be closed by now.
            self.writer.write(Frame("storage_reply", fields, payload))


def serve(frame: Frame) -> bytes:
    """What StorageService.scala does, on a local directory."""
    path = Path(frame.text("path").removeprefix("file:"))
    match frame.text("op"):
        case "read":
            return path.read_bytes()[frame.fields.get("start") : frame.fields.get("end")]
        case "create":
            create(path, frame.payload, bool(frame.fields["overwrite"]))
            return b""
        case "copy":
            create(Path(frame.text("to").removeprefix("file:")), path.read_bytes(), True)
            return b""
        case "info":
            return json.dumps(describe(path, path.name)).encode()
        case "list":
            return json.dumps(describe_all(path.iterdir(), path)).encode()
        case "find":
            if not path.exists():
                raise FileNotFoundError(str(path))
            found = [Path(at, name) for at, _, names in os.walk(path) for name in names]
            return json.dumps(describe_all(found, path)).encode()
        case "delete":
            return json.dumps(delete(json.loads(frame.payload), frame.fields["recursive"])).encode()
        case other:
            raise OSError(f"unknown operation {other}")


def create(path: Path, data: bytes, overwrite: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4()}.tmp")
    temporary.write_bytes(data)
    try:
        if overwrite:
            temporary.replace(path)
        else:
            os.link(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def describe(path: Path, name: str) -> dict[str, Any]:
    status = path.stat()
    return {
        "name": name,
        "type": "directory" if path.is_dir() else "file",
        "size": status.st_size,
        "modifiedMs": int(status.st_mtime * 1000),
    }


def describe_all(paths: Iterable[Path], root: Path) -> list[dict[str, Any]]:
    """Without those that go meanwhile: files in the making have other names before."""
    described = []
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            described.append(describe(path, str(path.relative_to(root))))
    return described


def delete(names: list[str], recursive: bool) -> dict[str, str]:
    failed = {}
    for name in names:
        path = Path(name.removeprefix("file:"))
        if path.is_dir() and recursive:
            shutil.rmtree(path)
        elif path.is_dir():
            failed[name] = "it is a directory"
        else:
            path.unlink(missing_ok=True)
    return failed


@dataclass
class Bridge:
    """Both ends of the coordinator's storage."""

    driver: FakeDriver
    pipe: StoragePipe
    filesystem: BridgeFileSystem
    root: str

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"


@contextlib.contextmanager
def bridged(root: str) -> Iterator[Bridge]:
    """Both ends, each with the threads it has in production."""
    requests, replies = os.pipe(), os.pipe()
    from_coordinator, to_driver = os.fdopen(requests[0], "rb"), os.fdopen(requests[1], "wb")
    from_driver, to_coordinator = os.fdopen(replies[0], "rb"), os.fdopen(replies[1], "wb")
    driver = FakeDriver(to_coordinator, from_coordinator)
    pipe = StoragePipe(FrameWriter(to_driver))

    def read_replies() -> None:
        while frame := read_frame(from_driver):
            pipe.reply(frame)

    reader = threading.Thread(target=read_replies, daemon=True)
    reader.start()
    yield Bridge(driver, pipe, BridgeFileSystem(pipe), root)
    driver.hold.set()
    to_driver.close()
    to_coordinator.close()
    reader.join(60)
