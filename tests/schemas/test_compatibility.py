"""The matrix of compatibility: formats, levels, kinds of changes, with the answers of the specifications."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ottla.schemas.compatibility import CompatibilityLevel, check_compatibility
from ottla.schemas.definitions import ParsedSchema, SchemaType, parse_schema
from tests.support.rows import for_each

BOTH, BACKWARD, FORWARD, NEITHER = (True, True), (True, False), (False, True), (False, False)
"""Whether the new schema reads old data, and whether the old one reads new data."""


def _record(*fields: dict[str, Any], name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def _field(kind: Any, name: str = "f", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def _enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


def _fixed(size: int, name: str = "F", **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": size, **more}


def _list_of(kind: Any) -> dict[str, Any]:
    """A type inside of itself."""
    return _record(_field(kind), _field(["null", "R"], "next"))


_ID = _field("long", "id")
_DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
AVRO: dict[str, tuple[Any, Any, tuple[bool, bool]]] = {
    "nothing": (_record(_ID), _record(_ID), BOTH),
    "documentation": (_record(_ID), _record({**_ID, "doc": "d"}, doc="d"), BOTH),
    "a field with a default is added": (_record(_ID), _record(_ID, _field("int", default=0)), BOTH),
    "a field without a default is added": (_record(_ID), _record(_ID, _field("int")), FORWARD),
    "a field with a default is removed": (_record(_ID, _field("int", default=0)), _record(_ID), BOTH),
    "a field without a default is removed": (_record(_ID, _field("int")), _record(_ID), BACKWARD),
    "a default is added": (_record(_field("int")), _record(_field("int", default=0)), BOTH),
    "a field is renamed": (_record(_field("int", "a")), _record(_field("int", "b")), NEITHER),
    "a field is renamed with an alias": (
        _record(_field("int", "a")),
        _record(_field("int", "b", aliases=["a"])),
        BACKWARD,
    ),
    "fields change places": (_record(_ID, _field("int")), _record(_field("int"), _ID), BOTH),
    "an enum with a default of its own is added": (
        _record(),
        _record(_field(_enum("A", default="A"))),
        FORWARD,
    ),
    "int to long": (_record(_field("int")), _record(_field("long")), BACKWARD),
    "int to float": ("int", "float", BACKWARD),
    "int to double": ("int", "double", BACKWARD),
    "long to int": ("long", "int", FORWARD),
    "long to float": ("long", "float", BACKWARD),
    "float to double": ("float", "double", BACKWARD),
    "double to float": ("double", "float", FORWARD),
    "string to bytes": ("string", "bytes", BOTH),
    "int to string": ("int", "string", NEITHER),
    "boolean to int": ("boolean", "int", NEITHER),
    "null to int": ("null", "int", NEITHER),
    "array to map": ({"type": "array", "items": "int"}, {"type": "map", "values": "int"}, NEITHER),
    "items are promoted": ({"type": "array", "items": "int"}, {"type": "array", "items": "long"}, BACKWARD),
    "values are promoted": ({"type": "map", "values": "int"}, {"type": "map", "values": "double"}, BACKWARD),
    "a type becomes a union with it": ("int", ["null", "int"], BACKWARD),
    "a union becomes one of its types": (["null", "int"], "int", FORWARD),
    "a branch is added": (["null", "int"], ["null", "int", "string"], BACKWARD),
    "a branch is removed": (["null", "int", "string"], ["null", "int"], FORWARD),
    "branches change places": (["null", "int"], ["int", "null"], BOTH),
    "a branch is promoted": (["null", "int"], ["null", "long"], BACKWARD),
    "a type becomes a union without it": ("int", ["null", "boolean"], NEITHER),
    "a field becomes optional": (_record(_field("int")), _record(_field(["null", "int"])), BACKWARD),
    "a symbol is added": (_enum("A"), _enum("A", "B"), BACKWARD),
    "a symbol is removed": (_enum("A", "B"), _enum("A"), FORWARD),
    "symbols change places": (_enum("A", "B"), _enum("B", "A"), BOTH),
    "a symbol is added to an enum with a default": (
        _enum("A", default="A"),
        _enum("A", "B", default="A"),
        BOTH,
    ),
    "a symbol is removed from an enum with a default": (
        _enum("A", "B", default="A"),
        _enum("A", default="A"),
        BOTH,
    ),
    "an enum gets another name": (_enum("A"), {**_enum("A"), "name": "G"}, NEITHER),
    "a fixed gets another size": (_fixed(4), _fixed(8), NEITHER),
    "a fixed gets another name": (_fixed(4), _fixed(4, "G"), NEITHER),
    "a fixed gets another name, with an alias": (_fixed(4), _fixed(4, "G", aliases=["F"]), BACKWARD),
    "a fixed becomes bytes": (_fixed(4), "bytes", NEITHER),
    "a record gets another name": (_record(_ID), _record(_ID, name="S"), NEITHER),
    "a record gets another name, with an alias": (
        _record(_ID, name="a.R"),
        _record(_ID, name="b.S", aliases=["a.R"]),
        BACKWARD,
    ),
    "a record gets another namespace": (_record(_ID, name="a.R"), _record(_ID, name="b.R"), BOTH),
    "a record becomes a map": (_record(_field("int")), {"type": "map", "values": "int"}, NEITHER),
    "a logical type is added": ("long", {"type": "long", "logicalType": "timestamp-millis"}, BOTH),
    "a logical type is changed": (
        {"type": "long", "logicalType": "timestamp-millis"},
        {"type": "long", "logicalType": "timestamp-micros"},
        BOTH,
    ),
    "the scale of a decimal is changed": (_DECIMAL, {**_DECIMAL, "scale": 3}, BOTH),
    "a type inside of itself stays": (_list_of("int"), _list_of("int"), BOTH),
    "a type inside of itself is promoted": (_list_of("int"), _list_of("long"), BACKWARD),
    "a type inside of itself changes": (_list_of("int"), _list_of("string"), NEITHER),
    "a field of an inner record is added": (
        _record(_field(_record(name="I"))),
        _record(_field(_record(_field("int"), name="I"))),
        FORWARD,
    ),
}


def _message(fields: str, name: str = "M") -> str:
    return f"message {name} {{ {fields} }}"


PROTOBUF: dict[str, tuple[str, str, tuple[bool, bool]]] = {
    "nothing": (_message("int32 a = 1;"), _message("int32 a = 1; /* it */"), BOTH),
    "a field is added": (_message(""), _message("int32 a = 1;"), BOTH),
    "a field is removed": (_message("int32 a = 1; string b = 2;"), _message("int32 a = 1;"), BOTH),
    "a field is renamed": (_message("int32 a = 1;"), _message("int32 b = 1;"), BOTH),
    "a field gets another number": (_message("int32 a = 1;"), _message("int32 a = 2;"), BOTH),
    "a field becomes optional": (_message("int32 a = 1;"), _message("optional int32 a = 1;"), BOTH),
    "a number is reserved": (
        _message("int32 a = 1; int32 b = 2;"),
        _message("int32 a = 1; reserved 2;"),
        BOTH,
    ),
    "int32 to int64": (_message("int32 a = 1;"), _message("int64 a = 1;"), BOTH),
    "uint64 to bool": (_message("uint64 a = 1;"), _message("bool a = 1;"), BOTH),
    "string to bytes": (_message("string a = 1;"), _message("bytes a = 1;"), BOTH),
    "sint32 to sint64": (_message("sint32 a = 1;"), _message("sint64 a = 1;"), BOTH),
    "fixed32 to sfixed32": (_message("fixed32 a = 1;"), _message("sfixed32 a = 1;"), BOTH),
    "fixed64 to sfixed64": (_message("fixed64 a = 1;"), _message("sfixed64 a = 1;"), BOTH),
    "int32 to sint32": (_message("int32 a = 1;"), _message("sint32 a = 1;"), NEITHER),
    "int32 to string": (_message("int32 a = 1;"), _message("string a = 1;"), NEITHER),
    "int32 to fixed32": (_message("int32 a = 1;"), _message("fixed32 a = 1;"), NEITHER),
    "fixed32 to fixed64": (_message("fixed32 a = 1;"), _message("fixed64 a = 1;"), NEITHER),
    "float to double": (_message("float a = 1;"), _message("double a = 1;"), NEITHER),
    "optional number to repeated": (
        _message("optional int32 a = 1;"),
        _message("repeated int32 a = 1;"),
        NEITHER,
    ),
    "optional string to repeated": (
        _message("optional string a = 1;"),
        _message("repeated string a = 1;"),
        BOTH,
    ),
    "int32 to enum": (
        _message("int32 a = 1;"),
        _message("E a = 1;") + "enum E { A = 0; }",
        BOTH,
    ),
    "a constant is added": ("enum E { A = 0; }", "enum E { A = 0; B = 1; }", BOTH),
    "a constant is renamed": ("enum E { A = 0; }", "enum E { B = 0; }", BOTH),
    "int32 to message": (_message("int32 a = 1;"), _message("N a = 1; message N {}"), NEITHER),
    "message to another message": (
        _message("N a = 1;") + _message("", "N") + _message("", "O"),
        _message("O a = 1;") + _message("", "N") + _message("", "O"),
        NEITHER,
    ),
    "message to map": (
        _message("N a = 1; message N {}"),
        _message("map<string, N> a = 1; message N {}"),
        NEITHER,
    ),
    "values of a map get a wider type": (
        _message("map<string, int32> a = 1;"),
        _message("map<string, int64> a = 1;"),
        BOTH,
    ),
    "values of a map get another type": (
        _message("map<string, int32> a = 1;"),
        _message("map<string, string> a = 1;"),
        NEITHER,
    ),
    "a message is added": (_message(""), _message("") + _message("", "N"), BACKWARD),
    "a message is removed": (_message("") + _message("", "N"), _message(""), FORWARD),
    "messages change places": (_message("") + _message("", "N"), _message("", "N") + _message(""), BOTH),
    "an inner message is removed": (_message("message N {}"), _message(""), FORWARD),
    "an enum is removed": (_message("") + "enum E { A = 0; }", _message(""), BOTH),
    "a name is written in full": (
        "package p; " + _message("N a = 1; message N {}"),
        "package p; " + _message(".p.M.N a = 1; message N {}"),
        BOTH,
    ),
    "the package changes": ("package p; " + _message(""), "package q; " + _message(""), NEITHER),
    "the package is removed": ("package p; " + _message(""), _message(""), NEITHER),
    "a required field is added": (
        'syntax = "proto2"; ' + _message(""),
        'syntax = "proto2"; ' + _message("required int32 a = 1;"),
        NEITHER,
    ),
    "a required field becomes optional": (
        'syntax = "proto2"; ' + _message("required string a = 1;"),
        'syntax = "proto2"; ' + _message("optional string a = 1;"),
        BOTH,
    ),
    "a field moves into a new oneof": (
        _message("int32 a = 1;"),
        _message("oneof o { int32 a = 1; string b = 2; }"),
        BACKWARD,
    ),
    "a field moves into a oneof of its own": (
        _message("int32 a = 1;"),
        _message("oneof o { int32 a = 1; }"),
        BOTH,
    ),
    "two fields move into a new oneof": (
        _message("int32 a = 1; string b = 2;"),
        _message("oneof o { int32 a = 1; string b = 2; }"),
        FORWARD,
    ),
    "a field moves into an existing oneof": (
        _message("int32 a = 1; oneof o { string b = 2; }"),
        _message("oneof o { int32 a = 1; string b = 2; }"),
        FORWARD,
    ),
    "a field of a oneof is added": (
        _message("oneof o { int32 a = 1; }"),
        _message("oneof o { int32 a = 1; string b = 2; }"),
        BACKWARD,
    ),
    "a field of a oneof is removed": (
        _message("oneof o { int32 a = 1; string b = 2; }"),
        _message("oneof o { int32 a = 1; }"),
        FORWARD,
    ),
    "a oneof is removed with its fields": (
        _message("int32 x = 9; oneof o { int32 a = 1; string b = 2; }"),
        _message("int32 x = 9;"),
        BOTH,
    ),
    "a oneof is renamed": (
        _message("oneof o { int32 a = 1; string b = 2; }"),
        _message("oneof p { int32 a = 1; string b = 2; }"),
        BOTH,
    ),
    "two oneofs become one": (
        _message("oneof o { int32 a = 1; } oneof p { string b = 2; }"),
        _message("oneof o { int32 a = 1; string b = 2; }"),
        FORWARD,
    ),
    "a type inside of itself changes": (
        _message("M next = 1; int32 a = 2;"),
        _message("M next = 1; string a = 2;"),
        NEITHER,
    ),
}


def _object(properties: dict[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    needed = {"required": list(required)} if required else {}
    return {"type": "object", "properties": properties, **needed, **more}


_CLOSED = {"additionalProperties": False}
_INT, _STR = {"type": "integer"}, {"type": "string"}
_LATEST = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
_DRAFT_4 = {"$schema": "http://json-schema.org/draft-04/schema#"}
JSON: dict[str, tuple[Any, Any, tuple[bool, bool]]] = {
    "nothing": (_object({"a": _INT}), _object({"a": _INT}), BOTH),
    "title and description": (_INT, {**_INT, "title": "t", "description": "d", "default": 1}, BOTH),
    "an optional property is added to an open model": (_object({}), _object({"a": _INT}), FORWARD),
    "an optional property is added to a closed model": (
        _object({}, **_CLOSED),
        _object({"a": _INT}, **_CLOSED),
        BACKWARD,
    ),
    "a required property is added to an open model": (_object({}), _object({"a": _INT}, "a"), FORWARD),
    "a required property is added to a closed model": (
        _object({}, **_CLOSED),
        _object({"a": _INT}, "a", **_CLOSED),
        NEITHER,
    ),
    "a required property with a default is added to a closed model": (
        _object({}, **_CLOSED),
        _object({"a": {**_INT, "default": 0}}, "a", **_CLOSED),
        BACKWARD,
    ),
    "a property that can be anything is added": (_object({}), _object({"a": {}}), BOTH),
    "a property that fits the others is added": (
        _object({}, additionalProperties=_INT),
        _object({"a": _INT}, additionalProperties=_INT),
        BOTH,
    ),
    "a property that does not fit the others is added": (
        _object({}, additionalProperties=_INT),
        _object({"a": _STR}, additionalProperties=_INT),
        NEITHER,
    ),
    "a property that fits a pattern is added": (
        _object({}, patternProperties={"^a": _INT}, **_CLOSED),
        _object({"a": _INT}, patternProperties={"^a": _INT}, **_CLOSED),
        BOTH,
    ),
    "a property is removed from an open model": (_object({"a": _INT}), _object({}), BACKWARD),
    "a property is removed from a closed model": (
        _object({"a": _INT}, **_CLOSED),
        _object({}, **_CLOSED),
        FORWARD,
    ),
    "a property becomes required": (_object({"a": _INT}), _object({"a": _INT}, "a"), FORWARD),
    "a property becomes required with a default": (
        _object({"a": {**_INT, "default": 0}}),
        _object({"a": {**_INT, "default": 0}}, "a"),
        BOTH,
    ),
    "an open model is closed": (_object({"a": _INT}), _object({"a": _INT}, **_CLOSED), FORWARD),
    "further properties get a type": (_object({}), _object({}, additionalProperties=_INT), FORWARD),
    "a dependency is added": (
        _object({"a": _INT, "b": _INT}),
        _object({"a": _INT, "b": _INT}, dependencies={"a": ["b"]}),
        FORWARD,
    ),
    "maxProperties is added": (_object({}), _object({}, maxProperties=3), FORWARD),
    "minProperties grows": (_object({}, minProperties=1), _object({}, minProperties=2), FORWARD),
    "integer to number": (_INT, {"type": "number"}, BACKWARD),
    "integer to string": (_INT, _STR, NEITHER),
    "boolean to null": ({"type": "boolean"}, {"type": "null"}, NEITHER),
    "a type becomes one of two": (_STR, {"type": ["string", "null"]}, BACKWARD),
    "anything becomes a string": ({}, _STR, FORWARD),
    "nothing at all becomes a string": ({"not": {}}, {"not": _STR}, BACKWARD),
    "maxLength grows": ({**_STR, "maxLength": 3}, {**_STR, "maxLength": 4}, BACKWARD),
    "maxLength is removed": ({**_STR, "maxLength": 3}, _STR, BACKWARD),
    "minLength grows": ({**_STR, "minLength": 3}, {**_STR, "minLength": 4}, FORWARD),
    "a pattern is added": (_STR, {**_STR, "pattern": "a"}, FORWARD),
    "a pattern changes": ({**_STR, "pattern": "b"}, {**_STR, "pattern": "a"}, NEITHER),
    "maximum grows": ({**_INT, "maximum": 3}, {**_INT, "maximum": 4.5}, BACKWARD),
    "minimum is added": (_INT, {**_INT, "minimum": 3}, FORWARD),
    "exclusiveMinimum falls": ({**_INT, "exclusiveMinimum": 3}, {**_INT, "exclusiveMinimum": 2}, BACKWARD),
    "multipleOf is a part of what it was": ({**_INT, "multipleOf": 10}, {**_INT, "multipleOf": 5}, BACKWARD),
    "multipleOf changes": ({**_INT, "multipleOf": 3}, {**_INT, "multipleOf": 5}, NEITHER),
    "a value of an enum is added": ({"enum": ["a"]}, {"enum": ["a", "b"]}, BACKWARD),
    "values of an enum change": ({"enum": ["a", "c"]}, {"enum": ["a", "b"]}, NEITHER),
    "values of an enum change places": ({"enum": ["a", 1]}, {"enum": [1, "a"]}, BOTH),
    "1 becomes true": ({"enum": [1]}, {"enum": [True]}, NEITHER),
    "a constant changes": ({"const": 1}, {"const": 2}, NEITHER),
    "items get a wider type": (
        {"type": "array", "items": _INT},
        {"type": "array", "items": {"type": "number"}},
        BACKWARD,
    ),
    "items get a type": ({"type": "array"}, {"type": "array", "items": _INT}, FORWARD),
    "maxItems falls": ({"type": "array", "maxItems": 3}, {"type": "array", "maxItems": 2}, FORWARD),
    "items become unique": ({"type": "array"}, {"type": "array", "uniqueItems": True}, FORWARD),
    "an item is added to an open tuple": (
        {"type": "array", "items": [_INT]},
        {"type": "array", "items": [_INT, _INT]},
        FORWARD,
    ),
    "an item is added to a closed tuple": (
        {"type": "array", "items": [_INT], "additionalItems": False},
        {"type": "array", "items": [_INT, _INT], "additionalItems": False},
        BACKWARD,
    ),
    "an item is added to a closed tuple, 2020-12": (
        {**_LATEST, "type": "array", "prefixItems": [_INT], "items": False},
        {**_LATEST, "type": "array", "prefixItems": [_INT, _INT], "items": False},
        BACKWARD,
    ),
    "unevaluatedProperties closes, 2020-12": (
        {**_LATEST, **_object({"a": _INT})},
        {**_LATEST, **_object({"a": _INT}, unevaluatedProperties=False)},
        FORWARD,
    ),
    "dependentRequired is added, 2020-12": (
        {**_LATEST, **_object({"a": _INT, "b": _INT})},
        {**_LATEST, **_object({"a": _INT, "b": _INT}, dependentRequired={"a": ["b"]})},
        FORWARD,
    ),
    "a keyword of later drafts says nothing in draft 4": (
        {**_DRAFT_4, **_STR},
        {**_DRAFT_4, **_STR, "const": 1},
        BOTH,
    ),
    "an alternative is added": ({"anyOf": [_INT]}, {"anyOf": [_INT, _STR]}, BACKWARD),
    "alternatives change places": ({"oneOf": [_INT, _STR]}, {"oneOf": [_STR, _INT]}, BOTH),
    "an alternative changes": ({"oneOf": [_INT, _STR]}, {"oneOf": [_INT, {"type": "null"}]}, NEITHER),
    "one of becomes any of": ({"oneOf": [_INT, _STR]}, {"anyOf": [_INT, _STR]}, BACKWARD),
    "a condition is added to all": ({"allOf": [{"minimum": 1}]}, {"allOf": [{"minimum": 1}, _STR]}, FORWARD),
    "a type becomes an alternative": (_INT, {"oneOf": [_INT, _STR]}, BACKWARD),
    "a type moves to a definition": (
        _object({"a": _INT}),
        _object({"a": {"$ref": "#/definitions/i"}}, definitions={"i": _INT}),
        BOTH,
    ),
    "a definition changes": (
        _object({"a": {"$ref": "#/definitions/i"}}, definitions={"i": _INT}),
        _object({"a": {"$ref": "#/definitions/i"}}, definitions={"i": _STR}),
        NEITHER,
    ),
    "a type inside of itself stays": (
        _object({"next": {"$ref": "#"}, "a": _INT}),
        _object({"next": {"$ref": "#"}, "a": {"type": "number"}}),
        BACKWARD,
    ),
    "a type inside of itself changes": (
        _object({"next": {"$ref": "#"}, "a": _INT}),
        _object({"next": {"$ref": "#"}, "a": _STR}),
        NEITHER,
    ),
}
ROWS = [
    pytest.param(kind, old, new, answers, id=f"{kind.value}: {name}")
    for kind, changes in ((SchemaType.AVRO, AVRO), (SchemaType.PROTOBUF, PROTOBUF), (SchemaType.JSON, JSON))
    for name, (old, new, answers) in changes.items()
]


def _parse(kind: SchemaType, text: Any) -> ParsedSchema:
    if kind is SchemaType.PROTOBUF:
        return parse_schema(kind, text if text.startswith("syntax") else f'syntax = "proto3"; {text}')
    return parse_schema(kind, json.dumps(text))


@for_each(("kind", "old", "new", "answers"), ROWS)
@for_each("level", CompatibilityLevel, ids=lambda level: level.value)
def test_a_change_is_compatible_as_the_specification_says(
    kind: SchemaType, old: Any, new: Any, answers: tuple[bool, bool], level: CompatibilityLevel
) -> None:
    before, after = _parse(kind, old), _parse(kind, new)
    reads_old, is_read_by_old = answers
    expected = (reads_old or not level.is_backward) and (is_read_by_old or not level.is_forward)
    found = check_compatibility(level, after, [before], [7])
    assert (found == []) is expected, found
    if found:
        assert found[-2:] == ["{oldSchemaVersion: 7}", f"{{oldSchema: '{before.canonical_text}'}}"]
    # Levels that are not transitive look at the latest version only.
    found = check_compatibility(level, after, [before, after])
    assert (found == []) is (expected or not level.is_transitive), found


def test_another_type_of_schema_is_not_compatible() -> None:
    old, new = _parse(SchemaType.AVRO, "string"), _parse(SchemaType.JSON, _STR)
    found = check_compatibility(CompatibilityLevel.FULL, new, [old])
    assert found == ["Incompatible because of different schema type"]
    assert check_compatibility(CompatibilityLevel.NONE, new, [old]) == []


def test_messages_have_the_words_and_paths_of_confluents_registry() -> None:
    old = _record(_field(_record(_field(_enum("A", "B"), "e"), name="I")))
    new = _record(_field(_record(_field(_enum("A"), "e"), name="I")), _field("int", "g"))
    schemas = _parse(SchemaType.AVRO, new), _parse(SchemaType.AVRO, old)
    assert check_compatibility(CompatibilityLevel.BACKWARD, schemas[0], schemas[1:])[:-1] == [
        "{errorType:'MISSING_ENUM_SYMBOLS', description:'The new schema is missing enum symbols '[B]' at "
        "path '/fields/0/type/fields/0/type/symbols' in the old schema', additionalInfo:'[B]'}",
        "{errorType:'READER_FIELD_MISSING_DEFAULT_VALUE', description:'The field 'g' at path '/fields/1' in "
        "the new schema has no default value and is missing in the old schema', additionalInfo:'g'}",
    ]


def test_the_latest_of_several_that_are_not_compatible_is_reported() -> None:
    new, first, second, third = (_parse(SchemaType.AVRO, each) for each in ("int", "string", "bytes", "int"))
    found = check_compatibility(CompatibilityLevel.FULL_TRANSITIVE, new, [first, second, third], [1, 2, 3])
    assert found[-2:] == ["{oldSchemaVersion: 2}", "{oldSchema: '\"bytes\"'}"]


def _wide(kind: str) -> list[Any]:
    return [_record(_field(kind), name=f"R{n}") for n in range(300)]


def _doubled(levels: int, kind: str) -> list[Any]:
    """Each type has two fields of the next."""
    return [
        *(_record(*(_field(f"R{n + 1}", f) for f in "ab"), name=f"R{n}") for n in range(levels)),
        _record(_field(kind), name=f"R{levels}"),
    ]


def _definitions(levels: int, kind: str) -> dict[str, Any]:
    """Each definition has alternatives of the next, with properties of the one before."""
    named = {
        f"d{n}": {
            "oneOf": [
                _object({"a": {"$ref": f"#/definitions/d{(n + step) % levels}"}, "b": {"type": kind}})
                for step in (1, 2, levels - 1)
            ]
        }
        for n in range(levels)
    }
    return {"$ref": "#/definitions/d0", "definitions": named}


def _alternatives(kind: str) -> dict[str, Any]:
    return {"anyOf": [_object({f"p{n}": {"type": kind}}, f"p{n}", **_CLOSED) for n in range(400)]}


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        (SchemaType.AVRO, _wide("int"), _wide("string")),
        (SchemaType.AVRO, _doubled(60, "int"), _doubled(60, "string")),
        (SchemaType.JSON, _definitions(60, "integer"), _definitions(60, "string")),
        (SchemaType.JSON, _alternatives("integer"), _alternatives("string")),
    ],
    ids=["wide", "doubled", "definitions", "alternatives"],
)
def test_hostile_schemas_are_compared_in_bounded_time(kind: SchemaType, old: Any, new: Any) -> None:
    schemas = _parse(kind, new), _parse(kind, old)
    found = check_compatibility(CompatibilityLevel.BACKWARD, schemas[0], schemas[1:])
    assert 0 < len(found) <= 102
