"""The texts of Protobuf schemas as Confluent's registry prints them, and what is refused."""

from __future__ import annotations

import base64

import pytest

from ottla.schemas.compatibility import CompatibilityLevel, check_compatibility
from ottla.schemas.definitions import InvalidSchemaError, ParsedSchema, SchemaType, parse_schema
from tests.support.rows import for_each


def protobuf(text: str, references: dict[str, ParsedSchema] | None = None) -> ParsedSchema:
    return parse_schema(SchemaType.PROTOBUF, text, references or {})


WRITTEN = """\
/* a file */ syntax = 'proto3'; package a.b;
import "google/protobuf/timestamp.proto"; import public "google/protobuf/any.proto";
option java_package = "x" "y"; option (my.opt).foo = { a: 1, b: [1, 2] c { d: "s\\n" } };
message M { // one
  reserved 3 to 5, 20 to max; reserved "q"; option deprecated = true;
  map<string,Inner> m = 7; string name = 2 [deprecated=true, json_name="n"]; repeated int64 x = 6;
  optional double d = 8 [(f) = -1.5e-3]; google.protobuf.Timestamp t = 12;
  oneof z { string s = 11; int32 i = 10; }
  message Inner { message Innermost {} enum E { A = 0; B = -0x1; } }
}
enum X { option allow_alias = true; U = 0; W = 1; V = 0 [deprecated = true]; reserved 5; }
service S { rpc R (stream M) returns (M) { option idempotency_level = IDEMPOTENT; } rpc T (M) returns (M); }
"""
PRINTED = """\
syntax = "proto3";
package a.b;

import "google/protobuf/timestamp.proto";
import public "google/protobuf/any.proto";

option java_package = "xy";
option (my.opt).foo = {
  a: 1,
  b: [
    1,
    2
  ],
  c: {
    d: "s\\n"
  }
};

message M {
  reserved 3 to 5, 20 to max;
  reserved "q";

  option deprecated = true;

  map<string, Inner> m = 7;
  string name = 2 [
    deprecated = true,
    json_name = "n"
  ];
  repeated int64 x = 6;
  optional double d = 8 [(f) = -1.5e-3];
  google.protobuf.Timestamp t = 12;

  oneof z {
    string s = 11;
    int32 i = 10;
  }

  message Inner {
    message Innermost {}
    enum E {
      A = 0;
      B = -1;
    }
  }
}
enum X {
  reserved 5;
  option allow_alias = true;
  U = 0;
  W = 1;
  V = 0 [deprecated = true];
}

service S {
  rpc R (stream M) returns (M) {
    option idempotency_level = IDEMPOTENT;
  };
  rpc T (M) returns (M);
}
"""


def test_the_canonical_text_is_that_of_confluents_registry() -> None:
    assert protobuf(WRITTEN).canonical_text == PRINTED
    assert protobuf(PRINTED).canonical_text == PRINTED


def test_normalization_writes_names_in_full_and_sorts() -> None:
    one = protobuf(
        'syntax = "proto3"; package p; message M { N b = 2; map<string, N> c = 3; string a = 1; '
        "oneof o { int32 f = 6; int32 e = 5; } reserved 9, 7 to 7; message N {} }"
    )
    other = protobuf(
        'syntax = "proto3"; package p; message M { reserved 7; reserved 9; string a = 1; .p.M.N b = 2; '
        "map<string, M.N> c = 3; oneof o { int32 e = 5; int32 f = 6; } message N {} }"
    )
    assert one.normalized_text() == other.normalized_text()
    assert "  .p.M.N b = 2;\n  map<string, .p.M.N> c = 3;\n" in one.normalized_text()


