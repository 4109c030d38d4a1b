import re
from pathlib import Path

import pytest

from sparkckpt.conf import OPTIONS, PREFIX, Option, settings_of
from sparkckpt.errors import InvalidConfError
from sparkckpt.launch import read_properties

ROOT = Path(__file__).resolve().parents[2]
BY_NAME = {option.name: option for option in OPTIONS}


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_each_default_is_valid_and_reads_back_from_its_text(option: Option) -> None:
    assert option.value_of(option.default_text) == option.default
    assert option.value_of(option.default) == option.default


def test_options_are_documented_in_one_line() -> None:
    assert all(option.doc.endswith(".") and "\n" not in option.doc for option in OPTIONS)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("inlineThreshold", "0", 0),
        ("inlineThreshold", "20k", 20480),
        ("inlineThreshold", "1MB", 1 << 20),
        ("inlineThreshold", "2kib", 2048),
        ("compression.codec", " LZ4 ", "lz4"),
        ("merge.baseRatio", "0.5", 0.5),
        ("merge.baseRatio", "2", 2.0),
        ("coordinator.enabled", "FALSE", False),
        ("coordinator.python", "none", ""),
        ("checkpoint.tolerableFailures", "-1", -1),
        ("restore.parallelism", "", ""),
        ("restore.parallelism", "None", ""),
        ("restore.parallelism", "6", 6),
        ("restore.mapOperators", "2=1, 3 = 2", "2=1,3 = 2"),
        ("restore.dropOperators", "2, 3", "2,3"),
        ("restore.addOperators", "1=stateStoreSave", "1=stateStoreSave"),
    ],
)
def test_values_are_read_as_spark_reads_them(name: str, text: str, value: object) -> None:
    assert BY_NAME[name].value_of(text) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("maxParallelism", "0"),
        ("maxParallelism", "32769"),
        ("maxParallelism", "many"),
        ("inlineThreshold", "-1"),
        ("inlineThreshold", "20 bananas"),
        ("operatorState.maxBytes", "1025m"),
        ("compression.codec", "gzip"),
        ("compression.zstd.level", "23"),
        ("merge.baseRatio", "-0.1"),
        ("coordinator.enabled", "perhaps"),
        ("checkpoint.onFailure", "panic"),
        ("restore.mode", "steal"),
        ("restore.parallelism", "0"),
        ("restore.maxParallelism", "32769"),
        ("restore.checkpointId", "newest"),
        ("restore.mapOperators", "2=1,3"),
        ("restore.dropOperators", "2,"),
        ("restore.addOperators", "stateStoreSave"),
        ("restore.allowSinkAhead", "sure"),
        ("rescaleOnRestart", "always"),
    ],
)
def test_an_impossible_value_is_named_with_its_option(name: str, text: str) -> None:
    with pytest.raises(InvalidConfError, match=re.escape(f"{PREFIX}{name} has the value '{text}'")):
        BY_NAME[name].value_of(text)


def test_settings_take_keywords_names_and_full_keys() -> None:
    options = {"max_parallelism": 128, "compression.codec": "lz4", PREFIX + "merge.maxDeltas": "8"}
    assert settings_of({"coordinator_enabled": False}) == {PREFIX + "coordinator.enabled": "false"}
    assert settings_of(options) == {
        PREFIX + "maxParallelism": "128",
        PREFIX + "compression.codec": "lz4",
        PREFIX + "merge.maxDeltas": "8",
    }


def test_an_unknown_option_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(InvalidConfError, match="Did you mean max_parallelism or maxParallelism"):
        settings_of({"max_paralelism": 4})


@pytest.mark.parametrize("path", sorted((ROOT / "conf").glob("*.properties")), ids=lambda p: p.name)
def test_ready_properties_files_use_options_that_exist(path: Path) -> None:
    commented = re.findall(rf"^# ?({re.escape(PREFIX)}\S+\s+\S+)$", path.read_text(), re.MULTILINE)
    properties = read_properties(path.read_text()) | read_properties("\n".join(commented))
    ours = {key: value for key, value in properties.items() if key.startswith(PREFIX)}
    assert settings_of(ours) == ours
    assert properties["spark.plugins"] == "org.apache.spark.sql.sparkckpt.SparkckptPlugin"


def test_the_readme_lists_every_option() -> None:
    rows = re.findall(
        r"^\| `([\w.]+)` \| (\w+) \| `([^`]+)` \| (.+) \|$",
        (ROOT / "README.md").read_text(),
        re.MULTILINE,
    )
    assert rows == [(o.name, o.kind, o.default_text, o.doc) for o in OPTIONS]
