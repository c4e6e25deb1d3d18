"""The texts of Avro schemas as Java's parser prints them, and what is refused."""

from __future__ import annotations

import json

import pytest

from ottla.schemas.definitions import InvalidSchemaError, ParsedSchema, SchemaType, parse_schema
from tests.support.rows import for_each


def avro(text: object, **references: ParsedSchema) -> ParsedSchema:
    return parse_schema(SchemaType.AVRO, text if isinstance(text, str) else json.dumps(text), references)


def record(*fields: object, name: str = "R", **more: object) -> dict[str, object]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ('"string"', '"string"'),
        ("string", '"string"'),
        (' {"type": "string"} ', '"string"'),
        ('{"type":"string","avro.java.string":"String"}', '{"type":"string","avro.java.string":"String"}'),
        (
            '/* who */ {"fields":[{"type":"long","name":"id"} // "what"\n],"name":"a.b.R","type":"record"}',
            '{"type":"record","name":"R","namespace":"a.b","fields":[{"name":"id","type":"long"}]}',
        ),
        (
            '{"type":"record","name":"R","namespace":"a","doc":"d","extra":{"b":1,"a":2},"aliases":["Q","x.P"],'
            '"fields":[{"name":"f","order":"descending","default":1e10,"doc":"e","type":"double","aliases":["g"],'
            '"p":1},{"name":"e","type":{"type":"enum","name":"E","symbols":["A","B"],"default":"A"}},'
            '{"name":"e2","type":["null","E"],"default":null},{"name":"x","type":{"type":"fixed","name":"b.F",'
            '"size":12,"logicalType":"duration"}},{"name":"n","type":"b.F"}]}',
            '{"type":"record","name":"R","namespace":"a","doc":"d","fields":[{"name":"f","type":"double",'
            '"doc":"e","default":1.0E10,"order":"descending","aliases":["g"],"p":1},{"name":"e","type":'
            '{"type":"enum","name":"E","symbols":["A","B"],"default":"A"}},{"name":"e2","type":["null","E"],'
            '"default":null},{"name":"x","type":{"type":"fixed","name":"F","namespace":"b","size":12,'
            '"logicalType":"duration"}},{"name":"n","type":"b.F"}],"extra":{"b":1,"a":2},'
            '"aliases":["Q","x.P"]}',
        ),
        (
            # A type may be defined after the place that names it; it is printed at the first of them.
            '["null",{"type":"record","name":"A","fields":[{"name":"b","type":"B"}]},'
            '{"type":"fixed","name":"B","size":1}]',
            '["null",{"type":"record","name":"A","fields":[{"name":"b","type":{"type":"fixed","name":"B",'
            '"size":1}}]},"B"]',
        ),
        (
            '{"type":"record","name":"a.L","fields":[{"name":"next","type":["null","L"]},'
            '{"name":"plain","type":{"type":"record","name":"P","namespace":"","fields":[]}}]}',
            '{"type":"record","name":"L","namespace":"a","fields":[{"name":"next","type":["null","L"]},'
            '{"name":"plain","type":{"type":"record","name":"P","namespace":"","fields":[]}}]}',
        ),
    ],
)
def test_the_canonical_text_is_that_of_javas_parser(text: str, canonical: str) -> None:
    parsed = avro(text)
    assert parsed.canonical_text == canonical
    assert avro(canonical).canonical_text == canonical


def test_normalization_sorts_what_has_no_order() -> None:
    one = avro(
        record({"name": "f", "type": "double", "default": 1, "z": 1, "a": 2}, doc="", aliases=["B", "A"])
    )
    other = avro(record({"name": "f", "type": "double", "default": 1.0, "a": 2, "z": 1}, aliases=["A", "B"]))
    assert one.canonical_text != other.canonical_text
    assert one.normalized_text() == other.normalized_text()
    decimal = {"scale": 2, "b": 1, "precision": 9, "logicalType": "decimal", "type": "bytes"}
    assert avro(decimal).normalized_text() == (
        '{"type":"bytes","logicalType":"decimal","precision":9,"scale":2,"b":1}'
    )


def test_names_of_references_are_not_written_again() -> None:
    inner = avro(record(name="a.Inner"))
    middle = avro(record({"name": "inner", "type": "a.Inner"}, name="a.Middle"), inner=inner)
    outer = avro(
        record({"name": "m", "type": "Middle"}, {"name": "i", "type": "Inner"}, name="a.O"), m=middle
    )
    assert outer.canonical_text == (
        '{"type":"record","name":"O","namespace":"a","fields":[{"name":"m","type":"Middle"},'
        '{"name":"i","type":"Inner"}]}'
    )


