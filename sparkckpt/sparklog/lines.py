"""The form that Spark's logs share: a line with the version, then lines of JSON or text."""

import json
import re
from collections.abc import Sequence

from sparkckpt.errors import CorruptStateError, UnsupportedFormatVersionError
from sparkckpt.fields import Fields


def versioned_lines(data: bytes, where: str, newest_version: int) -> tuple[int, Sequence[str]]:
    """The version in the first line and the lines that follow."""
    try:
        first, *lines = data.decode().removesuffix("\n").split("\n")
    except UnicodeDecodeError as error:
        raise CorruptStateError(where, f"it is not UTF-8: {error}") from error
    stated = re.fullmatch(r"v([1-9][0-9]{0,8})", first.strip())
    if stated is None:
        raise CorruptStateError(where, f"its first line is {first[:40]!r}, not a version")
    version = int(stated[1])
    if version > newest_version:
        raise UnsupportedFormatVersionError(where, version, newest_version)
    return version, lines


def json_object(text: str, what: str, where: str) -> Fields:
    try:
        return Fields(json.loads(text), what, where)
    except (ValueError, RecursionError) as error:
        raise CorruptStateError(where, f"{what} is not JSON: {error}") from error
