"""Typed records in the source: columns by schemas of a registry, of options and of files.

Most of it is asked of the data source as Spark's processes ask it, without Spark.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.types import StructType

from ottla.client.blocking import Admin, Producer
from ottla.serdes import Avro, JsonSchema, Protobuf
from ottla.spark.datasource import OttlaDataSource
from ottla.spark.debezium import debezium_changes
from ottla.spark.typed.decoding import RegistryUnavailable
from ottla.testing.local_node import LocalNode

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow

ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    ],
}
NOTE = {"name": "note", "type": ["null", "string"], "default": None}
NEWER = {**ORDER, "fields": [*ORDER["fields"], NOTE]}
AT = datetime(2026, 1, 2, tzinfo=UTC)
PROTO = """
syntax = "proto3";
message Other { int32 n = 1; }
message Order { int64 id = 1; map<string, int32> counts = 2; State state = 3; repeated Line lines = 4; }
message Line { string sku = 1; }
enum State { NEW = 0; PAID = 1; }
"""


@dataclass
class Typed:
    """A node with a registry, and what Spark asks of a source of one of its topics."""

    servers: str
    registry: str
    producer: Producer

    def send(self, topic: str, serde: Any, *values: Any, key: bytes | None = None) -> None:
        for value in values:
            bare = isinstance(value, bytes | None)
            data, header = (value, None) if bare else serde.encode(topic, value)
            self.producer.send(topic, data, key=key, headers=[] if header is None else [header])
        self.producer.flush()

    def source(self, topic: str, **options: Any) -> OttlaDataSource:
        given = {"kafka.bootstrap.servers": self.servers, "subscribe": topic, **options}
        return OttlaDataSource({name: str(value) for name, value in given.items()})

    def read(self, topic: str, schema: StructType | None = None, **options: Any) -> list[dict[str, Any]]:
        source = self.source(topic, **options)
        reader: Any = source.reader(schema or source.schema())
        return [
            row for each in reader.partitions() for batch in reader.read(each) for row in batch.to_pylist()
        ]

    def values(self, topic: str, **options: Any) -> list[tuple[Any, str | None]]:
        rows = self.read(topic, columns="value,_error", **options)
        return [(row["value"], row["_error"]) for row in rows]

    def avro(self, schema: Any) -> Avro:
        return Avro(self.registry, json.dumps(schema), auto_register=True)


@pytest.fixture(scope="module")
def typed() -> Iterator[Typed]:
    settings = {"schema.registry.listener": "http://127.0.0.1:0"}
    with LocalNode(settings) as node, Producer(node.bootstrap_servers) as producer:
        assert node.schema_registry_url is not None
        yield Typed(node.bootstrap_servers, node.schema_registry_url, producer)


@pytest.fixture
def topic(typed: Typed) -> str:
    name = f"orders-{uuid.uuid4().hex[:8]}"
    with Admin(typed.servers) as admin:
        admin.topics.create(name, partitions=1)
    return name


def order(number: int, **more: Any) -> dict[str, Any]:
    return {"id": number, "price": Decimal(number) / 100, "at": AT, **more}


def test_values_are_columns_by_the_latest_schema_and_those_of_their_ids(typed: Typed, topic: str) -> None:
    typed.send(topic, typed.avro(ORDER), order(1), key=b"k")
    typed.send(topic, typed.avro(NEWER), order(2, note="new"))
    options = {"valueFormat": "avro", "schemaRegistry": typed.registry}
    schema = typed.source(topic, **options).schema()
    assert [each.simpleString() for each in schema][:2] == [
        "key:binary",
        "value:struct<id:bigint,price:decimal(9,2),at:timestamp,note:string>",
    ]
    assert schema.names[-1] == "_error"
    rows = typed.read(topic, **options)
    assert [row["value"] for row in rows] == [order(1, note=None), order(2, note="new")]
    assert rows[0]["key"] == b"k"
    pinned = typed.values(topic, **options, valueSchemaVersion=1)
    assert pinned == [(order(1), None), (order(2), None)]


def test_the_id_may_be_in_a_header(typed: Typed, topic: str) -> None:
    """Also beside records that have it before the data, with other headers, and for keys and values."""

    def avro(schema: Any) -> Avro:
        return Avro(typed.registry, json.dumps(schema), auto_register=True, id_in="headers")

    typed.send(topic, avro(ORDER), order(1))
    typed.send(topic, avro(NEWER), order(2, note="new"))
    typed.send(topic, typed.avro(ORDER), order(3))
    data, (name, guid) = avro(ORDER).encode(topic, order(4))
    key, (key_name, key_guid) = Avro(typed.registry, '"long"', auto_register=True, id_in="headers").encode(
        topic, 4, is_key=True
    )
    named = [("other", b""), (key_name, key_guid), (name, guid), (name, b"second")]
    typed.producer.send(topic, data, key=key, headers=named)
    for value, header in ((None, guid), (data, b"\1" * 17), (data, b"text"), (data[:-1], guid)):
        typed.producer.send(topic, value, headers=[(name, header)])
    typed.producer.flush()
    options = {"valueFormat": "avro", "schemaRegistry": typed.registry}
    found = typed.values(topic, **options)
    wanted = [order(1, note=None), order(2, note="new"), order(3, note=None), order(4, note=None)]
    assert [value for value, _ in found] == [*wanted, None, None, None, None]
    expected = [None] * 5 + ["01010101-0101", "does not begin with the id", "end inside"]
    for (_, error), part in zip(found, expected, strict=True):
        assert (error is None) if part is None else (part in (error or "")), error
    both = typed.read(topic, **options, keyFormat="avro", columns="key,value,headers")
    assert (both[3]["key"], both[3]["value"]) == (4, wanted[3])
    assert len(both[3]["headers"]) == 4
    assert both[0]["key"] is None


@pytest.mark.parametrize("kind", ["protobuf", "json-schema"])
def test_protobuf_and_json_have_ids_in_headers_too(typed: Typed, topic: str, kind: str) -> None:
    more: dict[str, Any] = {"auto_register": True, "id_in": "headers"}
    if kind == "protobuf":
        serde: Any = Protobuf(typed.registry, PROTO, message="Order", **more)
        typed.send(topic, Protobuf(typed.registry, PROTO, message="Other", **more), {"n": 1})
    else:
        schema = {"type": "object", "properties": {"id": {"type": "integer"}}, "title": "Order"}
        serde = JsonSchema(typed.registry, json.dumps(schema), **more)
        typed.send(topic, None, b"[]")
    typed.send(topic, serde, {"id": 7})
    options = {"valueMessage": "Order"} if kind == "protobuf" else {}
    [(wrong, error), (value, none)] = typed.values(
        topic, valueFormat=kind, schemaRegistry=typed.registry, **options
    )
    assert (value["id"], none, wrong) == (7, None, None)
    assert ("is a Other" if kind == "protobuf" else "begin with the id") in (error or "")


def test_a_query_keeps_its_schema_when_there_is_a_newer_one(typed: Typed, topic: str) -> None:
    typed.send(topic, typed.avro(ORDER), order(1))
    options = {"valueFormat": "avro", "schemaRegistry": typed.registry, "columns": "value"}
    schema = typed.source(topic, **options).schema()
    typed.send(topic, typed.avro(NEWER), order(2, note="new"))
    assert typed.read(topic, schema, **options) == [{"value": order(1)}, {"value": order(2)}]
    # The next run has the newer one.
    assert typed.read(topic, **options)[1] == {"value": order(2, note="new")}


def test_what_does_not_parse_is_an_error_of_its_row(typed: Typed, topic: str) -> None:
    avro = typed.avro(ORDER)
    good = avro.encode(topic, order(1))[0]
    other = typed.avro({"type": "record", "name": "Other", "fields": [{"name": "x", "type": "int"}]})
    stranger = other.encode(f"{topic}-other", {"x": 1})[0]
    unknown = b"\0\0\0\x27\x10" + good[5:]
    typed.send(topic, avro, good, b"text", unknown, None, good[:-1], stranger, good)
    options = {"valueFormat": "avro", "schemaRegistry": typed.registry}
    found = typed.values(topic, **options)
    assert [value for value, _ in found] == [order(1), None, None, None, None, None, order(1)]
    expected = [None, "begin with the id", "10000", None, "end inside", "no type", None]
    for (_, error), part in zip(found, expected, strict=True):
        assert (error is None) == (part is None), error
        assert part is None or (error or "").startswith("value: ")
        assert part is None or part in (error or "")
    [*_, row] = typed.read(topic, **options, includeBytes=True)
    assert row["valueBytes"] == good
    with pytest.raises(ValueError, match="FAILFAST"):
        typed.values(topic, **options, mode="FAILFAST")


def test_a_registry_that_does_not_answer_fails_the_task(typed: Typed, topic: str) -> None:
    typed.send(topic, typed.avro(ORDER), order(1))
    with LocalNode({"schema.registry.listener": "http://127.0.0.1:0"}) as node:
        url = node.schema_registry_url
    with pytest.raises(RegistryUnavailable):
        typed.values(topic, valueFormat="avro", schemaRegistry=url, valueSchema=json.dumps(ORDER))
    with pytest.raises(ValueError, match="does not give version latest"):
        typed.values(topic, valueFormat="avro", schemaRegistry=url)


def test_schemas_of_options_and_files_are_of_values_without_ids(
    typed: Typed, topic: str, tmp_path: Path
) -> None:
    file = tmp_path / "order.avsc"
    file.write_text(json.dumps(ORDER))
    data = typed.avro(ORDER).encode(topic, order(1))[0][5:]
    typed.send(topic, None, data)
    assert typed.values(topic, valueFormat="avro", valueSchemaFile=file) == [(order(1), None)]
    assert typed.values(topic, valueFormat="avro", valueSchema=json.dumps(ORDER)) == [(order(1), None)]


def test_keys_and_values_are_typed_each_for_itself(typed: Typed, topic: str) -> None:
    for number, value in enumerate([b'{"n": 1}', b"[]"]):
        typed.producer.send(topic, value, key=bytes([number << 1]))
    typed.producer.flush()
    options = {"keyFormat": "avro", "keySchema": '"int"', "valueFormat": "json", "valueSchema": "n int"}
    rows = typed.read(topic, **options, columns="_error,value,key,keyBytes,offset")
    assert [(row["key"], row["value"]) for row in rows] == [(0, {"n": 1}), (1, None)]
    assert "no object" in rows[1]["_error"]
    assert rows[1]["keyBytes"] == b"\x02"


def test_protobuf_has_maps_enums_and_the_message_that_is_named(typed: Typed, topic: str) -> None:
    def serde(message: str) -> Protobuf:
        return Protobuf(typed.registry, PROTO, message=message, auto_register=True)

    value = {"id": 1, "counts": {"a": 2}, "state": "PAID", "lines": [{"sku": "x"}]}
    typed.send(topic, serde("Order"), value)
    typed.send(topic, serde("Other"), {"n": 1})
    options = {"valueFormat": "protobuf", "schemaRegistry": typed.registry, "valueMessage": "Order"}
    schema = typed.source(topic, **options).schema()
    assert schema["value"].simpleString() == (
        "value:struct<id:bigint,counts:map<string,int>,state:string,lines:array<struct<sku:string>>>"
    ).replace("map<string,int>", "map<string,bigint>")
    [first, second] = typed.values(topic, **options)
    assert first == ({**value, "counts": [("a", 2)]}, None)
    assert second[0] is None
    assert "is a Other" in (second[1] or "")


def test_json_has_the_columns_of_its_schema(typed: Typed, topic: str) -> None:
    schema = {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "tags": {"type": "object", "additionalProperties": {"type": "number"}},
        },
    }
    serde = JsonSchema(typed.registry, json.dumps(schema), auto_register=True)
    typed.send(topic, serde, {"id": 1, "tags": {"a": 0.5}, "more": 1}, {"id": 2})
    found = typed.values(topic, valueFormat="json-schema", schemaRegistry=typed.registry)
    assert found == [({"id": 1, "tags": [("a", 0.5)]}, None), ({"id": 2, "tags": None}, None)]


def test_plain_json_has_the_columns_that_are_named(typed: Typed, topic: str) -> None:
    ddl = "id INT, price decimal(9,2), at timestamp, `a b` array<struct<x: double, m: map<string, date>>>"
    value = {
        "id": 1,
        "price": 1.25,
        "at": "2026-01-02T00:00:00Z",
        "a b": [{"x": 1, "m": {"k": "2026-01-02"}}],
    }
    typed.send(topic, None, json.dumps(value).encode(), b'{"id": 3000000000}', b'{"id": "x"}', b"{", b"{}")
    [first, *wrong, empty] = typed.values(topic, valueFormat="json", valueSchema=ddl)
    assert first == (
        {
            "id": 1,
            "price": Decimal("1.25"),
            "at": AT,
            "a b": [{"x": 1.0, "m": [("k", AT.date())]}],
        },
        None,
    )
    assert [value for value, _ in wrong] == [None] * 3
    assert all(error for _, error in wrong)
    assert empty == ({"id": None, "price": None, "at": None, "a b": None}, None)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"valueFormat": "xml"}, "there are avro, protobuf, json-schema, json"),
        ({"valueFormat": "avro"}, "needs a schema"),
        ({"valueFormat": "json"}, "needs valueSchema"),
        ({"valueSchema": '"int"'}, "needs valueFormat"),
        ({"valueFormat": "avro", "valueSchema": '"int"', "valueSchemaVersion": "1"}, "of the registry"),
        ({"valueFormat": "avro", "schemaRegistry": "ftp://x"}, "http://"),
        ({"valueFormat": "json", "valueSchema": "id lung"}, "'lung'"),
        ({"valueFormat": "json", "valueSchema": "id decimal(50)"}, "no decimal"),
        ({"valueFormat": "avro", "valueSchema": "{}"}, "No type"),
        ({"valueFormat": "avro", "valueSchema": '"int"', "mode": "DROPMALFORMED"}, "PERMISSIVE and FAILFAST"),
        ({"mode": "FAILFAST"}, "is for typed records"),
        ({"includeBytes": "true"}, "is for typed records"),
        ({"columns": "_error"}, "none of them"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, str], why: str) -> None:
    source = OttlaDataSource({"kafka.bootstrap.servers": "localhost:1", "subscribe": "t", **options})
    with pytest.raises(ValueError, match=why):
        source.reader(source.schema())


def test_a_hostile_schema_is_refused_before_anything_is_read() -> None:
    fields: list[Any] = [{"name": f"f{n}", "type": "int"} for n in range(60)]
    kind: Any = {"type": "record", "name": "T0", "fields": fields}
    for level in range(1, 5):
        fields = [{"name": f"f{n}", "type": kind if n == 0 else f"T{level - 1}"} for n in range(60)]
        kind = {"type": "record", "name": f"T{level}", "fields": fields}
    source = OttlaDataSource({"valueFormat": "avro", "valueSchema": json.dumps(kind), "subscribe": "t"})
    with pytest.raises(ValueError, match="more than 5000 columns"):
        source.schema()


def test_spark_reads_typed_columns(typed: Typed, topic: str, spark: SparkSession, tmp_path: Path) -> None:
    typed.send(topic, typed.avro(NEWER), *(order(n, note=f"n{n}") for n in range(20)), b"no")
    options = {
        "kafka.bootstrap.servers": typed.servers,
        "subscribe": topic,
        "valueFormat": "avro",
        "schemaRegistry": typed.registry,
        "startingOffsets": "earliest",
    }
    rows: list[Any] = []
    query = (
        spark.readStream.format("ottla").options(**options).load()
        .selectExpr("value.*", "_error")
        .writeStream.foreachBatch(lambda frame, _: rows.extend(frame.collect()))
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True).start()
    )  # fmt: skip
    assert query.awaitTermination(180)
    assert [row.note for row in rows] == [*(f"n{n}" for n in range(20)), None]
    assert (rows[1].price, "begin with the id" in rows[20]._error) == (Decimal("0.01"), True)

    envelope = {
        "type": "record",
        "name": "Envelope",
        "fields": [
            {"name": "before", "type": ["null", {**NEWER, "name": "Value"}], "default": None},
            {"name": "after", "type": ["null", "Value"], "default": None},
            {"name": "op", "type": "string"},
            {"name": "ts_ms", "type": ["null", "long"], "default": None},
        ],
    }
    other = f"{topic}-changes"
    with Admin(typed.servers) as admin:
        admin.topics.create(other, partitions=1)
    made, gone = order(1, note="a"), order(1, note=None)
    created, deleted = {"op": "c", "after": made, "ts_ms": 5}, {"op": "d", "before": gone}
    typed.send(other, typed.avro(envelope), created, deleted, None, {"op": "m"}, b"no")
    changes = debezium_changes(spark.read.format("ottla").options(**{**options, "subscribe": other}).load())
    assert [tuple(row)[3:] for row in changes.orderBy("change_offset").collect()] == [
        ("a", "c", 5, 0),
        (None, "d", None, 1),
    ]
