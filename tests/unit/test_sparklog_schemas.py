"""Spark's files with schemas of state: read as Spark wrote them, and changed in one place only."""

from pathlib import Path

import pytest

from sparkckpt.errors import CorruptStateError, UnsupportedFormatVersionError
from sparkckpt.sparklog.schemas import parse_schemas, with_schemas

DATA = Path(__file__).parent / "data/sparklog"
PROCESSOR = next((DATA / "processor/state/0/_stateSchema/default").iterdir()).read_bytes()
WINDOW = (DATA / "window/state/0/0/_metadata/schema").read_bytes()


def test_schemas_of_families() -> None:
    schemas = parse_schemas(PROCESSOR, "it")
    assert list(schemas) == ["$rowCounter_seen", "byRest", "seen", "total"]
    assert '"name":"sum"' in schemas["total"].value
    assert '"name":"userKey"' in schemas["byRest"].key
    assert '"name":"count"' in parse_schemas(WINDOW, "it")["default"].value


def test_a_schema_is_written_as_it_was_read() -> None:
    for data in (PROCESSOR, WINDOW):
        same = {s.family: (s.key, s.value) for s in parse_schemas(data, "it").values()}
        assert with_schemas(data, "it", same) == data
        assert with_schemas(data, "it", {"other": ("", "")}) == data


@pytest.mark.parametrize("text", ["short", "x" * 100_000, "\u00e4\U0001f600" * 40_000])
def test_only_one_schema_changes(text: str) -> None:
    changed = with_schemas(PROCESSOR, "it", {"seen": ("key " + text, text)})
    before, after = parse_schemas(PROCESSOR, "it"), parse_schemas(changed, "it")
    assert (after["seen"].key, after["seen"].value) == ("key " + text, text)
    for family in ("$rowCounter_seen", "byRest", "total"):
        assert (before[family].key, before[family].value) == (
            after[family].key,
            after[family].value,
        )


def test_damage_and_newer_versions_are_named() -> None:
    for data in (PROCESSOR[:-10], b"", b"\x00\x02v1", b"a schema"):
        with pytest.raises(CorruptStateError, match="/schema is corrupt"):
            parse_schemas(data, "/schema")
    with pytest.raises(UnsupportedFormatVersionError):
        parse_schemas(b"\x00\x02v4" + PROCESSOR[4:], "/schema")
