"""Stands in for the coordinator's process: keeps what the driver sends, and tries its storage.

Started in place of `python -m sparkckpt.coordinator`, with the directory for its records in
PIPE_RECORDS. Every frame becomes a line there; the tries of the storage become `storage.json`.
"""

import base64
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sparkckpt.coordinator.bridge import BridgeFileSystem, StoragePipe
from sparkckpt.coordinator.wire import Frame, FrameWriter, read_frame

STOP_MESSAGE = "2 checkpoints in a row failed: no space left."


class Recorder:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.writer = FrameWriter(sys.stdout.buffer)
        self.pipe = StoragePipe(self.writer)

    def run(self) -> None:
        with (self.directory / f"frames-{os.getpid()}").open("w") as records:
            while frame := read_frame(sys.stdin.buffer):
                if frame.kind == "storage_reply":
                    self.pipe.reply(frame)
                    continue
                payload = base64.b64encode(frame.payload).decode()
                print(json.dumps([frame.kind, frame.fields, payload]), file=records, flush=True)
                self.answer(frame)

    def answer(self, frame: Frame) -> None:
        match frame.kind:
            case "query_started" if not frame.fields["isResumed"]:
                location = frame.text("checkpointLocation")
                threading.Thread(target=self.try_storage, args=(location,), daemon=True).start()
            case "progress" if (self.directory / "stop").exists():
                fields = {"runId": frame.text("runId"), "message": STOP_MESSAGE}
                self.writer.write(Frame("stop_query", fields))
                (self.directory / "stop-sent").touch()
            case "query_ended":
                self.writer.write(Frame("closed", {"runId": frame.text("runId")}))
            case "shutdown":
                self.writer.write(Frame("drained"))

    def try_storage(self, location: str) -> None:
        results = tries_of(BridgeFileSystem(self.pipe), f"{location}/_sparkckpt/tried")
        hidden = self.directory / ".storage"
        hidden.write_text(json.dumps(results))
        hidden.rename(self.directory / "storage.json")


def tries_of(files: BridgeFileSystem, root: str) -> dict[str, Any]:
    """What every operation answers, with paths as they were asked for."""

    def outcome(operation: Callable[[], Any]) -> Any:
        try:
            return operation()
        except OSError as error:
            return type(error).__name__

    def create(name: str, text: str, overwrite: bool = False) -> Any:
        return outcome(lambda: files.create_atomic(f"{root}/{name}", text.encode(), overwrite))

    def read(name: str, *bounds: int) -> Any:
        return outcome(lambda: files.cat_file(f"{root}/{name}", *bounds).decode())

    def found() -> dict[str, int]:
        entries = files.find(root, detail=True)
        return {path.removeprefix(root): info["size"] for path, info in entries.items()}

    return {
        "missing": [read("a"), outcome(lambda: files.ls(root)), outcome(lambda: files.find(root))],
        "exists before": files.exists(f"{root}/a"),
        "create": create("a", "0123456789"),
        "create again": create("a", "other"),
        "overwrite": create("a", "9876543210", overwrite=True),
        "read": [read("a"), read("a", 2, 5), read("a", 8, 100), read("a", -2)],
        "create deep": create("d/%24 e/b", "b"),
        "copy": outcome(lambda: files.copy_atomic(f"{root}/a", f"{root}/d/c")),
        "copy what is missing": outcome(lambda: files.copy_atomic(f"{root}/x", f"{root}/y")),
        "read the copy": read("d/c"),
        "list": sorted(path.removeprefix(root) for path in files.ls(root, detail=False)),
        "find": found(),
        "type": [files.info(f"{root}/a")["type"], files.info(f"{root}/d")["type"]],
        "delete": outcome(lambda: files.rm([f"{root}/a", f"{root}/never"])),
        "delete directory": outcome(lambda: files.rm(f"{root}/d")),
        "left": found(),
        "delete tree": outcome(lambda: files.rm(root, recursive=True)),
        "exists after": files.exists(root),
    }


if __name__ == "__main__":
    Recorder(Path(os.environ["PIPE_RECORDS"])).run()