def test_a_descriptor_in_base64_is_a_schema_too() -> None:
    descriptor_pb2 = pytest.importorskip("google.protobuf.descriptor_pb2")
    file = descriptor_pb2.FileDescriptorProto(name="f.proto", package="p", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    file.options.java_package = "j"
    message = file.message_type.add(name="M")
    message.field.add(name="a", number=1, type=9, label=1)
    message.field.add(name="t", number=2, type=11, label=1, type_name=".google.protobuf.Timestamp")
    message.field.add(name="m", number=3, type=11, label=3, type_name=".p.M.MEntry")
    message.field.add(name="o", number=4, type=5, label=1, oneof_index=1, proto3_optional=True)
    message.field.add(name="e", number=5, type=14, label=1, type_name=".p.E", oneof_index=0)
    message.oneof_decl.add(name="one")
    message.oneof_decl.add(name="_o")
    entry = message.nested_type.add(name="MEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=9, label=1)
    entry.field.add(name="value", number=2, type=3, label=1)
    message.reserved_range.add(start=7, end=8)
    enum = file.enum_type.add(name="E")
    enum.value.add(name="A", number=0)
    found = protobuf(base64.b64encode(file.SerializeToString()).decode())
    assert found.canonical_text == (
        'syntax = "proto3";\npackage p;\n\nimport "google/protobuf/timestamp.proto";\n\n'
        'option java_package = "j";\n\nmessage M {\n  reserved 7;\n\n  string a = 1;\n'
        "  .google.protobuf.Timestamp t = 2;\n  repeated .p.M.MEntry m = 3;\n  optional int32 o = 4;\n  \n"
        "  oneof one {\n    .p.E e = 5;\n  }\n  \n  message MEntry {\n    option map_entry = true;\n    \n"
        "    string key = 1;\n    int64 value = 2;\n  }\n}\nenum E {\n  A = 0;\n}\n"
    ).replace("\n  \n", "\n\n").replace("\n    \n", "\n  \n")
    written = protobuf(
        'syntax = "proto3"; package p; import "google/protobuf/timestamp.proto"; option java_package = "j"; '
        "message M { reserved 7; string a = 1; google.protobuf.Timestamp t = 2; map<string, int64> m = 3; "
        "optional int32 o = 4; oneof one { E e = 5; } } enum E { A = 0; }"
    )
    assert found.normalized_text() == written.normalized_text()
    for pair in ((found, written), (written, found)):
        assert check_compatibility(CompatibilityLevel.FULL, pair[0], [pair[1]]) == []


def test_types_of_imports_are_known_and_compared() -> None:
    imported = protobuf('syntax = "proto3"; package i; message I { int32 a = 1; }')
    changed = protobuf('syntax = "proto3"; package i; message I { string a = 1; }')
    extended = protobuf('syntax = "proto3"; package i; message I { int64 a = 1; string b = 2; }')
    text = 'syntax = "proto3"; import "i.proto"; message M { i.I one = 1; }'
    old, same, wrong = (protobuf(text, {"i.proto": each}) for each in (imported, extended, changed))
    assert check_compatibility(CompatibilityLevel.FULL, same, [old]) == []
    found = check_compatibility(CompatibilityLevel.BACKWARD, wrong, [old])
    assert [each.split('"')[1] for each in found[:2]] == [
        "FIELD_SCALAR_KIND_CHANGED",
        "FIELD_NAMED_TYPE_CHANGED",
    ]
    assert "#/I/1" in found[0]
    assert "#/M/1" in found[1]


@for_each(
    ("text", "reason"),
    [
        ("", "no type definitions"),
        ("CgA=", "unexpected label"),
        ("{", "unexpected label"),
        ("message M {", "unexpected end"),
        ('syntax = "proto4"; message M {}', "unexpected syntax"),
        ('message M {} syntax = "proto3";', "must be the first"),
        ('edition = "2023"; message M {}', "not supported"),
        ("message M { int32 a = 1; }", "unexpected label: int32"),
        ('syntax = "proto3"; message M { required int32 a = 1; }', "forbidden in proto3"),
        ('syntax = "proto3"; message M { int32 a = 0; }', "not between 1"),
        ('syntax = "proto3"; message M { int32 a = x; }', "expected an integer"),
        ('syntax = "proto3"; message M { int32 a = 1; int32 b = 1; }', "comes twice"),
        ('syntax = "proto3"; message M { int32 a = 1; int32 a = 2; }', "already defined"),
        ('syntax = "proto3"; message M {} message M {}', "already defined"),
        ('syntax = "proto3"; message M { N a = 1; }', "Could not resolve type: N"),
        ('syntax = "proto3"; message M { repeated map<string, int32> a = 1; }', "cannot have label"),
        ('syntax = "proto3"; message M { string a = 1 [default "x"]; }', "expected '='"),
        ('import "a.proto"; message M { optional string a = "1; }', "no part of a file"),
    ],
)
def test_what_is_no_schema_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidSchemaError, match=reason):
        protobuf(text)


@pytest.mark.parametrize(
    "text",
    [
        "message M {" * 50_000,
        'syntax = "proto3"; ' + "message M {" * 100 + "}" * 100,
        'syntax = "proto3"; option a = ' + "{a: " * 50_000,
        'syntax = "proto3"; message M { option (a) = ' + "[" * 50_000,
        ";" * 500_000,
        "/*" * 400_000,
        '"' + '\\"' * 400_000,
        "package " + "a." * 200_000 + "a;",
        "x" * 10_000_000,
        "A" * 1_000_000,
        'syntax = "proto3"; ' + "".join(f"message M{n} {{}}" for n in range(30_000)),
    ],
    ids=[
        "open",
        "deep",
        "options",
        "lists",
        "tokens",
        "comments",
        "quotes",
        "name",
        "large",
        "base64",
        "types",
    ],
)
def test_hostile_schemas_are_refused_at_once(text: str) -> None:
    with pytest.raises(InvalidSchemaError):
        protobuf(text)
