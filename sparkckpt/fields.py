"""Typed access to the JSON objects in the files of a checkpoint, ours and Spark's.

What is missing, of another type or out of range raises CorruptStateError and is named. Fields that
nobody asks for are ignored, as PROTOCOL.md demands of every reader.
"""

import re
from collections.abc import Sequence
from typing import Any

from sparkckpt.errors import CorruptStateError

MAX_LONG = 2**63 - 1


class Fields:
    """A JSON object; `what` and `where` name it in messages."""

    def __init__(self, value: object, what: str, where: str) -> None:
        self.what, self.where = what, where
        if not isinstance(value, dict):
            raise self.corrupt(f"{what} is no JSON object")
        self._values: dict[str, Any] = value

    def corrupt(self, why: str) -> CorruptStateError:
        return CorruptStateError(self.where, why)

    def require(self, condition: bool, why: str) -> None:
        if not condition:
            raise self.corrupt(f"in {self.what} {why}")

    def _get(self, name: str, kind: type) -> Any:
        value = self._values.get(name)
        if type(value) is not kind:
            raise self._wrong(name, value)
        return value

    def _wrong(self, name: str, value: object) -> CorruptStateError:
        return self.corrupt(f"in {self.what} '{name}' is {value!r}")

    def integer(self, name: str, minimum: int = 0, maximum: int = MAX_LONG) -> int:
        value: int = self._get(name, int)
        if not minimum <= value <= maximum:
            raise self._wrong(name, value)
        return value

    def text(self, name: str, pattern: str | None = None) -> str:
        """Text that fits the pattern; without one, any that is not empty."""
        value: str = self._get(name, str)
        if not (value if pattern is None else re.fullmatch(pattern, value)):
            raise self._wrong(name, value)
        return value

    def flag(self, name: str) -> bool:
        value: bool = self._get(name, bool)
        return value

    def has(self, name: str) -> bool:
        return self._values.get(name) is not None

    def pick(self, names: Sequence[str]) -> dict[str, Any]:
        """Some fields as they are, absent ones as None."""
        return {name: self._values.get(name) for name in names}

    def names(self) -> Sequence[str]:
        return list(self._values)

    def texts(self, name: str) -> dict[str, str]:
        """An object whose values are all text."""
        values: dict[str, str] = self._get(name, dict)
        for value in values.values():
            if type(value) is not str:
                raise self._wrong(name, values)
        return values

    def array(self, name: str) -> list[Any]:
        value: list[Any] = self._get(name, list)
        return value

    def integers(self, name: str) -> list[int]:
        """An array of numbers, none of them negative."""
        values: list[int] = self.array(name)
        if not all(type(value) is int and 0 <= value <= MAX_LONG for value in values):
            raise self._wrong(name, values)
        return values

    def object(self, name: str, what: str) -> "Fields":
        return Fields(self._values.get(name), what, self.where)

    def objects(self, name: str, what: str) -> Sequence["Fields"]:
        return [Fields(value, what, self.where) for value in self.array(name)]
