"""A listener with SASL: who gets in, who does not, and how the node tells them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaError, Producer

from ottla.node.config.errors import NodeFailed
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from ottla.testing.local_node import LocalNode
from tests.support.principals import login_settings
from tests.support.wire import CLOSED, WireClient

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
DEADLINE_SECONDS = 60
SASL: dict[str, str | int] = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
    "sasl.enabled.mechanisms": "PLAIN",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
        f'{PLAIN_MODULE} required user_alice="alice-secret" user_bob="bob-secret";'
    ),
    "connection.failed.authentication.delay.ms": 20,
}


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    with LocalNode(SASL) as node:
        yield node


def client_settings(node: LocalNode, user: str, password: str) -> dict[str, str | int]:
    return login_settings(node.bootstrap_servers, user, password)


def test_known_user_writes_and_reads(node: LocalNode) -> None:
    settings = client_settings(node, "alice", "alice-secret")
    producer = Producer(settings)
    producer.produce("greetings", b"hello")
    assert producer.flush(DEADLINE_SECONDS) == 0
    consumer = Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["greetings"])
    message = consumer.poll(DEADLINE_SECONDS)
    consumer.close()
    assert message is not None
    assert message.value() == b"hello"


@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("carol", "alice-secret")])
def test_others_are_refused(node: LocalNode, user: str, password: str) -> None:
    errors: list[KafkaError] = []
    producer = Producer(client_settings(node, user, password), error_cb=errors.append)
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not errors and time.monotonic() < deadline:
        producer.poll(0.1)
    assert errors[0].code() == KafkaError._AUTHENTICATION
    assert "Invalid username or password" in str(errors[0])


def test_no_request_is_answered_before_the_login(node: LocalNode) -> None:
    with WireClient(node.bootstrap_servers) as wire:
        assert wire.ask(MetadataRequest(), 9) is CLOSED
        versions = wire.get(ApiVersionsRequest(), 0, ApiVersionsResponse)
        assert {17, 36} <= {each.api_key for each in versions.api_keys}
        assert wire.ask(MetadataRequest(), 9) is CLOSED
        assert wire.get(SaslHandshakeRequest(mechanism="PLAIN"), 1, SaslHandshakeResponse).error_code == 0
        again = wire.get(SaslHandshakeRequest(mechanism="PLAIN"), 1, SaslHandshakeResponse)
        assert again.error_code == ErrorCode.ILLEGAL_SASL_STATE
        assert wire.receive_frame() is None


def log_in(wire: WireClient, token: bytes = b"\0alice\0alice-secret") -> SaslAuthenticateResponse:
    wire.get(SaslHandshakeRequest(mechanism="PLAIN"), 1, SaslHandshakeResponse)
    return wire.get(SaslAuthenticateRequest(auth_bytes=token), 2, SaslAuthenticateResponse)


def test_login_out_of_place(node: LocalNode) -> None:
    with WireClient(node.bootstrap_servers) as wire:
        assert log_in(wire).error_code == 0
        wire.get(MetadataRequest(), 9, MetadataResponse)
        again = wire.get(SaslHandshakeRequest(mechanism="PLAIN"), 1, SaslHandshakeResponse)
        assert (again.error_code, again.mechanisms) == (ErrorCode.ILLEGAL_SASL_STATE, [])
        token = wire.get(SaslAuthenticateRequest(auth_bytes=b""), 2, SaslAuthenticateResponse)
        assert token.error_code == ErrorCode.ILLEGAL_SASL_STATE
        wire.get(MetadataRequest(), 9, MetadataResponse)


def test_large_token_is_refused_before_it_is_read(node: LocalNode) -> None:
    with WireClient(node.bootstrap_servers) as wire:
        wire.get(SaslHandshakeRequest(mechanism="PLAIN"), 1, SaslHandshakeResponse)
        wire.send_bytes((524_289).to_bytes(4, "big"))
        assert wire.receive_frame() is None
        assert log_in(wire).error_code == 0


def test_token_in_pieces(node: LocalNode) -> None:
    with WireClient(node.bootstrap_servers) as wire:
        wire.get(SaslHandshakeRequest(mechanism="PLAIN"), 0, SaslHandshakeResponse)
        token = b"\0alice\0alice-secret"
        for byte in len(token).to_bytes(4, "big") + token:
            wire.send_bytes(bytes((byte,)))
        assert wire.receive_frame() == b""
        wire.get(MetadataRequest(), 9, MetadataResponse)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sasl.enabled.mechanisms": "MAGIC"}, "SASL mechanism MAGIC is not supported"),
        (
            {"listener.name.sasl_plaintext.plain.sasl.jaas.config": "com.corp.LdapLoginModule required;"},
            "com.corp.LdapLoginModule",
        ),
        (
            {"listener.name.sasl_plaintext.plain.sasl.server.callback.handler.class": "com.corp.Handler"},
            "com.corp.Handler",
        ),
        ({"sasl.server.callback.handler.class": "com.corp.Handler"}, "com.corp.Handler"),
        (
            {"listener.name.sasl_plaintext.plain.connections.max.reauth.ms": "soon"},
            "Invalid value soon for configuration connections.max.reauth.ms",
        ),
        (
            {"listener.name.sasl_plaintext.plain.sasl.jaas.config": f"{PLAIN_MODULE} required user_a='x'"},
            "not terminated by semi-colon",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_at_start(changes: dict[str, str], message: str) -> None:
    with pytest.raises(NodeFailed, match=message), LocalNode({**SASL, **changes}):
        pass


def test_login_module_is_required() -> None:
    settings = {name: value for name, value in SASL.items() if "jaas" not in name}
    with pytest.raises(NodeFailed, match=r"listener\.name\.sasl_plaintext\.plain"), LocalNode(settings):
        pass