@for_each(
    ("text", "reason"),
    [
        ("", "no JSON"),
        ("{", "no JSON"),
        ("nothing", "no JSON"),
        ('"nothing"', "Undefined schema"),
        ('{"type":"record"}', "No name"),
        ('{"type":"record","name":"R"}', "no fields"),
        ('{"type":{"type":"string"}}', "No type"),
        ('{"type":"record","name":"R","fields":[{"name":"f"}]}', "No field type"),
        ('{"type":"record","name":"R","fields":[{"name":"1f","type":"int"}]}', "Illegal name"),
        ('{"type":"record","name":"R-1","fields":[]}', "Illegal name"),
        ('{"type":"record","name":"R","namespace":"a-b","fields":[]}', "Illegal name"),
        ('{"type":"record","name":"string","fields":[]}', "after primitives"),
        ('{"type":"record","name":"R","fields":[{"name":"f","type":"Q"}]}', "Undefined schema"),
        (
            '{"type":"record","name":"R","fields":[{"name":"f","type":"int"},{"name":"f","type":"int"}]}',
            "Duplicate field",
        ),
        (
            '{"type":"record","name":"R","fields":[{"name":"f","type":"int","default":"x"}]}',
            "Invalid default",
        ),
        (
            '{"type":"record","name":"R","fields":[{"name":"f","type":["null","int"],"default":"x"}]}',
            "Invalid default",
        ),
        ('{"type":"enum","name":"E","symbols":["A","A"]}', "Duplicate enum symbol"),
        ('{"type":"enum","name":"E","symbols":["A"],"default":"B"}', "Enum Default"),
        ('{"type":"enum","name":"E","symbols":"A"}', "no symbols"),
        ('{"type":"fixed","name":"F","size":"1"}', "size"),
        ('{"type":"array"}', "no items type"),
        ('["int","int"]', "Duplicate in union"),
        ('["int",["long"]]', "Nested union"),
        (
            '["null",{"type":"array","items":{"type":"fixed","name":"F","size":1}},'
            '{"type":"map","values":{"type":"fixed","name":"F","size":2}}]',
            "Can't redefine",
        ),
        ('"\\ud800"', "Undefined schema"),
        ('{"type":"string","doc2":"\\ud800"}', "half of a character"),
    ],
)
def test_what_is_no_schema_is_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidSchemaError, match=reason):
        avro(text)


def test_a_stored_schema_is_checked_less_strictly() -> None:
    text = '{"type":"record","name":"Größe","fields":[{"name":"f","type":"int","default":"x"}]}'
    with pytest.raises(InvalidSchemaError):
        avro(text)
    assert parse_schema(SchemaType.AVRO, text, is_new=False).canonical_text == text


def _nested(levels: int) -> str:
    return '{"type":"array","items":' * levels + '"int"' + "}" * levels


def _chain(levels: int) -> str:
    """Types that are side by side in the text, and inside of each other by their names."""
    return json.dumps(
        [record({"name": "f", "type": f"R{n + 1}"}, name=f"R{n}") for n in range(levels)]
        + [record(name=f"R{levels}")]
    )


def _defaults(levels: int) -> str:
    """Each type has two fields of the next, with defaults that need its own."""
    return json.dumps(
        [
            record(*({"name": f, "type": f"R{n + 1}", "default": {}} for f in "ab"), name=f"R{n}")
            for n in range(levels)
        ]
        + [record({"name": "x", "type": "int", "default": 1}, name=f"R{levels}")]
    )


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        _nested(5_000),
        _nested(150),
        _chain(1_000),
        _defaults(60),
        '"' + "x" * 10_000_000 + '"',
        "/*" * 400_000,
        '"' + '\\"' * 400_000,
        "1" * 500_000,
    ],
    ids=["brackets", "deep", "arrays", "names", "defaults", "large", "comments", "quotes", "number"],
)
def test_hostile_schemas_are_refused_at_once(text: str) -> None:
    with pytest.raises(InvalidSchemaError):
        avro(text)


def test_many_definitions_of_the_same_type_take_the_time_of_their_text() -> None:
    large = record(*({"name": f"f{n}", "type": "int"} for n in range(5_000)), name="L")
    several = [large, *(record({"name": "l", "type": "L"}, name="S") for _ in range(1))]
    again = [record({"name": f"x{n}", "type": large}, name=f"R{n}") for n in range(3)]
    assert avro([*several, *again]).canonical_text.count("f4999") == 1
