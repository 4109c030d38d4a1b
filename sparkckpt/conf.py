"""Every option once: name, type, default and one line of documentation.

The README's table, `sparkckpt options`, the validation in `configure` and the JVM side
(`SparkckptConf.scala`, compared by a test) all follow this table. It must never read the
environment or a session: it says what options exist, not what they are set to.
"""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sparkckpt.errors import InvalidConfError

PREFIX = "spark.sql.streaming.stateStore.sparkckpt."
"""Spark hands a state store provider only options under `spark.sql.streaming.stateStore.`"""

Value = str | int | float


@dataclass(frozen=True)
class Option:
    """One option: its name below PREFIX, how its text is read, and what it is for."""

    name: str
    kind: str
    default: Value
    doc: str
    parse: Callable[[str], Value]

    @property
    def key(self) -> str:
        return PREFIX + self.name

    @property
    def keyword(self) -> str:
        """The name as a Python keyword argument: `merge.maxDeltas` is `merge_max_deltas`."""
        return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", self.name).replace(".", "_").lower()

    @property
    def default_text(self) -> str:
        if self.kind == "bytes" and isinstance(self.default, int) and self.default % 1024 == 0:
            return f"{self.default // 1024}k"
        return str(self.default)

    def value_of(self, text: object) -> Value:
        try:
            return self.parse(str(text).strip())
        except ValueError as error:
            raise InvalidConfError.value(self.key, text, str(error)) from error


def _integer(minimum: int, maximum: int) -> Callable[[str], Value]:
    def parse(text: str) -> Value:
        if not re.fullmatch(r"-?\d+", text) or not minimum <= int(text) <= maximum:
            raise ValueError(f"it must be a whole number from {minimum} to {maximum}")
        return int(text)

    return parse


def _number(minimum: float) -> Callable[[str], Value]:
    def parse(text: str) -> Value:
        if not re.fullmatch(r"-?\d+(\.\d+)?", text) or float(text) < minimum:
            raise ValueError(f"it must be a number not below {minimum}")
        return float(text)

    return parse


def _bytes(text: str) -> Value:
    """A size as Spark writes it: plain bytes, or with a unit in powers of 1024 (20k, 4m, 1g)."""
    found = re.fullmatch(r"(\d+)([kmgt]?)(i?b)?", text.lower())
    if found is None:
        raise ValueError("it must be a size such as 4096, 20k or 1m")
    return int(found[1]) << (10 * " kmgt".index(found[2] or " "))


def _choice(*choices: str) -> Callable[[str], Value]:
    def parse(text: str) -> Value:
        if text.lower() not in choices:
            raise ValueError(f"it must be one of {', '.join(choices)}")
        return text.lower()

    return parse


OPTIONS: tuple[Option, ...] = (
    Option(
        "maxParallelism",
        "int",
        32768,
        "Number of key groups, the bound of parallelism; pinned by a checkpoint's first batch.",
        _integer(1, 32768),
    ),
    Option(
        "engine",
        "string",
        "rocksdb",
        "Local working store of the executors: rocksdb.",
        _choice("rocksdb"),
    ),
    Option(
        "inlineThreshold",
        "bytes",
        20 * 1024,
        "A change set up to this size goes into the handle instead of files of its own; 0 never.",
        _bytes,
    ),
    Option(
        "compression.codec",
        "string",
        "zstd",
        "Codec of the state files: zstd, lz4 or none.",
        _choice("zstd", "lz4", "none"),
    ),
    Option(
        "compression.zstd.level",
        "int",
        3,
        "Level of the zstd codec, 1 (fast) to 22 (small).",
        _integer(1, 22),
    ),
    Option(
        "recordBatchRows",
        "int",
        16384,
        "Rows per record batch of a state file, the unit that a rescaled load can skip.",
        _integer(1, 1 << 30),
    ),
    Option(
        "merge.maxDeltas",
        "int",
        16,
        "Files of changes that a column family may have before some of them are merged.",
        _integer(2, 1 << 20),
    ),
    Option(
        "merge.baseRatio",
        "float",
        1.0,
        "A merge includes the base once the changes weigh this multiple of its bytes.",
        _number(0.0),
    ),
)


def settings_of(options: Mapping[str, object]) -> dict[str, str]:
    """Spark settings for options by name (`maxParallelism`) or keyword (`max_parallelism`)."""
    by_name = {option.name: option for option in OPTIONS}
    by_name |= {option.keyword: option for option in OPTIONS}
    settings = {}
    for name, value in options.items():
        option = by_name.get(name.removeprefix(PREFIX))
        if option is None:
            raise InvalidConfError.unknown(name, difflib.get_close_matches(name, by_name, n=2))
        option.value_of(value)
        settings[option.key] = str(value)
    return settings
