"""Where the parts of a JSON text lie in it, so that one can be replaced and all else stay as it is.

Spark's files hold JSON of others, such as the offsets of sources. What is written anew might come
out in another form than its reader knows, so only the bytes that must change are changed.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import NamedTuple

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")


class Span(NamedTuple):
    """From the first character of a value to the one after its last."""

    start: int
    end: int


def members(text: str, start: int = 0) -> dict[str, Span]:
    """The values of the object that begins here; ValueError if none does."""
    found: dict[str, Span] = {}

    def member(at: int) -> int:
        name, at = scanstring(text, _expect(text, at, '"'))
        at = _skip(text, _expect(text, _skip(text, at), ":"))
        found[name] = _value(text, at)
        return found[name].end

    _items(text, start, "{}", member)
    return found


def elements(text: str, start: int) -> list[Span]:
    """The values of the array that begins here; ValueError if none does."""
    found: list[Span] = []

    def element(at: int) -> int:
        found.append(_value(text, at))
        return found[-1].end

    _items(text, start, "[]", element)
    return found


def replaced(text: str, values: Mapping[Span, object]) -> str:
    """The text with other values in some spans, which do not overlap."""
    for span, value in sorted(values.items(), reverse=True):
        text = text[: span.start] + compact(value) + text[span.end :]
    return text


def with_member(text: str, start: int, name: str, value: object) -> str:
    """The text with a member of the object that begins here set, or added if it has none."""
    present = members(text, start)
    if name in present:
        return replaced(text, {present[name]: value})
    at = _expect(text, _skip(text, start), "{")
    separator = "," if present else ""
    return f"{text[:at]}{compact(name)}:{compact(value)}{separator}{text[at:]}"


def compact(value: object) -> str:
    """As Spark writes JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _items(text: str, start: int, brackets: Sequence[str], item: Callable[[int], int]) -> None:
    at = _skip(text, _expect(text, _skip(text, start), brackets[0]))
    while text[at : at + 1] != brackets[1]:
        at = _skip(text, item(at))
        if text[at : at + 1] != brackets[1]:
            at = _skip(text, _expect(text, at, ","))


def _value(text: str, at: int) -> Span:
    _, end = _DECODER.raw_decode(text, at)
    return Span(at, end)


def _skip(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space else at


def _expect(text: str, at: int, character: str) -> int:
    if text[at : at + 1] != character:
        raise ValueError(f"{character!r} is missing at {at}")
    return at + 1
