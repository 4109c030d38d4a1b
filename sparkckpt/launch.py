"""What the user has told Spark outside the session builder, and how to add to it.

Spark replaces a setting by the one of the next stronger source; ours must be appended to whichever
source wins. This module reads spark-defaults and PYSPARK_SUBMIT_ARGS and computes values with ours
appended. It must never write to a file or drop anything a user has set.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

JARS_KEY = "spark.jars"
PLUGINS_KEY = "spark.plugins"
MASTER_KEY = "spark.master"

_FLAGS = {JARS_KEY: ("--jars",), MASTER_KEY: ("--master",)}
_CONF_FLAGS = ("--conf", "-c")


@dataclass(frozen=True)
class LaunchSettings:
    """The settings a JVM would be launched with, before the builder's own are considered.

    `submit_args` are the words of PYSPARK_SUBMIT_ARGS, which win over the builder; `defaults` are
    those of the properties file, which lose to it.
    """

    submit_args: tuple[str, ...]
    defaults: Mapping[str, str]

    @staticmethod
    def read(environment: Mapping[str, str], spark_home: Path) -> "LaunchSettings":
        words = tuple(shlex.split(environment.get("PYSPARK_SUBMIT_ARGS", "")))
        named = [word for _, word in _values(words, ("--properties-file",))]
        directory = environment.get("SPARK_CONF_DIR") or spark_home / "conf"
        path = Path(named[-1]) if named else Path(directory) / "spark-defaults.conf"
        return LaunchSettings(words, read_properties(path.read_text()) if path.is_file() else {})

    def value_of(self, key: str, builder_options: Mapping[str, object]) -> str | None:
        """The value that would take effect for `key`, or None."""
        if given := [value for _, value in _settings(self.submit_args, key)]:
            return given[-1]
        value = builder_options.get(key, self.defaults.get(key))
        return None if value is None else str(value)

    def submit_args_with(self, key: str, value: str) -> tuple[str, ...]:
        """The submit arguments with every occurrence of `key` set to `value`."""
        words = list(self.submit_args)
        for index, old in _settings(self.submit_args, key):
            words[index] = words[index].removesuffix(old) + value
        return tuple(words)


def append_item(current: str | None, item: str) -> str:
    """The comma-separated list with `item` at its end, unless it is there already."""
    items = [entry.strip() for entry in (current or "").split(",") if entry.strip()]
    return ",".join(items if item in items else [*items, item])


def read_properties(text: str) -> dict[str, str]:
    """The settings in a properties file as Spark reads it."""
    joined = re.sub(r"\\\r?\n[ \t]*", "", text)
    properties = {}
    for line in (line.strip() for line in joined.splitlines()):
        if line and line[0] not in "#!":
            key, _, value = re.sub(r"\s*[=:\s]\s*", "\0", line, count=1).partition("\0")
            properties[key] = value.strip()
    return properties


def _settings(words: Sequence[str], key: str) -> Iterator[tuple[int, str]]:
    """Index of the word and value of each setting of `key`, by its own flag or by --conf."""
    yield from _values(words, _FLAGS.get(key, ()))
    for index, setting in _values(words, _CONF_FLAGS):
        name, separator, value = setting.partition("=")
        if separator and name.strip() == key:
            yield index, value


def _values(words: Sequence[str], flags: Sequence[str]) -> Iterator[tuple[int, str]]:
    for index, word in enumerate(words):
        name, separator, value = word.partition("=")
        if name in flags and separator:
            yield index, value
        elif word in flags and index + 1 < len(words):
            yield index + 1, words[index + 1]
