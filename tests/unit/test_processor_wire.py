"""The exchange itself, and schemas without Spark."""

import json

import pytest
from pyspark.sql.types import (
    CharType,
    DecimalType,
    LongType,
    MapType,
    StringType,
    StructType,
    VarcharType,
)

from sparkckpt.errors import WireVersionError
from sparkckpt.processor.schemas import why_not
from sparkckpt.processor.wire import Control
from sparkckpt.testing.ddl import parse_schema

CONTROL = {
    "version": 1,
    "phase": "input",
    "keyOffsets": [0],
    "valueOffsets": [0, 1],
    "batchTimestampMs": 5,
    "watermarkMs": -1,
    "watermarkPresent": False,
    "timezone": "UTC",
    "maxRecordsPerBatch": 0,
    "fetch": {"port": 1, "secret": "s"},
    "operatorState": "AAE=",
}


def test_control_is_read():
    control = Control.from_json(json.dumps(CONTROL))
    assert control.fetch == (1, "s")
    assert control.operator_state == b"\x00\x01"
    assert not control.expired


def test_another_version_of_the_wire_is_refused():
    with pytest.raises(WireVersionError, match="version 2"):
        Control.from_json(json.dumps({**CONTROL, "version": 2}))


def test_schemas_are_parsed():
    schema = parse_schema(
        "a long, `my ``b` STRING NOT NULL COMMENT 'it\\'s, here', c: decimal(10, 2), "
        "d map<string, array<struct<x: int, y: double>>>, e char(3), f varchar(4), "
        "g string collate UTF8_LCASE"
    )
    assert schema.names == ["a", "my `b", "c", "d", "e", "f", "g"]
    assert not schema["my `b"].nullable
    kinds = [field.dataType for field in schema.fields]
    assert kinds[0] == LongType()
    assert kinds[2] == DecimalType(10, 2)
    assert isinstance(kinds[3], MapType)
    assert kinds[3].valueType.elementType.names == ["x", "y"]
    assert kinds[4:6] == [CharType(3), VarcharType(4)]
    assert kinds[6] == StringType("UTF8_LCASE")


@pytest.mark.parametrize("wrong", ["a", "a long b", "a lng", "a array<int", "a decimal(", "a ;"])
def test_wrong_schemas_are_named(wrong):
    with pytest.raises(ValueError, match="The schema"):
        parse_schema(wrong)


def test_types_that_cannot_travel_are_named():
    schema = StructType.fromJson(
        {
            "type": "struct",
            "fields": [
                {
                    "name": "a",
                    "type": {"type": "array", "elementType": "variant", "containsNull": True},
                    "nullable": True,
                    "metadata": {},
                }
            ],
        }
    )
    assert "variant" in (why_not(state=schema) or "")
    assert "no fields" in (why_not(state=StructType()) or "")
    assert why_not(state=parse_schema("a map<string, array<decimal(10,2)>>")) is None
