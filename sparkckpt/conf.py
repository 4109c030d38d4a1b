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

NOTHING = "none"
"""How an empty value is written where nothing cannot be."""

Value = str | int | float | bool


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
        return _text_of(self.default) or NOTHING

    def value_of(self, text: object) -> Value:
        try:
            return self.parse(_text_of(text).strip())
        except ValueError as error:
            raise InvalidConfError.value(self.key, text, str(error)) from error


def _text_of(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _boolean(text: str) -> Value:
    if text.lower() not in ("true", "false"):
        raise ValueError("it must be true or false")
    return text.lower() == "true"


def _text(text: str) -> Value:
    return "" if text.lower() == NOTHING else text


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


def _bytes_up_to(maximum: int) -> Callable[[str], Value]:
    def parse(text: str) -> Value:
        size = _bytes(text)
        if size > maximum:
            raise ValueError(f"it must be at most {maximum >> 20}m")
        return size

    return parse


def _bytes(text: str) -> int:
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


def _optional(parse: Callable[[str], Value]) -> Callable[[str], Value]:
    return lambda text: "" if text.lower() in ("", NOTHING) else parse(text)


def _items(item: str, what: str) -> Callable[[str], Value]:
    """Items of this pattern, separated by commas; their text is the value."""

    def parse(text: str) -> Value:
        items = [part.strip() for part in text.split(",")]
        if not all(re.fullmatch(item, part, re.ASCII) for part in items):
            raise ValueError(f"it must be {what}")
        return ",".join(items)

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
        "auto",
        "Working state of executors: auto (memory, rocksdb when it is full), memory or rocksdb.",
        _choice("auto", "memory", "rocksdb"),
    ),
    Option(
        "memory.limit",
        "bytes",
        0,
        "State in the heap of an executor, for auto within Spark's storage region; 0: half of it.",
        _bytes,
    ),
    Option(
        "inlineThreshold",
        "bytes",
        20 * 1024,
        "A change set up to this size goes into the handle instead of files of its own; 0 never.",
        _bytes,
    ),
    Option(
        "operatorState.maxBytes",
        "bytes",
        16 << 20,
        "What the operator state of one partition may have; more fails the batch.",
        _bytes_up_to(1 << 30),
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
    Option(
        "inband.batchRows",
        "int",
        10000,
        "Rows after which a record batch to the Python worker of a stateful operator ends.",
        _integer(1, 1 << 24),
    ),
    Option(
        "inband.batchBytes",
        "bytes",
        16 << 20,
        "Bytes after which one ends, within the rows of a key if need be.",
        _bytes,
    ),
    Option(
        "inband.stateBytes",
        "bytes",
        64 << 10,
        "Lists and maps of a key above this size are fetched when used, not sent with its rows.",
        _bytes,
    ),
    Option(
        "coordinator.enabled",
        "bool",
        True,
        "Whether the coordinator completes checkpoints; without it executors delete old state.",
        _boolean,
    ),
    Option(
        "coordinator.python",
        "string",
        "",
        "Python that runs the coordinator, set when the application starts; none: the driver's.",
        _text,
    ),
    Option(
        "checkpoint.interval",
        "int",
        1,
        "Every so many batches a checkpoint is completed.",
        _integer(1, 1 << 30),
    ),
    Option(
        "checkpoint.retained",
        "int",
        10,
        "Number of completed checkpoints that are kept.",
        _integer(1, 1 << 30),
    ),
    Option(
        "checkpoint.timeout",
        "int",
        600,
        "Seconds after which a checkpoint that is not complete is aborted.",
        _integer(1, 1 << 30),
    ),
    Option(
        "checkpoint.tolerableFailures",
        "int",
        -1,
        "Consecutive checkpoints that may fail before checkpoint.onFailure applies; -1: any.",
        _integer(-1, 1 << 30),
    ),
    Option(
        "checkpoint.onFailure",
        "string",
        "warn",
        "What too many failed checkpoints lead to: warn, or stop the query before its next batch.",
        _choice("warn", "stop"),
    ),
    Option(
        "store",
        "string",
        "files",
        "Where completed checkpoints are registered: files (beside the state) or zookeeper.",
        _choice("files", "zookeeper"),
    ),
    Option(
        "zookeeper.quorum",
        "string",
        "",
        "ZooKeeper servers as host:port,host:port, for store=zookeeper.",
        _text,
    ),
    Option(
        "zookeeper.root",
        "string",
        "/sparkckpt",
        "ZooKeeper node below which checkpoints are registered.",
        _text,
    ),
    Option(
        "restore.path",
        "string",
        "",
        "Checkpoint that a query whose checkpointLocation is empty starts from.",
        _text,
    ),
    Option(
        "restore.query",
        "string",
        "",
        "Name of the query that is restored; none: the only stateful one that starts empty.",
        _text,
    ),
    Option(
        "restore.mode",
        "string",
        "no-claim",
        "What becomes of the files restored from: no-claim, claim or copy.",
        _choice("no-claim", "claim", "copy"),
    ),
    Option(
        "restore.checkpointId",
        "int",
        "",
        "Which completed checkpoint of restore.path to restore; none: the newest.",
        _optional(_integer(1, (1 << 63) - 1)),
    ),
    Option(
        "restore.parallelism",
        "int",
        "",
        "Number of state partitions after the restore; none: as it was.",
        _optional(_integer(1, 32768)),
    ),
    Option(
        "restore.maxParallelism",
        "int",
        "",
        "Number of key groups after the restore; none: as it was.",
        _optional(_integer(1, 32768)),
    ),
    Option(
        "restore.allowNonRestoredState",
        "bool",
        False,
        "Whether the state of operators may be left behind that restore.dropOperators names.",
        _boolean,
    ),
    Option(
        "restore.mapOperators",
        "string",
        "",
        "New ids of operators, as OLD=NEW,OLD=NEW.",
        _optional(_items(r"\d+\s*=\s*\d+", "OLD=NEW,OLD=NEW with operator ids")),
    ),
    Option(
        "restore.dropOperators",
        "string",
        "",
        "Ids of operators whose state is left behind, as ID,ID.",
        _optional(_items(r"\d+", "operator ids, as ID,ID")),
    ),
    Option(
        "restore.addOperators",
        "string",
        "",
        "New operators, which start with empty state, as ID=NAME,ID=NAME.",
        _optional(_items(r"\d+\s*=\s*[\w:]+", "ID=NAME,ID=NAME with ids and names of operators")),
    ),
    Option(
        "restore.allowSinkAhead",
        "bool",
        False,
        "Whether a query without state may start whose file sink has the output of later batches.",
        _boolean,
    ),
    Option(
        "rescaleOnRestart",
        "bool",
        False,
        "Whether a query is rescaled at its start to the session's spark.sql.shuffle.partitions.",
        _boolean,
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
        settings[option.key] = _text_of(value)
    return settings
