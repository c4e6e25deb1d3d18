"""Typed records: our serdes with our clients, and with Confluent's serializers both ways."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from urllib.parse import urlsplit

import pytest

import ottla
from ottla import Consumer, Producer, ShareConsumer, blocking
from ottla.client.admin.configs import ResourceType
from ottla.serdes import (
    Avro,
    JsonSchema,
    Protobuf,
    SchemaReference,
    SchemaSerde,
    SerdeError,
    Undecoded,
    WrongData,
)
from ottla.testing.local_node import LocalNode
from tests.node.registry_calls import RegistryClient, record

# One node starts for the module, and each test has topics of its own.
pytestmark = pytest.mark.slow

AVRO = json.dumps(
    {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [
            {"name": "id", "type": "long"},
            {
                "name": "price",
                "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
            },
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "lines", "type": {"type": "array", "items": record("Line", sku="string", count="int")}},
            {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "PAID"]}},
            {"name": "note", "type": ["null", "string"], "default": None},
        ],
    }
)
JSON = json.dumps(
    {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Order",
        "type": "object",
        "properties": {"id": {"type": "integer", "minimum": 1}, "note": {"type": ["string", "null"]}},
        "required": ["id"],
    }
)
PROTOBUF = """
syntax = "proto3";
package shop;
message Other { string name = 1; }
message Outer {
  message Order { int64 id = 1; repeated string tags = 2; map<string, int32> counts = 3; State state = 4; }
  enum State { NEW = 0; PAID = 1; }
}
"""


class State(Enum):
    NEW = "NEW"
    PAID = "PAID"


@dataclass
class Line:
    sku: str
    count: int


@dataclass
class Order:
    id: int
    price: Decimal
    at: datetime
    lines: list[Line] = field(default_factory=list)
    state: State = State.NEW
    note: str | None = None


AN_ORDER = Order(7, Decimal("12.50"), datetime(2024, 2, 29, 12, tzinfo=UTC), [Line("a", 2)], State.PAID, "é")
AVRO_VALUE = {
    "id": 7,
    "price": Decimal("12.50"),
    "at": AN_ORDER.at,
    "lines": [{"sku": "a", "count": 2}],
    "state": "PAID",
    "note": "é",
}
JSON_VALUE = {"id": 7, "note": "é"}
PROTOBUF_VALUE = {"id": 7, "tags": ["x", "y"], "counts": {"a": 1}, "state": "PAID"}
Make = Callable[..., SchemaSerde]
KINDS: dict[str, tuple[Make, Any]] = {
    "avro": (lambda url, **more: Avro(url, AVRO, **more), AVRO_VALUE),
    "json": (lambda url, **more: JsonSchema(url, JSON, **more), JSON_VALUE),
    "protobuf": (
        lambda url, **more: Protobuf(url, PROTOBUF, message="shop.Outer.Order", **more),
        PROTOBUF_VALUE,
    ),
}


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    with LocalNode({"http.listener": "http://127.0.0.1:0"}) as node:
        yield node


@pytest.fixture(scope="module")
def url(node: LocalNode) -> str:
    assert node.schema_registry_url is not None
    return node.schema_registry_url


async def read(node: LocalNode, topic: str, serde: SchemaSerde, count: int, **more: Any) -> list[Any]:
    found: list[Any] = []
    async with Consumer(node.bootstrap_servers, value_deserializer=serde, **more) as consumer:
        consumer.assign([(topic, 0)])
        consumer.seek_to_beginning()
        async with asyncio.timeout(60):
            while len(found) < count:
                found += [each.value for each in await consumer.poll()]
    return found


@pytest.mark.parametrize("id_in", ["value", "headers"])
@pytest.mark.parametrize("kind", KINDS)
async def test_what_a_producer_writes_a_consumer_reads(
    node: LocalNode, url: str, kind: str, id_in: str
) -> None:
    make, value = KINDS[kind]
    topic = f"typed-{kind}-{id_in}"
    writing = make(url, auto_register=True, id_in=id_in)
    async with Producer(node.bootstrap_servers, value_serializer=writing) as producer:
        await producer.send(topic, value, headers={"own": b"1"})
        producer.send_nowait(topic, value)
        await producer.send(topic, None)
    assert await read(node, topic, make(url), 3) == [value, value, None]
    # The latest of the subject is enough to write with.
    latest: Any = {"avro": Avro, "json": JsonSchema, "protobuf": Protobuf}[kind]
    more = {"message": "shop.Outer.Order"} if kind == "protobuf" else {}
    async with Producer(
        node.bootstrap_servers, value_serializer=latest(url, id_in=id_in, **more)
    ) as producer:
        await producer.send(topic, value)
    assert (await read(node, topic, latest(url), 4))[3] == value


async def test_a_share_consumer_and_blocking_clients_read_typed_records(node: LocalNode, url: str) -> None:
    topic, serde = "typed-blocking", Avro(url, AVRO, type=Order, auto_register=True)
    keys = Avro(url, '"string"', auto_register=True)

    def write_and_read() -> None:
        servers = node.bootstrap_servers
        with blocking.Producer(servers, key_serializer=keys, value_serializer=serde) as producer:
            producer.send(topic, AN_ORDER, key="k")
        with blocking.Consumer(
            servers, key_deserializer=Avro(url), value_deserializer=serde, auto_offset_reset="earliest"
        ) as consumer:
            consumer.assign([(topic, 0)])
            found = next(iter(consumer))
            assert (found.key, found.value) == ("k", AN_ORDER)

    await asyncio.to_thread(write_and_read)
    async with ottla.Admin(node.bootstrap_servers) as admin:
        earliest = {"share.auto.offset.reset": "earliest"}
        await admin.configs.alter(ResourceType.GROUP, "typed-share", set=earliest)
    async with ShareConsumer(
        node.bootstrap_servers, group_id="typed-share", value_deserializer=Avro(url, type=Order)
    ) as consumer:
        consumer.subscribe([topic])
        async with asyncio.timeout(60):
            while not (records := await consumer.poll()):
                pass
        assert [each.value for each in records] == [AN_ORDER]


@pytest.mark.parametrize("kind", KINDS)
async def test_what_does_not_parse_is_an_object_that_says_so(node: LocalNode, url: str, kind: str) -> None:
    make, value = KINDS[kind]
    topic = f"wrong-{kind}"
    data, _ = make(url, auto_register=True).encode(topic, value)
    registry = RegistryClient(url)
    others = {name: each for name, each in KINDS.items() if name != kind}
    other, _ = next(iter(others.values()))[0](url, auto_register=True).encode(
        f"{topic}-other", next(iter(others.values()))[1]
    )
    unknown = b"\0\x7f\xff\xff\xff" + data[5:]
    wrong = [b"plain text", b"", b"\0\0", unknown, other, data[:5] + b"\xff" * 9]
    async with Producer(node.bootstrap_servers) as producer:
        for each in [*wrong, data]:
            await producer.send(topic, each)
    found = await read(node, topic, make(url), len(wrong) + 1)
    assert found[-1] == value
    assert all(isinstance(each, Undecoded) for each in found[:-1])
    assert [each.data for each in found[:-1]] == wrong
    assert "does not begin with the id of a schema" in found[0].error
    assert found[3].schema == 0x7FFFFFFF
    assert "is not to be had" in found[3].error
    assert registry.get("/subjects") != []
    raising = make(url, on_error="raise")
    with pytest.raises(WrongData):
        raising.decode(topic, b"plain text")


@asynccontextmanager
async def switch(url: str) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """An address that leads to the registry while an event is set, and else ends connections."""
    target, is_up = urlsplit(url), asyncio.Event()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if is_up.is_set():
            inner, outer = await asyncio.open_connection(target.hostname, target.port)
            await asyncio.gather(pump(reader, outer), pump(inner, writer), return_exceptions=True)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}{target.path}", is_up


async def test_a_registry_that_is_away_loses_no_record(node: LocalNode, url: str) -> None:
    topic = "registry-away"
    async with switch(url) as (address, is_up):
        async with Producer(node.bootstrap_servers, value_serializer=Avro(address, AVRO)) as producer:
            with pytest.raises(SerdeError, match="does not answer"):
                await producer.send(topic, AVRO_VALUE)
            is_up.set()
            with pytest.raises(SerdeError, match="does not have this schema: register it"):
                await producer.send(topic, AVRO_VALUE)
            RegistryClient(url).ok("POST", f"/subjects/{topic}-value/versions", {"schema": AVRO})
            await producer.send(topic, AVRO_VALUE)
        is_up.clear()
        async with Consumer(node.bootstrap_servers, value_deserializer=Avro(address)) as consumer:
            consumer.assign([(topic, 0)])
            consumer.seek_to_beginning()
            for _ in range(2):
                with pytest.raises(SerdeError, match="does not answer"):
                    await consumer.poll(timeout_ms=30_000)
                assert await consumer.position((topic, 0)) == 0
            is_up.set()
            records = await consumer.poll(timeout_ms=30_000)
            assert [each.value for each in records] == [AVRO_VALUE]


def test_a_reader_gets_the_form_that_it_knows(url: str) -> None:
    old = json.dumps(record("shop.Order", id="int", gone="string"))
    new: dict[str, Any] = {"type": "record", "name": "shop.Order", "fields": [{"name": "id", "type": "long"}]}
    new["fields"].append({"name": "note", "type": ["null", "string"], "default": None})
    data, _ = Avro(url, old, auto_register=True).encode("evolved", {"id": 1, "gone": "x"})
    assert Avro(url).decode("evolved", data) == {"id": 1, "gone": "x"}
    assert Avro(url, json.dumps(new)).decode("evolved", data) == {"id": 1, "note": None}
    other = json.dumps(record("shop.Order", more="int"))
    found = Avro(url, other).decode("evolved", data)
    assert isinstance(found, Undecoded)
    assert "has no field 'more', which has no default" in found.error


def test_references_are_followed(url: str) -> None:
    registry = RegistryClient(url)
    registry.register("ref-money", record("shop.Money", units="int"))
    item = json.dumps(record("shop.Item", price="shop.Money"))
    references = [SchemaReference("shop.Money", "ref-money", 1)]
    data, _ = Avro(url, item, references=references, auto_register=True).encode(
        "items", {"price": {"units": 3}}
    )
    assert Avro(url).decode("items", data) == {"price": {"units": 3}}

    money = {"schema": json.dumps({"type": "object", "required": ["units"]}), "schemaType": "JSON"}
    registry.ok("POST", "/subjects/ref-json/versions", money)
    text = json.dumps({"properties": {"price": {"$ref": "money.json"}}})
    typed = JsonSchema(url, text, references=[("money.json", "ref-json", 1)], auto_register=True)
    data, _ = typed.encode("items-json", {"price": {"units": 3}})
    assert JsonSchema(url).decode("items-json", data) == {"price": {"units": 3}}
    with pytest.raises(WrongData, match="lacks 'units'"):
        typed.encode("items-json", {"price": {}})

    proto = {
        "schema": 'syntax="proto3"; package shop; message Price { int32 units = 1; }',
        "schemaType": "PROTOBUF",
    }
    registry.ok("POST", "/subjects/price.proto/versions", proto)
    text = 'syntax="proto3"; import "price.proto"; message Item { shop.Price price = 1; }'
    references = [SchemaReference("price.proto", "price.proto", 1)]
    data, _ = Protobuf(url, text, references=references, auto_register=True).encode(
        "items-proto", {"price": {"units": 3}}
    )
    assert Protobuf(url).decode("items-proto", data) == {"price": {"units": 3}}


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        ("topic", "named-topic-value"),
        ("record", "shop.Named"),
        ("topic-record", "named-topic-record-shop.Named"),
        (lambda topic, name, is_key: f"{topic}/{name}/{is_key}", "named-function/shop.Named/False"),
    ],
)
def test_subjects_have_the_names_that_are_chosen(url: str, subject: Any, expected: str) -> None:
    kind = "function" if callable(subject) else subject
    serde = Avro(url, json.dumps(record("shop.Named", id="int")), subject=subject, auto_register=True)
    data, _ = serde.encode(f"named-{kind}", {"id": 1})
    assert expected in RegistryClient(url).get("/subjects")
    assert serde.decode(f"named-{kind}", data) == {"id": 1}


def test_pydantic_models_are_written_and_read(url: str) -> None:
    pytest.importorskip("pydantic")
    from pydantic import BaseModel

    class Item(BaseModel):
        sku: str
        at: datetime

    class Basket(BaseModel):
        id: int
        items: list[Item]

    basket = Basket(id=1, items=[Item(sku="a", at=AN_ORDER.at)])
    serde = JsonSchema(url, type=Basket, auto_register=True)
    data, _ = serde.encode("baskets", basket)
    assert serde.decode("baskets", data) == basket
    assert RegistryClient(url).get("/subjects/baskets-value/versions/1")["schemaType"] == "JSON"
    schema = record(
        "Basket", id="int", items={"type": "array", "items": record("Item", sku="string", at="string")}
    )
    plain = JsonSchema(url, type=Basket).decode("baskets", data.replace(b'"id":1', b'"id":"x"'))
    assert isinstance(plain, Undecoded)
    schema["fields"][1]["type"]["items"]["fields"][1]["type"] = {
        "type": "long",
        "logicalType": "timestamp-micros",
    }
    avro = Avro(url, json.dumps(schema), type=Basket, auto_register=True)
    data, _ = avro.encode("avro-baskets", basket)
    assert avro.decode("avro-baskets", data) == basket


def test_wrong_arguments_say_what_there_is(url: str) -> None:
    for wrong in ({"subject": "x"}, {"id_in": "x"}, {"on_error": "x"}, {"subject": "record"}):
        with pytest.raises(ValueError):
            Avro(url, **wrong)
    with pytest.raises(ValueError, match="http://"):
        Avro("localhost:8081")
    with pytest.raises(SerdeError, match="no schema"):
        Avro(url).encode("nothing-there", {})
    with pytest.raises(SerdeError, match="cannot be used"):
        Avro(url, "{").encode("no-schema", {})
    with pytest.raises(WrongData, match="lacks the field 'price'"):
        Avro(url, AVRO, auto_register=True).encode("wrong-value", {"id": 1})
