"""The files that a restore leaves behind: who was restored from where, and who has claimed whom.

Reads them; what follows from what they say is decided elsewhere.
"""

import json
from dataclasses import dataclass
from typing import Any

from sparkckpt.errors import CorruptStateError, FileMissingError, UnsupportedFormatVersionError
from sparkckpt.paths import StateRoot, canonical
from sparkckpt.storage import Storage

RESTORED_PATH = "_sparkckpt/restored.json"
CLAIMED_PATH = "_sparkckpt/claimed.json"
"""In a source that was claimed: by whom."""
RESTORING_PATH = "_sparkckpt/restoring.json"
"""While a restore into the directory is under way, or was given up."""
FORMAT_VERSION = 1

NO_CLAIM = "no-claim"
CLAIM = "claim"
COPY = "copy"


@dataclass(frozen=True)
class Restored:
    """What `restored.json` says."""

    checkpoint_id: int
    """That of the checkpoint in the source; new ids are above it."""
    source: str = ""
    mode: str = COPY
    source_root: StateRoot | None = None
    """The state root whose files are referred to."""
    pin: str | None = None
    """The name of the pin that keeps what is referred to."""
    pinned: tuple[StateRoot, ...] = ()
    """The state roots whose checkpoint directories have the pin: that of the source and, if it was
    itself restored, those of further ones."""
    settled: bool = False
    """Nothing of the source is needed any more."""

    @property
    def depends_on(self) -> tuple[StateRoot, ...]:
        """The state roots of which files may still be needed, the source's first."""
        if self.settled or self.mode == COPY or self.source_root is None:
            return ()
        return tuple(dict.fromkeys((self.source_root, *self.pinned)))


def read_restored(storage: Storage) -> Restored | None:
    """What the query was restored from, if it was; `storage` is at the checkpoint directory."""
    fields = read_fields(storage, RESTORED_PATH)
    if fields is None:
        return None
    where = storage.where(RESTORED_PATH)
    checkpoint_id = fields.get("checkpointId")
    if type(checkpoint_id) is not int or checkpoint_id < 0:
        raise CorruptStateError(where, "it names no checkpointId")
    texts = {name: fields.get(name) for name in ("source", "mode", "sourceStateRoot", "pin")}
    for name, text in texts.items():
        if text is not None and type(text) is not str:
            raise CorruptStateError(where, f"its {name!r} is {text!r}")
    mode = texts["mode"] or COPY
    if mode not in (NO_CLAIM, CLAIM, COPY):
        raise CorruptStateError(where, f"its mode is {mode!r}")
    root = texts["sourceStateRoot"]
    source_root = StateRoot(canonical(root)) if root else None
    default = [source_root.checkpoint] if source_root and texts["pin"] else []
    pinned = fields.get("pinned", default)
    if type(pinned) is not list or not all(type(url) is str for url in pinned):
        raise CorruptStateError(where, f"its 'pinned' is {pinned!r}")
    return Restored(
        checkpoint_id,
        texts["source"] or "",
        mode,
        source_root,
        texts["pin"],
        tuple(StateRoot.in_checkpoint(url) for url in pinned),
        fields.get("settled") is True,
    )


def claimed_by(storage: Storage) -> str | None:
    """Who has claimed this checkpoint directory, as its URL, if anybody has."""
    fields = read_fields(storage, CLAIMED_PATH)
    if fields is None:
        return None
    by = fields.get("by")
    if type(by) is not str or not by:
        raise CorruptStateError(storage.where(CLAIMED_PATH), "it does not say by whom")
    return by


def read_fields(storage: Storage, path: str) -> dict[str, Any] | None:
    """All that one of these files says, or None if there is no such file."""
    try:
        data = storage.read_all(path)
    except FileMissingError:
        return None
    where = storage.where(path)
    try:
        fields = json.loads(data)
    except ValueError as error:
        raise CorruptStateError(where, f"it is not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise CorruptStateError(where, "it is no JSON object")
    version = fields.get("formatVersion")
    if type(version) is int and version > FORMAT_VERSION:
        raise UnsupportedFormatVersionError(where, version, FORMAT_VERSION)
    if version != FORMAT_VERSION:
        raise CorruptStateError(where, f"it has format version {version!r}")
    return fields
