"""Errors of storage, and of the files that lie in it."""

from collections.abc import Sequence

from sparkckpt.errors.base import SparkckptError


class UnreachableStorageError(SparkckptError):
    """The storage of a path cannot be asked for anything."""

    @classmethod
    def open(cls, path: str, why: str) -> "UnreachableStorageError":
        return cls(
            f"{path} cannot be opened: {why}. Check its scheme, and that this Python has the "
            "fsspec package for it (s3fs for s3://, gcsfs for gs://, adlfs for abfs://)."
        )

    @classmethod
    def connection(cls, path: str, why: str) -> "UnreachableStorageError":
        return cls(
            f"The storage of {path} cannot be reached: {why}. Check the network, and the endpoint "
            "and the region that its client is set up with (for s3:// AWS_ENDPOINT_URL and "
            "AWS_DEFAULT_REGION); then do the same again."
        )

    @classmethod
    def credentials(cls, path: str, why: str) -> "UnreachableStorageError":
        return cls(
            f"The storage of {path} does not know who asks: {why}. Give its client valid "
            "credentials where it looks for them (for s3:// AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or a profile; for gs:// GOOGLE_APPLICATION_CREDENTIALS)."
        )


class CorruptStateError(SparkckptError):
    """A file of a checkpoint, ours or Spark's, does not hold what was written to it."""

    def __init__(self, path: str, what: str) -> None:
        self.path, self.what = path, what
        super().__init__(
            f"{path} is corrupt: {what}. Nothing of it was used. Restore the file from a copy, or "
            "restart the query from an older checkpoint or savepoint."
        )


class UnsupportedFormatVersionError(SparkckptError):
    """A file was written by a newer sparkckpt, or by a newer Spark."""

    def __init__(self, path: str, version: int, newest_known: int) -> None:
        self.path = path
        self.what = f"it has format version {version}, newer than {newest_known}"
        super().__init__(
            f"{path} has format version {version}, but this sparkckpt reads versions up to "
            f"{newest_known}. Upgrade sparkckpt to a release that reads it."
        )


class UnreadableFileError(SparkckptError):
    """Storage does not hand out a file that a checkpoint refers to."""

    def __init__(self, path: str, why: str) -> None:
        self.path, self.what = path, f"it cannot be read: {why}"
        super().__init__(
            f"{path} cannot be read: {why}. Check that it exists, that its storage is reachable "
            "and that this user may read it."
        )


class FileMissingError(UnreadableFileError):
    """A file that a checkpoint should have does not exist."""


class UnwritableFileError(SparkckptError):
    """Storage does not let a file be written or deleted."""

    @classmethod
    def write(cls, path: str, why: str) -> "UnwritableFileError":
        return cls(
            f"{path} cannot be written: {why}. Check that its storage is reachable and has room, "
            "and that this user may write there."
        )

    @classmethod
    def delete(cls, path: str, why: str) -> "UnwritableFileError":
        return cls(
            f"{path} cannot be deleted: {why}. Check that its storage is reachable and that this "
            "user may delete there."
        )


class FileExistsAlreadyError(SparkckptError):
    """A file that must be new is there already."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} exists already and was left as it is. Something else has created it: check "
            "that no second query runs on the same checkpoint directory."
        )


class UnknownFamilyError(SparkckptError):
    """A store has no column family of that name."""

    def __init__(self, where: str, family: str, available: Sequence[str]) -> None:
        has = f"It has {', '.join(available)}." if available else "It has none yet."
        super().__init__(f"The state {where} has no column family {family!r}. {has}")


class IncompatibleSchemasError(SparkckptError):
    """Files of one column family hold types that cannot be brought together."""

    def __init__(self, column: str, older: str, newer: str) -> None:
        super().__init__(
            f"The column {column!r} has type {older} in an older state file and {newer} in a newer "
            "one, and the older rows cannot be converted. Read the files one by one instead."
        )
