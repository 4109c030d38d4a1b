"""One name for each file of state, however a handle, a pin or a file system puts it.

Files of a checkpoint directory are named relative to its state root, so that it can be moved;
those of another directory by their URL. The same file may be written `/a/b`, `file:/a/b` and
`file:///a/b`, or `s3://` and `s3a://`: who counts or compares files needs one name. Pure.
"""

import posixpath
import re
import string
from dataclasses import dataclass

from sparkckpt.storage import Storage

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/]*))?(/.*)?")
_S3 = frozenset({"s3", "s3n", "s3a"})
_LOCAL = frozenset({"file", "local"})
_STATE = "state"
_PLAIN = frozenset(string.ascii_letters + string.digits + "_-")


def is_absolute(path: str) -> bool:
    """Whether a path in a handle does not lie below the state root it is relative to."""
    return path.startswith("/") or ":/" in path


def canonical(url: str) -> str:
    """The one form of an absolute path or URL; without a scheme it is a local path."""
    found = _URL.fullmatch(url)
    scheme, authority, path = found.groups("") if found else ("file", "", url)
    scheme = scheme.lower()
    if scheme in _LOCAL:
        scheme, authority = "file", ""
    elif scheme in _S3:
        scheme = "s3a"
    elif scheme == "memory":
        # fsspec's file system in memory has no authorities: memory://a/b is its /a/b.
        authority, path = "", f"/{authority}{path}"
    path = re.sub("//+", "/", path)
    return f"{scheme}://{authority}{path if path == '/' else path.rstrip('/')}"


def escaped_family(family: str) -> str:
    """The name of a column family as the names of its files have it (PROTOCOL.md section 2)."""
    return "".join(chr(byte) if chr(byte) in _PLAIN else f"%{byte:02X}" for byte in family.encode())


@dataclass(frozen=True)
class StateRoot:
    """The directory that relative paths of state are relative to."""

    url: str

    @classmethod
    def in_checkpoint(cls, url: str) -> "StateRoot":
        """That of the checkpoint directory at this URL."""
        return cls(f"{canonical(url)}/{_STATE}")

    @classmethod
    def of(cls, storage: Storage) -> "StateRoot":
        """The root at which this storage is."""
        return cls(canonical(storage.where("")))

    def name_of(self, path: str) -> str:
        """The name of a file: relative if it lies below the root, else its canonical URL."""
        if not is_absolute(path):
            return path
        url = canonical(path if ":/" in path else self._beside(path))
        return url.removeprefix(f"{self.url}/")

    def url_of(self, path: str) -> str:
        """The URL of a file whose path is relative to this root, or absolute."""
        return path if is_absolute(path) else f"{self.url}/{path}"

    def below(self, name: str) -> str | None:
        """A name that another root has given, relative to this one; None if it lies elsewhere."""
        relative = name.removeprefix(f"{self.url}/")
        return None if relative == name else relative

    @property
    def checkpoint(self) -> str:
        """The checkpoint directory that this is the state root of."""
        return posixpath.dirname(self.url)

    def _beside(self, path: str) -> str:
        """A path without a scheme is one on the root's own file system."""
        scheme, _, rest = self.url.partition("://")
        return f"{scheme}://{rest.partition('/')[0]}{path}"
