"""Avro to Arrow: the kernel's columns against values decoded one by one, by schemas that are drawn."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from ottla.schemas.avro_arrow import AvroArrowDecoder, _SlowDecoder
from ottla.schemas.avro_arrow_encoder import AvroArrowEncoder
from ottla.schemas.avro_definition import AvroDefinition, parse_avro
from ottla.schemas.avro_values import AvroDecoder, AvroEncoder
from ottla.schemas.errors import SchemaError
from ottla.schemas.parsed import InvalidSchemaError

ROWS = 40


def parsed(schema: Any) -> AvroDefinition:
    return parse_avro(json.dumps(schema))


def record(*fields: Any, name: str = "Top") -> dict[str, Any]:
    found = []
    for at, each in enumerate(fields):
        is_field = isinstance(each, dict) and "name" in each and "fields" not in each and "size" not in each
        found.append(each if is_field and "symbols" not in each else {"name": f"f{at}", "type": each})
    return {"type": "record", "name": name, "fields": found}


def decoded(
    data: list[bytes | None], writer: Any, reader: Any = None, head: int = 0
) -> tuple[list[Any], dict[int, str]]:
    """The values in columns, after those of the slow decoder were found to be the same."""
    written = parsed(writer)
    wanted = None if reader is None else parsed(reader)
    decoder = AvroArrowDecoder(written, wanted)
    assert decoder.is_columnar or reader is not None
    values = pa.array(data, pa.binary())
    arrays, errors, at = [], {}, 0
    for part, faults in decoder.decode(values, head):
        part.validate(full=True)
        arrays.append(part)
        errors.update({row + at: why for row, why in faults})
        at += len(part)
    found = pa.concat_arrays(arrays)
    assert found.type.equals(decoder.type)
    slow = _SlowDecoder(AvroDecoder(written, wanted), (wanted or written).root, decoder.type)
    expected, slow_errors = slow.decode(values, head)
    wrong = {row for row, _ in slow_errors}
    # Texts and numbers that the reader does not have are read over, and not looked at.
    assert wrong == errors.keys() or (reader is not None and wrong > errors.keys())
    for row, (one, other) in enumerate(zip(found.to_pylist(), expected.to_pylist(), strict=True)):
        assert settled(one) == settled(other) or row in wrong - errors.keys()
    return found.to_pylist(), errors


def settled(value: Any) -> Any:
    """A value that can be compared: damaged data have numbers that are none, and names twice in a map, of
    which the slow decoder keeps the last.
    """
    if isinstance(value, dict):
        return {name: settled(each) for name, each in value.items()}
    if isinstance(value, list):
        if value and all(isinstance(each, tuple) for each in value):
            return {name: settled(each) for name, each in value}
        return [settled(each) for each in value]
    return repr(value)


def encoded(schema: Any, *values: Any) -> list[bytes | None]:
    encode = AvroEncoder(parsed(schema)).encode
    return [encode(each) for each in values]


def test_each_type_becomes_a_column_of_its_own() -> None:
    schema = record(
        "long",
        "int",
        "float",
        "double",
        "boolean",
        "bytes",
        {"type": "fixed", "name": "F", "size": 2},
        {"type": "enum", "name": "E", "symbols": ["A", "B"]},
        {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 2},
        {"type": "int", "logicalType": "date"},
        {"type": "long", "logicalType": "timestamp-millis"},
        {"type": "long", "logicalType": "local-timestamp-micros"},
        {"type": "array", "items": ["null", "string"]},
        {"type": "map", "values": record("int", name="Inner")},
        ["null", "int", "string"],
    )
    at = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
    value = {
        **dict(
            zip((f"f{n}" for n in range(7)), (-(2**63), -5, 0.5, 0.25, True, b"\xff", b"ab"), strict=True)
        ),
        "f7": "B",
        "f8": Decimal("-999999999999999999999999999999999999.99"),
        "f9": date(1, 1, 1),
        "f10": at,
        "f11": at.replace(tzinfo=None, microsecond=1),
        "f12": ["ü", None],
        "f13": {"k": {"f0": 1}},
        "f14": "text",
    }
    [row, nothing], errors = decoded([*encoded(schema, value), None], schema)
    assert not errors
    assert nothing is None
    assert row == {
        **value,
        "f13": [("k", {"f0": 1})],
        "f14": {"member0": None, "member1": "text"},
    }


READER_CASES: list[tuple[Any, Any, Any, Any]] = [
    ("int", "long", 5, 5),
    ("int", "double", 5, 5.0),
    ("long", "float", 5, 5.0),
    ("string", "bytes", "a", b"a"),
    ("bytes", "string", b"a", "a"),
    ("int", ["null", "long"], 5, 5),
    (["null", "int"], ["null", "string", "long"], 5, {"member0": None, "member1": 5}),
    (["null", "int"], ["null", "string", "long"], None, None),
    (
        "int",
        {"type": "long", "logicalType": "timestamp-millis"},
        1000,
        datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC),
    ),
    (
        {"type": "enum", "name": "E", "symbols": ["A", "X"]},
        {"type": "enum", "name": "E", "symbols": ["A", "Z"], "default": "Z"},
        "X",
        "Z",
    ),
]


@pytest.mark.parametrize(("writer", "reader", "value", "expected"), READER_CASES)
def test_a_reader_has_another_type(writer: Any, reader: Any, value: Any, expected: Any) -> None:
    found, errors = decoded(encoded(record(writer), {"f0": value}), record(writer), record(reader))
    assert (found, errors) == ([{"f0": expected}], {})


def test_fields_are_left_out_added_reordered_and_renamed() -> None:
    writer = record("long", record("int", "string", name="Gone"), {"type": "array", "items": "string"})
    reader = record(
        {"name": "items", "aliases": ["f2"], "type": {"type": "array", "items": "string"}},
        {"name": "new", "type": record("int", name="New"), "default": {"f0": 7}},
        {"name": "f0", "type": "double"},
    )
    data = encoded(writer, {"f0": 1, "f1": {"f0": 2, "f1": "x"}, "f2": ["a"]})
    assert decoded(data, writer, reader)[0] == [{"items": ["a"], "new": {"f0": 7}, "f0": 1.0}]


@pytest.mark.parametrize(
    ("writer", "reader", "value", "why"),
    [
        ("string", "int", "x", "no type"),
        (["null", "int"], "int", None, "no type"),
        (
            {"type": "enum", "name": "E", "symbols": ["A", "X"]},
            {"type": "enum", "name": "E", "symbols": ["A"]},
            "X",
            "no type",
        ),
    ],
)
def test_what_the_reader_cannot_take_is_an_error_of_its_row(
    writer: Any, reader: Any, value: Any, why: str
) -> None:
    found, errors = decoded(encoded(record(writer), {"f0": value}), record(writer), record(reader))
    assert found == [None]
    assert why in errors[0]


def test_a_field_without_a_default_that_was_not_written_is_an_error() -> None:
    found, errors = decoded(encoded(record("int"), {"f0": 1}), record("int"), record("int", "int"))
    assert (found, list(errors)) == ([None], [0])


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "end inside"),
        (b"\x00\x00", "left after"),
        (b"\xff" * 11, "64 bits"),
        (b"\xff\xff\xff\xff\x1f", "range"),
    ],
)
def test_data_that_are_no_int(data: bytes, why: str) -> None:
    rows, errors = decoded([b"\x02", data, b"\x04"], "int")
    assert rows == [1, None, 2]
    assert why in errors[1]


def test_a_decimal_of_too_many_digits_is_an_error() -> None:
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 2, "scale": 0}
    longs = [
        bytes([2 * len(each)]) + each for each in (b"\x63", b"\x64", b"\x00" * 20 + b"\x05", b"\x9d", b"\x9c")
    ]
    decoder = AvroArrowDecoder(parsed(kind))
    [(found, errors)] = decoder.decode(pa.array(longs, pa.binary()))
    assert found.to_pylist() == [99, None, 5, -99, None]
    assert [row for row, _ in errors] == [1, 4]


def test_a_type_inside_of_itself_is_text_of_json() -> None:
    schema = record({"name": "next", "type": ["null", "Top"]}, {"name": "n", "type": "int"})
    data = encoded(schema, {"next": {"next": None, "n": 2}, "n": 1})
    decoder = AvroArrowDecoder(parsed(schema))
    assert not decoder.is_columnar
    [(found, errors)] = decoder.decode(pa.array(data, pa.binary()))
    assert (found.to_pylist(), errors) == ([{"next": '{"next":null,"n":2}', "n": 1}], [])


def test_a_schema_of_too_many_columns_is_refused() -> None:
    schema: Any = record(*["int"] * 50, name="T0")
    for level in range(1, 4):
        schema = record(schema, *[f"T{level - 1}"] * 49, name=f"T{level}")
    with pytest.raises(SchemaError, match="columns"):
        AvroArrowDecoder(parsed(schema))


def test_a_few_bytes_make_no_large_columns() -> None:
    wide = record(*[{"name": f"n{at}", "type": "long"} for at in range(2000)], name="Wide")
    schema = {"type": "array", "items": ["null", wide]}
    decoder = AvroArrowDecoder(parsed(schema))
    many = b"\xff\xff\x07" + bytes(100_000)  # more items than bytes can tell of
    nulls = b"\x80\xb5\x18" + bytes(200_001)  # 200,000 nulls of 2,000 columns each
    parts = list(decoder.decode(pa.array([many, nulls], pa.binary())))
    assert sum(part.null_count for part, _ in parts) == 2
    assert {why for _, errors in parts for _, why in errors} <= {
        "the data have too many values",
        "the data end inside of a value",
    }
    # And what fits is handed over in parts.
    rows = [b"\xc8\x01" + bytes(101)] * 50
    sizes = [part.nbytes for part, _ in decoder.decode(pa.array(rows, pa.binary()))]
    assert len(sizes) >= 1
    assert max(sizes) < 128 * 1024 * 1024


# Drawn schemas

_SCALARS: list[Any] = [
    "boolean",
    "int",
    "long",
    "float",
    "double",
    "bytes",
    "string",
    "null",
    {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 3},
    {"type": "int", "logicalType": "date"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "long", "logicalType": "local-timestamp-millis"},
]


class Draw:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.names = 0

    def name(self) -> str:
        self.names += 1
        return f"N{self.names}"

    def schema(self, depth: int) -> Any:
        draw = self.random
        kind = draw.choice(["scalar"] * 3 + (["record", "record", "array", "map", "union"] if depth else []))
        match kind:
            case "record":
                return record(*(self.schema(depth - 1) for _ in range(draw.randint(1, 4))), name=self.name())
            case "array":
                return {"type": "array", "items": self.schema(depth - 1)}
            case "map":
                return {"type": "map", "values": self.schema(depth - 1)}
            case "union":
                if draw.random() < 0.6:
                    inner = self.schema(0)
                    return "null" if inner == "null" else draw.sample(["null", inner], 2)
                return draw.sample(["null", "boolean", "string", "double"], 3)
        if draw.random() < 0.2:
            symbols = ["A", "B", "C"][: draw.randint(1, 3)]
            return {"type": "enum", "name": self.name(), "symbols": symbols, "default": "A"}
        if draw.random() < 0.1:
            return {"type": "fixed", "name": self.name(), "size": draw.randint(0, 5)}
        return draw.choice(_SCALARS)

    def evolved(self, schema: Any) -> Any:
        """A schema that can read what this one has written, mostly."""
        draw = self.random
        if isinstance(schema, list):
            # Of two numbers in one union the slow decoder does not know which it was.
            return (
                schema
                if len(schema) > 2
                else [each if each == "null" else self.evolved(each) for each in schema]
            )
        if isinstance(schema, str):
            wider = {"int": ["long", "double"], "long": ["float"], "float": ["double"], "string": ["bytes"]}
            return draw.choice([schema, *wider.get(schema, ["int"])]) if draw.random() < 0.3 else schema
        if schema["type"] == "record":
            fields = [{**each, "type": self.evolved(each["type"])} for each in schema["fields"]]
            draw.shuffle(fields)
            if draw.random() < 0.3 and len(fields) > 1:
                fields.pop()
            if draw.random() < 0.4:
                fields.append({"name": f"new{self.name()}", "type": ["null", "int"], "default": None})
            return {**schema, "fields": fields}
        for part in ("items", "values"):
            if part in schema:
                return {**schema, part: self.evolved(schema[part])}
        return schema

    def value(self, kind: Any) -> Any:
        draw = self.random
        if isinstance(kind, list):
            return self.value(draw.choice(kind))
        logical = kind.get("logicalType") if isinstance(kind, dict) else None
        if logical == "decimal":
            return Decimal(draw.randint(-(10**9) + 1, 10**9 - 1)).scaleb(-3)
        if logical == "date":
            return date(1970, 1, 1) + timedelta(days=draw.randint(-9_999, 99_999))
        if logical is not None:
            at = datetime(2000, 1, 1, tzinfo=UTC) + timedelta(milliseconds=draw.randint(-(10**12), 10**12))
            return at.replace(tzinfo=None) if logical.startswith("local") else at
        name = kind if isinstance(kind, str) else kind["type"]
        match name:
            case "record":
                return {each["name"]: self.value(each["type"]) for each in kind["fields"]}
            case "array":
                return [self.value(kind["items"]) for _ in range(draw.randint(0, 3))]
            case "map":
                return {f"k{at}": self.value(kind["values"]) for at in range(draw.randint(0, 3))}
            case "enum":
                return draw.choice(kind["symbols"])
            case "fixed":
                return draw.randbytes(kind["size"])
        makes: dict[str, Any] = {
            "null": lambda: None,
            "boolean": lambda: draw.random() < 0.5,
            "int": lambda: draw.randint(-(2**31), 2**31 - 1),
            "long": lambda: draw.randint(-(2**63), 2**63 - 1) >> draw.randint(0, 60),
            "float": lambda: float(draw.randint(-1000, 1000)) / 8,
            "double": lambda: draw.random(),
            "bytes": lambda: draw.randbytes(draw.randint(0, 40)),
            "string": lambda: draw.choice(["", "a", "äöü", "x" * 50]),
        }
        return makes[name]()


def check_encoder(writer: Any, data: list[bytes | None], head: int) -> None:
    """The kernel writes of columns the bytes that they were read from, also of a part of them."""
    definition = parsed(writer)
    encoder = AvroArrowEncoder(definition)
    columns = pa.concat_arrays(
        [part for part, _ in AvroArrowDecoder(definition).decode(pa.array(data, pa.binary()), head)]
    )
    found = encoder.encode(columns, bytes(head))
    has_null = any(f'"{part}": "null"' in json.dumps(writer) for part in ("type", "items", "values"))
    assert found is not None or has_null
    if found is not None:
        assert found.to_pylist() == data
        part = encoder.encode(columns.slice(7, 20), bytes(head))
        assert part is not None
        assert part.to_pylist() == data[7:27]


def check_drawn(seed: int) -> None:
    draw = Draw(seed)
    writer = record(*(draw.schema(3) for _ in range(draw.random.randint(1, 5))))
    data: list[bytes | None] = list(encoded(writer, *(draw.value(writer) for _ in range(ROWS))))
    head = draw.random.choice([0, 5])
    data = [None if draw.random.random() < 0.1 else bytes(head) + (each or b"") for each in data]
    assert not decoded(data, writer, head=head)[1]
    check_encoder(writer, data, head)
    damaged = []
    for each in data:
        if each and draw.random.random() < 0.5:
            at = draw.random.randrange(len(each))
            each = each[:at] + draw.random.randbytes(draw.random.randint(0, 3)) + each[at + 1 :]
        damaged.append(each)
    decoded(damaged, writer, head=head)
    with suppress(InvalidSchemaError):  # a union of two types that have become one
        decoded(damaged, writer, draw.evolved(writer), head=head)


def test_columns_are_the_values_one_by_one() -> None:
    for seed in range(40):
        check_drawn(seed)


@pytest.mark.exhaustive
def test_columns_are_the_values_one_by_one_for_many_schemas() -> None:
    for seed in range(1000, 4000):
        check_drawn(seed)
