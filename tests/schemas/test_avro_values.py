"""Values of Avro for programs, as fastavro reads and writes them, and by the rules of resolution."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from ottla.schemas.avro_definition import parse_avro
from ottla.schemas.avro_values import AvroDecoder, AvroEncoder
from ottla.schemas.errors import WrongData
from tests.support.rows import for_each


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [
            {"name": each[0], "type": each[1]} | ({"default": each[2]} if len(each) > 2 else {})
            for each in fields
        ],
        **more,
    }


def logical(kind: Any, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


FIXED = {"type": "fixed", "name": "F", "size": 4}
NODE = record(("value", "int"), ("next", ["null", "Node"]), name="Node")
CASES: list[tuple[Any, Any]] = [
    ("null", None),
    ("boolean", True),
    ("int", -(2**31)),
    ("long", 2**63 - 1),
    ("float", 0.5),
    ("double", float("inf")),
    ("string", "é\0"),
    ("bytes", b"\0\xff"),
    (FIXED, b"abcd"),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B"),
    ({"type": "array", "items": "long"}, [1, 2, 3]),
    ({"type": "map", "values": {"type": "array", "items": "string"}}, {"a": [], "b": ["c"]}),
    (record(("a", "int"), ("b", ["null", "string"])), {"a": 1, "b": None}),
    (["null", "int", "string"], "text"),
    (NODE, {"value": 1, "next": {"value": 2, "next": None}}),
    (logical("int", "date"), date(1969, 12, 31)),
    (logical("int", "time-millis"), time(23, 59, 59, 999_000)),
    (logical("long", "time-micros"), time(0, 0, 0, 1)),
    (logical("long", "timestamp-millis"), datetime(2024, 2, 29, 12, tzinfo=UTC)),
    (logical("long", "timestamp-micros"), datetime(1960, 1, 1, 0, 0, 0, 7, tzinfo=UTC)),
    (logical("long", "local-timestamp-micros"), datetime(2024, 1, 1, 5, 6)),  # noqa: DTZ001
    (logical("bytes", "decimal", precision=9, scale=2), Decimal("-12.34")),
    ({**FIXED, "logicalType": "decimal", "precision": 9, "scale": 3}, Decimal("1.5")),
    (logical("string", "uuid"), UUID("12345678-1234-5678-1234-567812345678")),
    (["null", logical("long", "timestamp-millis")], datetime(2024, 1, 1, tzinfo=UTC)),
]


@for_each(("schema", "value"), CASES)
def test_fastavro_reads_what_is_written_and_the_other_way_round(schema: Any, value: Any) -> None:
    fastavro = pytest.importorskip("fastavro")
    definition = parse_avro(json.dumps(schema))
    parsed = fastavro.parse_schema(schema)
    data = AvroEncoder(definition).encode(value)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, parsed, value)
    assert data == out.getvalue()
    assert AvroDecoder(definition).decode(data) == value
    assert fastavro.schemaless_reader(io.BytesIO(data), parsed) == value


@for_each(
    ("writer", "reader", "value", "found"),
    [
        ("int", "long", 7, 7),
        ("int", "double", 7, 7.0),
        ("float", "double", 0.5, 0.5),
        ("string", "bytes", "é", "é".encode()),
        ("bytes", "string", b"a", "a"),
        ("int", ["null", "string", "long"], 7, 7),
        (["null", "int"], "long", 7, 7),
        (["string", "int"], ["int", "string"], "x", "x"),
        (record(("a", "int")), record(("b", "string", "d"), ("a", "long")), {"a": 1}, {"b": "d", "a": 1}),
        (
            record(("a", "int"), ("gone", NODE)),
            record(("a", "int")),
            {"a": 1, "gone": {"value": 1, "next": None}},
            {"a": 1},
        ),
        (
            record(("old", "int")),
            {"type": "record", "name": "R", "fields": [{"name": "new", "type": "int", "aliases": ["old"]}]},
            {"old": 1},
            {"new": 1},
        ),
        (
            record(("a", "int"), name="Old"),
            record(("a", "int"), name="New", aliases=["Old"]),
            {"a": 1},
            {"a": 1},
        ),
        (
            {"type": "enum", "name": "E", "symbols": ["A", "B"]},
            {"type": "enum", "name": "E", "symbols": ["X", "A"], "default": "X"},
            "B",
            "X",
        ),
        (
            record(("a", "int")),
            record(
                ("a", "int"), ("l", {"type": "array", "items": "int"}, [1]), ("d", logical("int", "date"), 0)
            ),
            {"a": 1},
            {"a": 1, "l": [1], "d": date(1970, 1, 1)},
        ),
    ],
)
def test_a_reader_gets_its_own_form(writer: Any, reader: Any, value: Any, found: Any) -> None:
    written = parse_avro(json.dumps(writer))
    decoder = AvroDecoder(written, parse_avro(json.dumps(reader)))
    data = AvroEncoder(written).encode(value)
    assert decoder.decode(data) == found
    again = decoder.decode(data)
    assert again == found
    if isinstance(again, dict) and "l" in again:  # a default belongs to the schema alone
        again["l"].append(2)
        assert decoder.decode(data) == found


@pytest.mark.parametrize(
    ("writer", "reader", "value", "reason"),
    [
        ("string", "int", "x", "the reader has int where the writer has string"),
        (record(("a", "int")), record(("b", "int")), {"a": 1}, "has no field 'b', which has no default"),
        (["null", "string"], "string", None, "the reader has string where the writer has null"),
    ],
)
def test_what_a_reader_cannot_have_says_so(writer: Any, reader: Any, value: Any, reason: str) -> None:
    written = parse_avro(json.dumps(writer))
    decoder = AvroDecoder(written, parse_avro(json.dumps(reader)))
    with pytest.raises(WrongData, match=reason):
        decoder.decode(AvroEncoder(written).encode(value))


@pytest.mark.parametrize(
    ("schema", "value", "reason"),
    [
        ("int", 2**31, "is no int"),
        ("int", True, "is no int"),
        (record(("a", "int")), {}, "R lacks the field 'a'"),
        (record(("a", "int")), {"a": 1, "b": 2}, "R has no field 'b'"),
        (record(("a", record(("b", "int"), name="B"))), {"a": {"b": "x"}}, "a: b: 'x' is no int"),
        (["null", "int"], "x", "none of the union null, int"),
        (logical("long", "timestamp-millis"), datetime(2024, 1, 1), "has no time zone"),  # noqa: DTZ001
        (logical("bytes", "decimal", precision=3, scale=1), Decimal("1.23"), "more than 1 digits after"),
        (logical("bytes", "decimal", precision=3, scale=1), Decimal("123.4"), "more than 3 digits"),
        (FIXED, b"abc", "is no F"),
    ],
)
def test_what_does_not_fit_is_refused(schema: Any, value: Any, reason: str) -> None:
    with pytest.raises(WrongData, match=reason):
        AvroEncoder(parse_avro(json.dumps(schema))).encode(value)


@dataclass
class Point:
    x: int
    y: int | None = None


def test_records_may_be_dataclasses_and_unions_may_be_named() -> None:
    point = record(("x", "int"), ("y", ["null", "int"]), name="Point")
    other = record(("x", "int"), name="Other")
    both = parse_avro(json.dumps({"type": "array", "items": [other, point]}))
    data = AvroEncoder(both).encode([Point(1), Point(1, 2), ("Point", {"x": 3, "y": None}), {"x": 4}])
    assert AvroDecoder(both).decode(data) == [
        {"x": 1, "y": None},
        {"x": 1, "y": 2},
        {"x": 3, "y": None},
        {"x": 4},
    ]


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ({"type": "array", "items": "null"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        ({"type": "array", "items": "null"}, b"\x80\x80\x80\x80\x80\x01" * 3),
        ("string", b"\xff\xff\xff\xff\xff\xff\xff\xff\x7f"),
        ("long", b"\xff" * 20),
        ("string", b"\x02\xff"),
        ("boolean", b"\x07"),
        ("int", b"\x00\x00"),
        (["null", "int"], b"\x08"),
        (logical("int", "date"), b"\xfe\xff\xff\xff\x0f"),
        (record(("r", "R")), b""),
        (NODE, b"\x00\x02" * 100_000 + b"\x00\x00"),
        ("int", b""),
    ],
)
def test_hostile_data_are_refused(schema: Any, data: bytes) -> None:
    with pytest.raises(WrongData):
        AvroDecoder(parse_avro(json.dumps(schema), is_new=False)).decode(data)
