"""The schema registry of a node, as Confluent's own client and serializers for Python use it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip(
    "confluent_kafka.schema_registry",
    reason="what Confluent's serializers need is not installed",
    exc_type=ImportError,
)

from confluent_kafka.schema_registry import (
    ConfigCompatibilityLevel,
    Metadata,
    MetadataProperties,
    Rule,
    RuleKind,
    RuleMode,
    RuleSet,
    Schema,
    SchemaReference,
    SchemaRegistryClient,
    SchemaRegistryError,
    ServerConfig,
    dual_schema_id_deserializer,
    header_schema_id_serializer,
)
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format, timestamp_pb2
from tests.node.registry_calls import record
from tests.support import certificates
from tests.support.tokens import AUDIENCE, ISSUER, Issuer, http_server

from ottla.cli.main import main
from ottla.serdes import Avro, SerdeError
from ottla.testing.local_node import LocalNode

# One node starts for the module, and each test has subjects of its own.
pytestmark = pytest.mark.slow

Connect = Callable[[], SchemaRegistryClient]
MONEY = """
name: "shop/money.proto" package: "shop" syntax: "proto3"
message_type { name: "Money"
  field { name: "currency" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
  field { name: "units" number: 2 label: LABEL_OPTIONAL type: TYPE_SINT64 } }
"""
ORDER = """
name: "shop/order.proto" package: "shop" syntax: "proto3"
dependency: "shop/money.proto" dependency: "google/protobuf/timestamp.proto"
message_type { name: "Order"
  field { name: "id" number: 1 label: LABEL_OPTIONAL type: TYPE_INT64 }
  field { name: "total" number: 2 label: LABEL_OPTIONAL type: TYPE_MESSAGE type_name: ".shop.Money" }
  field { name: "at" number: 3 label: LABEL_OPTIONAL type: TYPE_MESSAGE
    type_name: ".google.protobuf.Timestamp" }
  field { name: "counts" number: 4 label: LABEL_REPEATED type: TYPE_MESSAGE
    type_name: ".shop.Order.CountsEntry" }
  field { name: "state" number: 5 label: LABEL_OPTIONAL type: TYPE_ENUM type_name: ".shop.Order.State" }
  field { name: "card" number: 6 label: LABEL_OPTIONAL type: TYPE_STRING oneof_index: 0 }
  field { name: "cash" number: 7 label: LABEL_OPTIONAL type: TYPE_BOOL oneof_index: 0 }
  field { name: "note" number: 8 label: LABEL_OPTIONAL type: TYPE_STRING
    oneof_index: 1 proto3_optional: true }
  nested_type { name: "CountsEntry" options { map_entry: true }
    field { name: "key" number: 1 label: LABEL_OPTIONAL type: TYPE_STRING }
    field { name: "value" number: 2 label: LABEL_OPTIONAL type: TYPE_UINT32 } }
  enum_type { name: "State" value { name: "NEW" number: 0 } value { name: "PAID" number: 1 } }
  oneof_decl { name: "payment" } oneof_decl { name: "_note" } }
"""
AVRO_ORDER = {
    "type": "record",
    "name": "Order",
    "namespace": "shop",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}
JSON_ORDER = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Order",
    "type": "object",
    "properties": {"id": {"type": "integer"}, "note": {"type": "string"}},
    "required": ["id"],
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with LocalNode({"http.listener": "http://127.0.0.1:0"}) as node:
        assert node.schema_registry_url is not None
        yield node.schema_registry_url


@pytest.fixture
def connect(url: str) -> Iterator[Connect]:
    """Makes clients that remember nothing of each other."""
    made: list[SchemaRegistryClient] = []

    def make() -> SchemaRegistryClient:
        made.append(SchemaRegistryClient({"url": url}))
        return made[-1]

    yield make
    for each in made:
        each.close()


@cache
def order_class() -> type[Any]:
    """What a compiler of Protobuf makes of the two files."""
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    for text in (MONEY, ORDER):
        pool.Add(text_format.Parse(text, descriptor_pb2.FileDescriptorProto()))
    found: type[Any] = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    return found


def an_order() -> Any:
    order = order_class()(id=7, counts={"apple": 3}, state=1, card="4711", note="fast")
    order.total.currency, order.total.units = "EUR", -250
    order.at.FromSeconds(1_700_000_000)
    return order


Serializers = Callable[[SchemaRegistryClient, dict[str, Any]], Any]
KINDS: dict[str, tuple[Serializers, Serializers, Callable[[], Any]]] = {
    "avro": (
        lambda client, conf: AvroSerializer(client, json.dumps(AVRO_ORDER), conf=conf),
        lambda client, conf: AvroDeserializer(client, conf=conf),
        lambda: {"id": 7, "note": "fast"},
    ),
    "protobuf": (
        lambda client, conf: ProtobufSerializer(order_class(), client, conf),
        lambda client, conf: ProtobufDeserializer(order_class(), conf, client),
        an_order,
    ),
    "json": (
        lambda client, conf: JSONSerializer(json.dumps(JSON_ORDER), client, conf=conf),
        lambda client, conf: JSONDeserializer(None, schema_registry_client=client, conf=conf),
        lambda: {"id": 7, "note": "fast"},
    ),
}


def same(found: Any, value: Any) -> bool:
    if isinstance(value, dict):
        return bool(found == value)
    return bool(found.SerializeToString(deterministic=True) == value.SerializeToString(deterministic=True))


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_serializer_writes_another_client_reads(connect: Connect, kind: str) -> None:
    make_serializer, make_deserializer, make_value = KINDS[kind]
    context = SerializationContext(f"round-trip-{kind}", MessageField.VALUE, [])
    writer, value = connect(), make_value()
    data = make_serializer(writer, {"auto.register.schemas": True})(value, context)
    # By the client that has registered it, and by one that knows nothing.
    for reader in (writer, connect()):
        assert same(make_deserializer(reader, {})(data, context), value)
    # A second producer finds it without a right to register.
    latest = {"auto.register.schemas": False, "use.latest.version": True}
    assert make_serializer(connect(), latest)(value, context) == data
    found = make_deserializer(connect(), {"use.latest.version": True})(data, context)
    assert same(found, value)


@pytest.mark.parametrize("kind", KINDS)
def test_the_id_may_be_in_a_header(connect: Connect, kind: str) -> None:
    make_serializer, make_deserializer, make_value = KINDS[kind]
    headers: list[tuple[str, bytes]] = []
    context = SerializationContext(f"header-{kind}", MessageField.VALUE, headers)
    value = make_value()
    conf = {"auto.register.schemas": True, "schema.id.serializer": header_schema_id_serializer}
    data = make_serializer(connect(), conf)(value, context)
    assert [name for name, _ in headers] == ["__value_schema_id"]
    reader = make_deserializer(connect(), {"schema.id.deserializer": dual_schema_id_deserializer})
    assert same(reader(data, context), value)


def test_clients_log_in_with_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of Confluent, and ours by the same settings: a token that is given, and one that is asked for."""
    issuer, keys, asked = Issuer(), tmp_path / "jwks.json", []
    keys.write_bytes(issuer.jwks())

    def give(_: str, form: dict[str, list[str]], headers: dict[str, str]) -> tuple[int, bytes]:
        asked.append((form["grant_type"], form["scope"], headers["Authorization"]))
        answer = {"access_token": issuer.token(), "token_type": "Bearer", "expires_in": 3600}
        return 200, json.dumps(answer).encode()

    settings = {
        "http.listener": "https://0.0.0.0:0",
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "listener.name.http.ssl.keystore.type": "PEM",
        "listener.name.http.ssl.keystore.location": certificates.write_pem(
            tmp_path, "server", certificates.server_certificate()
        ),
    }
    with LocalNode(settings) as node, http_server(give) as token_server:
        assert node.schema_registry_url is not None
        where = urlsplit(node.schema_registry_url)
        shared = {
            "url": f"https://127.0.0.1:{where.port}{where.path}",
            "ssl.ca.location": certificates.write_ca(tmp_path, "trusted"),
            "bearer.auth.logical.cluster": "none",
        }
        static = {"bearer.auth.credentials.source": "STATIC_TOKEN", "bearer.auth.token": issuer.token()}
        provider = {
            "bearer.auth.credentials.source": "OAUTHBEARER",
            "bearer.auth.issuer.endpoint.url": f"{token_server}/token",
            "bearer.auth.client.id": "orders",
            "bearer.auth.client.secret": "secret",
            "bearer.auth.scope": "registry",
        }
        function: dict[str, Any] = {
            "bearer.auth.credentials.source": "CUSTOM",
            "bearer.auth.custom.provider.function": lambda given: {
                "bearer.auth.token": given["token"],
                "bearer.auth.logical.cluster": "none",
            },
            "bearer.auth.custom.provider.config": {"token": issuer.token()},
        }
        logins: tuple[dict[str, Any], ...] = (static, provider, function)
        for number, login in enumerate(logins):
            more = {
                name: each for name, each in shared.items() if login is not function or "bearer" not in name
            }
            with SchemaRegistryClient({**more, **login}) as client:
                for topic in (f"by-token-{number}", f"again-{number}"):
                    context = SerializationContext(topic, MessageField.VALUE)
                    data = AvroSerializer(client, json.dumps(AVRO_ORDER))({"id": 7, "note": None}, context)
                    orders = Avro({**shared, **login}, json.dumps(AVRO_ORDER))
                    assert orders.encode(topic, {"id": 7, "note": None})[0] == data
        config = tmp_path / "registry.properties"
        config.write_text("".join(f"{name}={each}\n" for name, each in {**shared, **static}.items()))
        assert main(["schemas", "list", "--registry", shared["url"], "--command-config", str(config)]) == 0
        assert "by-token-0-value" in capsys.readouterr().out
        # One token for all requests of a client.
        assert asked == [(["client_credentials"], ["registry"], "Basic b3JkZXJzOnNlY3JldA==")] * 3
        with SchemaRegistryClient({**shared, **static, "bearer.auth.token": Issuer().token()}) as client:
            with pytest.raises(SchemaRegistryError) as refused:
                client.get_subjects()
            assert refused.value.http_status_code == 401
        with pytest.raises(SerdeError, match=r"the schema registry refuses this client: .* 401"):
            Avro({**shared, **static, "bearer.auth.token": "a.b.c"}, json.dumps(AVRO_ORDER)).encode("t", {})
        with pytest.raises(ValueError, match=r"a schema registry has no setting bearer\.auth\.tokn"):
            Avro({**shared, "bearer.auth.tokn": "x"})


def test_references_of_protobuf_are_registered_and_kept(connect: Connect) -> None:
    context = SerializationContext("references", MessageField.VALUE, [])
    client = connect()
    ProtobufSerializer(order_class(), client, {"auto.register.schemas": True})(an_order(), context)
    latest = connect().get_latest_version("references-value")
    assert latest.schema.schema_type == "PROTOBUF"
    assert {each.name for each in latest.schema.references} >= {"shop/money.proto"}
    assert 'import "shop/money.proto";' in latest.schema.schema_str
    assert client.get_referenced_by("shop/money.proto", 1) == [latest.schema_id]
    with pytest.raises(SchemaRegistryError) as refused:
        client.delete_subject("shop/money.proto")
    assert refused.value.error_code == 42206


def test_avro_with_references_is_written_and_read(connect: Connect) -> None:
    client = connect()
    money = {"type": "record", "name": "shop.Price", "fields": [{"name": "units", "type": "int"}]}
    client.register_schema("price", Schema(json.dumps(money), "AVRO"))
    item = {"type": "record", "name": "shop.Item", "fields": [{"name": "price", "type": "shop.Price"}]}
    schema = Schema(json.dumps(item), "AVRO", [SchemaReference("shop.Price", "price", 1)])
    context = SerializationContext("items", MessageField.VALUE, [])
    value = {"price": {"units": 3}}
    data = AvroSerializer(client, schema, conf={"auto.register.schemas": True})(value, context)
    assert AvroDeserializer(connect())(data, context) == value
    resolved = connect().get_latest_version("items-value", fmt="resolved").schema.schema_str
    assert json.loads(resolved)["fields"][0]["type"]["fields"] == money["fields"]


def test_a_writer_that_knows_another_version_is_read_by_the_latest(connect: Connect) -> None:
    client, context = connect(), SerializationContext("evolved", MessageField.VALUE, [])
    old = {**AVRO_ORDER, "fields": [{"name": "id", "type": "int"}]}
    data = AvroSerializer(client, json.dumps(old), conf={"auto.register.schemas": True})({"id": 1}, context)
    client.register_schema("evolved-value", Schema(json.dumps(AVRO_ORDER), "AVRO"))
    reader = AvroDeserializer(connect(), conf={"use.latest.version": True})
    assert reader(data, context) == {"id": 1, "note": None}


def test_metadata_and_rules_travel_with_a_schema(connect: Connect) -> None:
    client = connect()
    rule = Rule(
        "checked", "", RuleKind.CONDITION, RuleMode.WRITE, "CEL", ["PII"], None, "true", None, None, False
    )
    metadata = Metadata(None, MetadataProperties({"owner": "shop"}), ["owner"])
    schema = Schema(json.dumps(AVRO_ORDER), "AVRO", [], metadata, RuleSet([], [rule]))
    registered = client.register_schema_full_response("ruled-order", schema)
    found = connect().get_latest_with_metadata("ruled-order", {"owner": "shop"})
    assert found.schema_id == registered.schema_id
    assert [each.name for each in found.schema.rule_set.domain_rules or ()] == ["checked"]
    assert found.schema.metadata.properties.properties == {"owner": "shop"}
    assert found.schema.metadata.sensitive == ["owner"]
    assert connect().get_schema_by_guid(found.guid).schema_str == found.schema.schema_str


def test_subjects_versions_and_settings(connect: Connect) -> None:
    client = connect()
    first = Schema(json.dumps(record("A", a="int")), "AVRO")
    second = Schema(json.dumps(record("A", a="long")), "AVRO")
    other = Schema(json.dumps(record("A", b="int")), "AVRO")
    schema_id = client.register_schema("managed", first)
    assert client.test_compatibility("managed", second)
    assert not client.test_compatibility("managed", other)
    assert not client.test_compatibility_all_versions("managed", other)
    with pytest.raises(SchemaRegistryError) as refused:
        client.register_schema("managed", other)
    assert (refused.value.http_status_code, refused.value.error_code) == (409, 409)
    assert client.register_schema("managed", second) == schema_id + 1
    assert client.get_versions("managed") == [1, 2]
    assert client.get_version("managed", 1).schema_id == schema_id
    assert client.lookup_schema("managed", second).version == 2
    assert "managed" in client.get_subjects(subject_prefix="man")
    assert client.get_subjects_by_schema_id(schema_id) == ["managed"]
    assert [(each.subject, each.version) for each in client.get_schema_versions(schema_id)] == [
        ("managed", 1)
    ]
    assert sorted(client.get_schema_types()) == ["AVRO", "JSON", "PROTOBUF"]
    assert "." in client.get_contexts()
    client.set_compatibility("managed", "FULL")
    assert client.get_compatibility("managed") == "FULL"
    client.set_config(
        "managed", ServerConfig(compatibility=ConfigCompatibilityLevel.NONE, compatibility_group="major")
    )
    assert client.get_config("managed").compatibility_group == "major"
    client.delete_config("managed")
    assert client.get_compatibility() == "BACKWARD"
    assert client.get_global_mode() == "READWRITE"
    client.update_mode("managed", "READONLY")
    assert client.get_mode("managed") == "READONLY"
    client.delete_mode("managed")
    assert client.delete_version("managed", 2) == 2
    assert client.delete_version("managed", 2, permanent=True) == 2
    assert client.delete_subject("managed") == [1]
    assert client.delete_subject("managed", permanent=True) == [1]
    with pytest.raises(SchemaRegistryError) as missing:
        connect().get_latest_version("managed")
    assert (missing.value.http_status_code, missing.value.error_code) == (404, 40401)
