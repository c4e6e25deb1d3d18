"""The columns of schemas: types inside of themselves are text of JSON, and there are not too many."""

from __future__ import annotations

import json
import time

import pytest

from ottla.metadata.image.entities import ConfigResource, ConfigResourceType
from ottla.node.config.node_config import NodeConfig
from ottla.node.config.schema import NodeConfigSchema
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.schemas.columns import JSON, LONG, ColumnType
from ottla.schemas.errors import SchemaError
from ottla.schemas.schema import make_schema

FIELDS = 12
SELF_RECURSIVE = {
    "avro": json.dumps(
        {
            "type": "record",
            "name": "A",
            "fields": [{"name": f"f{n}", "type": ["null", "A"]} for n in range(FIELDS)],
        }
    ),
    "protobuf": "message A {" + "".join(f"A f{n} = {n + 1};" for n in range(FIELDS)) + "}",
    "json": json.dumps(
        {"type": "object", "properties": {f"f{n}": {"$ref": "#"} for n in range(FIELDS)}},
    ),
}


@pytest.mark.parametrize("kind", SELF_RECURSIVE)
def test_fields_of_the_type_that_they_are_in_are_text_of_json(kind: str) -> None:
    columns = make_schema("table.schema", kind, SELF_RECURSIVE[kind]).columns()
    assert columns == tuple((f"f{n}", JSON) for n in range(FIELDS))


def test_a_type_between_a_type_and_itself_is_a_struct() -> None:
    tree = {
        "type": "record",
        "name": "Tree",
        "fields": [
            {"name": "id", "type": "long"},
            {
                "name": "children",
                "type": {
                    "type": "array",
                    "items": {
                        "type": "record",
                        "name": "Branch",
                        "fields": [{"name": "weight", "type": "long"}, {"name": "tree", "type": "Tree"}],
                    },
                },
            },
        ],
    }
    branch = ColumnType("struct", (("weight", LONG), ("tree", JSON)))
    assert make_schema("tree", "avro", json.dumps(tree)).columns() == (
        ("id", LONG),
        ("children", ColumnType("list", item=branch)),
    )
    protobuf = """message Tree { int64 id = 1; repeated Branch children = 2; }
                  message Branch { int64 weight = 1; Tree tree = 2; }"""
    assert make_schema("tree", "protobuf", protobuf).columns() == (
        ("id", LONG),
        ("children", ColumnType("list", item=branch)),
    )


def test_a_type_that_is_used_twice_side_by_side_is_a_struct_twice() -> None:
    text = "message Order { Address billing = 1; Address shipping = 2; } message Address { string city = 1; }"
    columns = dict(make_schema("order", "protobuf", text).columns())
    assert columns["billing"] == columns["shipping"]
    assert columns["billing"].kind == "struct"


def chain(kind: str) -> str:
    """Seven types of twenty fields, each of the next one: 20**7 columns in some kilobytes."""
    if kind == "protobuf":
        types = (
            f"message R{i} {{" + "".join(f"R{i + 1} f{n} = {n + 1};" for n in range(20)) + "}"
            for i in range(7)
        )
        return "".join(types) + "message R7 { int32 a = 1; }"
    inner: dict[str, object] = {"type": "record", "name": "R7", "fields": [{"name": "a", "type": "int"}]}
    for i in range(6, -1, -1):
        fields = [
            {"name": "f0", "type": inner},
            *({"name": f"f{n}", "type": f"R{i + 1}"} for n in range(1, 20)),
        ]
        inner = {"type": "record", "name": f"R{i}", "fields": fields}
    return json.dumps(inner)


@pytest.mark.parametrize("kind", ["avro", "protobuf"])
def test_types_inside_of_each_other_cannot_make_more_columns_than_are_allowed(kind: str) -> None:
    started = time.process_time()
    with pytest.raises(SchemaError, match="more than 5000 columns"):
        make_schema("table.schema", kind, chain(kind)).columns()
    assert time.process_time() - started < 30


@pytest.mark.parametrize("kind", ["avro", "protobuf"])
def test_a_topic_with_such_a_schema_is_refused(kind: str) -> None:
    schema = NodeConfigSchema(lambda: NodeConfig({}))
    topic = ConfigResource(ConfigResourceType.TOPIC, "orders")
    with pytest.raises(KafkaError, match="more than 5000 columns") as refused:
        schema.validate(topic, {"table.schema.type": kind, "table.schema": chain(kind)}, {})
    assert refused.value.code is ErrorCode.INVALID_CONFIG


def test_names_inside_of_names_do_not_cost_more_than_the_text() -> None:
    nested = "".join(f"message {'x' * 190} {{" for _ in range(60))
    with pytest.raises(SchemaError, match="a name of more than 1000 characters"):
        make_schema("table.schema", "protobuf", f"message A {{}} {nested} A a = 1; {'}' * 60}")
    with pytest.raises(SchemaError, match="nested too deeply"):
        make_schema("table.schema", "protobuf", f"message A {{ {'oneof a {' * 5_000}")


def test_a_schema_and_its_references_are_bounded_together() -> None:
    with pytest.raises(SchemaError, match="with those that it refers to"):
        make_schema("registry id 7", "avro", '"string"', references=(" " * 600_000, " " * 600_000))
