"""Our serdes and Confluent's: what one writes the other reads."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip(
    "confluent_kafka.schema_registry",
    reason="what Confluent's serializers need is not installed",
    exc_type=ImportError,
)

from confluent_kafka.schema_registry import (
    SchemaRegistryClient,
    dual_schema_id_deserializer,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from ottla.serdes import Avro, JsonSchema, Protobuf, SchemaSerde, Undecoded
from ottla.testing.local_node import LocalNode
from tests.client.test_serdes import AVRO, AVRO_VALUE, JSON, JSON_VALUE
from tests.node.test_schema_registry_confluent import an_order, order_class

# One node starts for the module, and each test has topics of its own.
pytestmark = pytest.mark.slow

Theirs = Callable[[SchemaRegistryClient, dict[str, Any]], Any]
KINDS: dict[str, tuple[Callable[..., SchemaSerde], Theirs, Theirs, Callable[[], Any]]] = {
    "avro": (
        lambda url, **more: Avro(url, AVRO, **more),
        lambda client, conf: AvroSerializer(client, AVRO, conf=conf),
        lambda client, conf: AvroDeserializer(client, conf=conf),
        lambda: AVRO_VALUE,
    ),
    "json": (
        lambda url, **more: JsonSchema(url, JSON, **more),
        lambda client, conf: JSONSerializer(JSON, client, conf=conf),
        lambda client, conf: JSONDeserializer(None, schema_registry_client=client, conf=conf),
        lambda: JSON_VALUE,
    ),
    "protobuf": (
        lambda url, **more: Protobuf(url, type=order_class(), **more),
        lambda client, conf: ProtobufSerializer(order_class(), client, conf),
        lambda client, conf: ProtobufDeserializer(order_class(), conf, client),
        an_order,
    ),
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with LocalNode({"http.listener": "http://127.0.0.1:0"}) as node:
        assert node.schema_registry_url is not None
        yield node.schema_registry_url


@pytest.fixture
def client(url: str) -> Iterator[SchemaRegistryClient]:
    client = SchemaRegistryClient({"url": url})
    yield client
    client.close()


@pytest.mark.parametrize("is_key", [False, True])
@pytest.mark.parametrize("id_in", ["value", "headers"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_one_writes_the_other_reads(
    url: str, client: SchemaRegistryClient, kind: str, id_in: str, is_key: bool
) -> None:
    make, make_serializer, make_deserializer, make_value = KINDS[kind]
    value, topic = make_value(), f"both-{kind}-{id_in}-{is_key}"
    of = MessageField.KEY if is_key else MessageField.VALUE
    headers: list[tuple[str, bytes]] = []
    data, header = make(url, id_in=id_in, auto_register=True).encode(topic, value, is_key=is_key)
    headers += [header] if header else []
    context = SerializationContext(topic, of, headers)
    reading = make_deserializer(client, {"schema.id.deserializer": dual_schema_id_deserializer})
    assert reading(data, context) == value

    headers = []
    conf: dict[str, Any] = {"auto.register.schemas": True}
    if id_in == "headers":
        conf["schema.id.serializer"] = header_schema_id_serializer
    theirs = make_serializer(client, conf)(value, SerializationContext(f"{topic}-2", of, headers))
    found = make(url).decode(f"{topic}-2", theirs, headers, is_key=is_key)
    assert found == value
    # Both have the same schema, with the same id, and Avro and JSON the same bytes.
    if kind != "protobuf":
        assert theirs == data


def test_messages_of_protobuf_are_dicts_where_there_is_no_class(
    url: str, client: SchemaRegistryClient
) -> None:
    context = SerializationContext("dicts", MessageField.VALUE, [])
    data = ProtobufSerializer(order_class(), client, {"auto.register.schemas": True})(an_order(), context)
    assert Protobuf(url).decode("dicts", data) == {
        "id": 7,
        "total": {"currency": "EUR", "units": -250},
        "at": "2023-11-14T22:13:20Z",
        "counts": {"apple": 3},
        "state": "PAID",
        "card": "4711",
        "note": "fast",
    }
    money = Protobuf(
        url, 'syntax = "proto3"; package shop; message Money { int32 a = 1; }', auto_register=True
    )
    other, _ = money.encode("moneys", {"a": 1})
    found = Protobuf(url, type=order_class()).decode("dicts", other)
    assert isinstance(found, Undecoded)
    assert found.error == "the message is a shop.Money, not a shop.Order"


def test_a_schema_that_only_differs_in_how_it_is_written_is_the_same(
    url: str, client: SchemaRegistryClient
) -> None:
    context = SerializationContext("spaces", MessageField.VALUE, [])
    data = AvroSerializer(client, AVRO, conf={"auto.register.schemas": True})(AVRO_VALUE, context)
    spaced = json.dumps(json.loads(AVRO), indent=4)
    assert Avro(url, spaced).encode("spaces", AVRO_VALUE)[0] == data
