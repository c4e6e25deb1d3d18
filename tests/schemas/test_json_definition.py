"""The texts of JSON Schemas, references between them, and what is refused."""

from __future__ import annotations

import json

import pytest

from ottla.schemas.compatibility import CompatibilityLevel, check_compatibility
from ottla.schemas.definitions import InvalidSchemaError, ParsedSchema, SchemaType, parse_schema
from tests.support.rows import for_each


def schema(text: object, references: dict[str, ParsedSchema] | None = None) -> ParsedSchema:
    return parse_schema(
        SchemaType.JSON, text if isinstance(text, str) else json.dumps(text), references or {}
    )


def test_the_canonical_text_keeps_order_and_digits() -> None:
    text = (
        '{ "type" : "object",\n "properties": {"b": {"multipleOf": 0.10, "enum": [1.0, 1e3, "é\\u001f"]}} }'
    )
    found = schema(text)
    assert found.canonical_text == (
        '{"type":"object","properties":{"b":{"multipleOf":0.10,"enum":[1.0,1E+3,"é\\u001F"]}}}'
    )
    assert found.normalized_text() == (
        '{"properties":{"b":{"enum":[1.0,1E+3,"é\\u001F"],"multipleOf":0.10}},"type":"object"}'
    )
    assert schema("true").canonical_text == "true"


@pytest.mark.parametrize(
    ("reference", "more"),
    [
        ("#/definitions/d", {"definitions": {"d": {"type": "integer"}}}),
        ("#/$defs/d", {"definitions": {"d": {"type": "integer"}}}),
        ("#/$defs/a~1b%20c", {"$defs": {"a/b c": {"type": "integer"}}}),
        ("#d", {"$defs": {"x": {"$anchor": "d", "type": "integer"}}}),
        ("http://e.com/d", {"$defs": {"x": {"$id": "http://e.com/d", "type": "integer"}}}),
        ("d.json", {"$id": "http://e.com/r.json", "$defs": {"x": {"$id": "d.json", "type": "integer"}}}),
        ("other.json", {}),
        ("./other.json", {}),
        ("other.json#/$defs/d", {}),
        ("other.json", {"$id": "http://e.com/r.json"}),
    ],
)
def test_references_are_followed(reference: str, more: dict[str, object]) -> None:
    other = schema({"type": "integer", "definitions": {"d": {"type": "integer"}}})
    found = schema(
        {"type": "object", "properties": {"a": {"$ref": reference}}, **more}, {"other.json": other}
    )
    plain = schema({"type": "object", "properties": {"a": {"type": "integer"}}})
    wrong = schema({"type": "object", "properties": {"a": {"type": "string"}}})
    levels = CompatibilityLevel.FULL
    assert check_compatibility(levels, found, [plain]) == []
    assert check_compatibility(levels, found, [wrong])[0].startswith('{errorType:"TYPE_CHANGED"')


def test_meta_schemas_are_known() -> None:
    assert schema({"$ref": "http://json-schema.org/draft-07/schema#"}).canonical_text


def test_messages_have_the_words_and_paths_of_confluents_registry() -> None:
    old = schema({"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}})
    new = schema(
        {"type": "object", "properties": {"a": {"type": "string", "maxLength": 2}, "b": {"type": "null"}}}
    )
    assert check_compatibility(CompatibilityLevel.BACKWARD, new, [old])[:-1] == [
        '{errorType:"MAX_LENGTH_DECREASED", description:"The value at path '
        "'#/properties/a/maxLength' in the new schema is less than its value in the old schema'}",
        '{errorType:"OPTIONAL_PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL", description:"The new schema has an open '
        "content model and has a property or item at path '#/properties/b' which is missing in the old "
        "schema'}",
    ]


@for_each(
    ("text", "reason"),
    [
        ("", "no JSON"),
        ("[]", "expected an object or boolean"),
        ('{"type":"thing"}', "unknown type"),
        ('{"type":[["string"]]}', "unknown type"),
        ('{"properties":[]}', "properties is no dict"),
        ('{"properties":{"a":1}}', "1 is no schema"),
        ('{"required":"a"}', "required is no list"),
        ('{"anyOf":{}}', "anyOf is no list"),
        ('{"enum":"a"}', "enum is no list"),
        ('{"type":"string","maxLength":"3"}', "maxLength is no whole number"),
        ('{"minimum":"3"}', "minimum is no number"),
        ('{"multipleOf":0}', "should not be 0"),
        ('{"$ref":1}', "is no reference"),
        ('{"$ref":"#/definitions/a"}', "Unresolved"),
        ('{"$ref":"#a"}', "Unresolved"),
        ('{"$ref":"other.json"}', "none of the references"),
        ('{"$ref":"http://127.0.0.1:1/a.json"}', "nothing is fetched"),
    ],
)
def test_what_is_no_schema_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidSchemaError, match=reason):
        schema(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"not":' * 100_000,
        '{"not":' * 5_000 + "{}" + "}" * 5_000,
        '{"not":' * 250 + "{}" + "}" * 250,
        '{"x":"' + "y" * 10_000_000 + '"}',
        '{"minimum":' + "1" * 100_000 + "}",
        '{"anyOf":[' + ",".join(["{}"] * 60_000) + "]}",
    ],
    ids=["open", "deep", "deeper than printed", "large", "number", "parts"],
)
def test_hostile_schemas_are_refused_at_once(text: str) -> None:
    with pytest.raises(InvalidSchemaError):
        schema(text)


def test_references_that_go_in_circles_end() -> None:
    found = schema({"$ref": "#/definitions/a", "definitions": {"a": {"$ref": "#/definitions/a"}}})
    assert check_compatibility(CompatibilityLevel.FULL, found, [schema({"type": "string"})])
    patterns = schema({"type": "object", "patternProperties": {"(a+)+$": {"type": "integer"}}})
    added = schema({"type": "object", "properties": {"a" * 5_000 + "!": {"type": "string"}}})
    assert check_compatibility(CompatibilityLevel.FULL, added, [patterns])
