"""Avro, Protobuf and JSON Schema: what is decoded, and that hostile data fail with a reason."""

from __future__ import annotations

import contextlib
import json
import struct
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.console.messages.topic_schemas import load_topic_schemas
from ottla.schemas.avro import AvroSchema
from ottla.schemas.errors import SchemaError, WrongData
from ottla.schemas.json_schema import JsonSchemaDocument
from ottla.schemas.protobuf import ProtobufSchema
from ottla.schemas.registry import message_indexes, parse_wire_format

ORDER = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
            {"name": "note", "type": ["null", "string"], "default": None},
            {
                "name": "price",
                "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            },
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "tags", "type": {"type": "map", "values": "double"}},
            {"name": "parts", "type": {"type": "array", "items": "Order"}},
            {"name": "seal", "type": {"type": "fixed", "name": "Seal", "size": 2}},
        ],
    }
)
VALUE = {
    "id": -7,
    "state": "PAID",
    "note": "füz",
    "price": "-12.34",
    "at": "2026-11-16T18:00:00Z",
    "tags": {"a": 0.5},
    "parts": [],
    "seal": "00ff",
}

ORDERS = AvroSchema(ORDER)


class TestAvro:
    def test_the_example_of_the_specification(self) -> None:
        fields = '[{"name":"a","type":"long"},{"name":"b","type":"string"}]'
        schema = f'{{"type":"record","name":"test","fields":{fields}}}'
        assert AvroSchema(schema).decode(bytes.fromhex("3606666f6f")) == {"a": 27, "b": "foo"}

    def test_values_of_all_kinds_come_back(self) -> None:
        schema = AvroSchema(ORDER)
        nested = {**VALUE, "parts": [VALUE, {**VALUE, "note": None}]}
        assert schema.decode(schema.encode(nested)) == nested

    def test_blocks_with_a_size_are_read(self) -> None:
        """A negative count is followed by the size of the block in bytes."""
        assert AvroSchema('{"type":"array","items":"int"}').decode(bytes([0x03, 0x04, 0x02, 0x04, 0x00])) == [
            1,
            2,
        ]

    @pytest.mark.parametrize(
        ("schema", "data", "reason"),
        [
            ('"string"', b"\x0aab", "ends inside"),
            ('"long"', b"\xff" * 12, "more than 64 bits"),
            ('"boolean"', b"\x02", "not true or false"),
            ('["null","int"]', b"\x08", "branch 4"),
            ('{"type":"array","items":"null"}', b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", "too many"),
            ('{"type":"enum","name":"E","symbols":["A"]}', b"\x04", "symbol 2"),
            ('"int"', b"\x02\x02", "left after"),
            ('"string"', b"\x02\xff", "UTF-8"),
        ],
    )
    def test_broken_data_are_refused_with_a_reason(self, schema: str, data: bytes, reason: str) -> None:
        with pytest.raises(WrongData, match=reason):
            AvroSchema(schema).decode(data)

    def test_a_value_that_never_ends_is_refused(self) -> None:
        """A record of itself, whose data are zeros: each union picks the record again."""
        schema = '{"type":"record","name":"R","fields":[{"name":"r","type":["R","null"]}]}'
        with pytest.raises(WrongData, match="levels"):
            AvroSchema(schema).decode(bytes(100_000))

    @settings(max_examples=40)
    @given(st.binary(max_size=200))
    def test_no_data_raise_anything_else(self, data: bytes) -> None:
        with contextlib.suppress(WrongData):
            json.dumps(ORDERS.decode(data))

    def test_a_name_of_no_type_is_no_schema(self) -> None:
        with pytest.raises(SchemaError, match="'Missing'"):
            AvroSchema('{"type":"array","items":"Missing"}')

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({"id": "7"}, "field 'id' has to be a whole number"),
            ({"state": "LOST"}, "one of NEW, PAID"),
            ({"extra": 1}, "no field 'extra'"),
            ({"id": 2**63}, "out of range"),
            ({"price": "1.234"}, "decimal"),
        ],
    )
    def test_what_does_not_fit_is_not_encoded(self, change: dict[str, Any], reason: str) -> None:
        with pytest.raises(WrongData, match=reason):
            AvroSchema(ORDER).encode({**VALUE, **change})


PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
// A comment { with a brace
message Order {
  option deprecated = true;
  reserved 90 to 99; reserved "gone";
  enum State { NEW = 0; PAID = 1; /* and */ LOST = -1; }
  message Line { string sku = 1; uint32 count = 2; }
  int64 id = 1; sint32 delta = 2; State state = 3;
  repeated Line lines = 4;
  repeated int32 numbers = 5 [packed = true];
  map<string, double> weights = 6;
  oneof payment { string card = 7; bytes cash = 8; }
  google.protobuf.Timestamp at = 9;
  fixed64 seal = 10; float ratio = 11; bool open = 12;
}
message Other { Order order = 1; }
service Shop { rpc Buy(Order) returns (Other) { option idempotency_level = IDEMPOTENT; } }
"""
PROTO_VALUE = {
    "id": -5,
    "delta": -3,
    "state": "PAID",
    "lines": [{"sku": "a", "count": 4_000_000_000}],
    "numbers": [1, -1],
    "weights": {"x": 0.5},
    "cash": "AP8=",
    "seal": 2**63,
    "ratio": 0.25,
    "open": True,
}

PROTO_ORDERS = ProtobufSchema(PROTO)


class TestProtobuf:
    def test_values_of_all_kinds_come_back(self) -> None:
        schema = ProtobufSchema(PROTO)
        data = schema.encode({**PROTO_VALUE, "at": {"seconds": 1_000_000_000, "nanos": 5}})
        assert schema.decode(data) == {**PROTO_VALUE, "at": "2001-09-09T01:46:40.000000005Z"}

    def test_data_of_googles_own_library_are_read(self) -> None:
        descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
        text = """
            message FieldDescriptorProto {
              optional string name = 1; optional int32 number = 3; optional string type_name = 6;
            }
            message DescriptorProto {
              optional string name = 1; repeated FieldDescriptorProto field = 2;
              repeated DescriptorProto nested_type = 3;
            }
        """
        message = descriptor_pb2.DescriptorProto(name="Outer")
        message.field.add(name="a", number=1)
        message.nested_type.add(name="Inner").field.add(name="b", number=-2, type_name=".x")
        found = ProtobufSchema(text, "DescriptorProto").decode(message.SerializeToString())
        assert found == {
            "name": "Outer",
            "field": [{"name": "a", "number": 1}],
            "nested_type": [{"name": "Inner", "field": [{"name": "b", "number": -2, "type_name": ".x"}]}],
        }

    def test_unknown_fields_are_shown_by_their_numbers(self) -> None:
        data = ProtobufSchema("message M { string a = 900; int32 b = 2; }").encode({"a": "hi", "b": 7})
        assert ProtobufSchema("message M { int32 b = 2; }").decode(data) == {"b": 7, "900": "hi"}

    def test_a_message_is_found_by_its_place_as_in_the_wire_format(self) -> None:
        schema = ProtobufSchema(PROTO)
        assert schema.message_at((0, 0)) == "shop.Order.Line"
        assert schema.message_at((1,)) == "shop.Other"
        with pytest.raises(WrongData):
            schema.message_at((2,))

    def test_groups_are_read(self) -> None:
        schema = ProtobufSchema(
            "message M { optional group Part = 1 { optional int32 x = 2; } optional int32 y = 3; }"
        )
        assert schema.decode(bytes([0x0B, 0x10, 0x05, 0x0C, 0x18, 0x06])) == {"part": {"x": 5}, "y": 6}

    @settings(max_examples=40)
    @given(st.binary(max_size=200))
    def test_no_data_raise_anything_else(self, data: bytes) -> None:
        with contextlib.suppress(WrongData):
            json.dumps(PROTO_ORDERS.decode(data))

    @pytest.mark.parametrize(
        "text",
        ["", "message", "message M { Missing x = 1; }", "message M { int32 x = y; }", "message M { \0 }"],
    )
    def test_what_is_no_schema_is_refused(self, text: str) -> None:
        with pytest.raises(SchemaError):
            ProtobufSchema(text)

    def test_deep_data_are_refused(self) -> None:
        schema = ProtobufSchema("message M { M m = 1; }")
        data = b""
        for _ in range(200):
            data = b"\x0a" + _varint(len(data)) + data
        with pytest.raises(WrongData, match="deeply"):
            schema.decode(data)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append((value & 0x7F) | 0x80)
        value >>= 7
    return bytes((*out, value))


class TestJsonSchema:
    SCHEMA = JsonSchemaDocument(
        json.dumps(
            {
                "type": "object",
                "required": ["id"],
                "properties": {
                    "id": {"type": "integer", "minimum": 1},
                    "mail": {"type": "string", "pattern": "^[^@]+@[^@]+$"},
                    "kind": {"enum": ["a", "b"]},
                    "tree": {"$ref": "#/$defs/tree"},
                    "either": {"oneOf": [{"type": "string"}, {"type": "number"}]},
                },
                "additionalProperties": False,
                "$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2}},
            }
        )
    )

    @pytest.mark.parametrize(
        ("value", "problem"),
        [
            ({"id": 1, "mail": "a@b", "kind": "a", "tree": [[], []], "either": 3}, None),
            ({}, "$ lacks 'id'"),
            ({"id": 0}, "$.id is below 1"),
            ({"id": True}, "$.id is no integer"),
            ({"id": 1.0}, None),
            ({"id": 1, "mail": "ab"}, "$.mail does not match"),
            ({"id": 1, "kind": "c"}, "$.kind is none of"),
            ({"id": 1, "more": 1}, "$.more is not allowed"),
            ({"id": 1, "tree": [[[[], [], []]]]}, "$.tree[0][0] has 3 items"),
            ({"id": 1, "either": None}, "matches 0 of the 2"),
            ([], "$ is no object"),
        ],
    )
    def test_a_value_is_checked(self, value: object, problem: str | None) -> None:
        found = self.SCHEMA.problems(value)
        assert (found == []) if problem is None else problem in found[0]

    @pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|a)*$", "^(a|aa)*$", "^(.*a){20}$"])
    def test_a_pattern_takes_time_by_the_length_of_the_text_only(self, pattern: str) -> None:
        schema = JsonSchemaDocument(json.dumps({"pattern": pattern}))
        assert schema.problems("a" * 40 + "!") == [f"$ does not match {pattern!r}"]
        assert schema.problems("a" * 40) == []

    @pytest.mark.parametrize("pattern", ["(?=a)b", "(a)\\1", "((a{100}){10}){10}", "(", "[\\p{L}]{1000}"])
    def test_a_pattern_that_re2_cannot_have_is_not_checked(self, pattern: str) -> None:
        assert JsonSchemaDocument(json.dumps({"pattern": pattern})).problems("xyz") == []

    def test_long_lists_of_a_schema_are_not_compared_without_bound(self) -> None:
        choices = {"enum": list(range(20_000))}
        schema = JsonSchemaDocument(json.dumps({"items": {"anyOf": [choices] * 10}}))
        started = time.process_time()
        schema.problems(["x"] * 20_000)
        assert time.process_time() - started < 5  # 4 * 10**9 comparisons take minutes

    def test_costly_patterns_take_the_steps_of_a_check(self) -> None:
        properties = {f"p{n}": {"pattern": f"(.*a.{{20}}.*{n}){{10}}"} for n in range(300)}
        schema = JsonSchemaDocument(json.dumps({"properties": properties}))
        started = time.process_time()
        schema.problems(dict.fromkeys(properties, "ab" * 5000))
        assert time.process_time() - started < 5  # all of them take half a minute

    def test_a_schema_of_itself_ends(self) -> None:
        assert JsonSchemaDocument(json.dumps({"$ref": "#"})).problems(1) == []


def test_the_wire_format_names_a_schema_and_the_place_of_a_message() -> None:
    assert parse_wire_format(b"\0\0\0\1\2xyz") == (258, 5)
    assert parse_wire_format(b"\1\0\0\0\1x") is None
    assert message_indexes(b"\0rest", 0) == ((0,), 1)
    assert message_indexes(bytes([4, 2, 0]), 0) == ((1, 0), 3)


def test_a_file_says_which_schemas_topics_have(tmp_path: Any) -> None:
    (tmp_path / "order.avsc").write_text(ORDER)
    (tmp_path / "key.proto").write_text("message A { int32 x = 1; } message B { string y = 1; }")
    (tmp_path / "schemas.toml").write_text(
        '[registry]\nurl = "http://localhost:8081"\n'
        '[[topic]]\nname = "orders-*"\nvalue = { file = "order.avsc" }\n'
        'key = { format = "protobuf", file = "key.proto", message = "B" }\n'
    )
    found = load_topic_schemas(tmp_path / "schemas.toml")
    assert found.registry_url == "http://localhost:8081"
    value, key = found.of("orders-eu", "value"), found.of("orders-eu", "key")
    assert value is not None
    assert key is not None
    assert (value.name, value.format.value, key.name) == ("order.avsc", "avro", "key.proto")
    assert key.decode(b"\x0a\x02hi") == ({"y": "hi"}, None)
    assert found.of("other", "value") is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[[topic]]\n", "needs a name"),
        ('[[topic]]\nname = "a"\nvalue = { file = "none.avsc" }\n', "none.avsc: No such file"),
        ("[topics]\n", "no setting 'topics'"),
        ("x", "schemas.toml"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_the_reason(tmp_path: Any, text: str, problem: str) -> None:
    (tmp_path / "schemas.toml").write_text(text)
    with pytest.raises(SchemaError, match=problem):
        load_topic_schemas(tmp_path / "schemas.toml")


def test_floats_that_json_has_not_become_texts() -> None:
    assert AvroSchema('"double"').decode(struct.pack("<d", float("nan"))) == "nan"
    assert ProtobufSchema("message M { double x = 1; }").decode(
        b"\x09" + struct.pack("<d", float("inf"))
    ) == {"x": "inf"}
