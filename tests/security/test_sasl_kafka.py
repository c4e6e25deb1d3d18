"""SASL beside Apache Kafka: the same frames get the same answers, and Java's clients and tools log in."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from kafka import KafkaConsumer, KafkaProducer
from ottla.protocol import scram
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    UserName,
)
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.protocol.messages.metadata import MetadataRequest
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from ottla.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from ottla.protocol.schema import Request
from ottla.protocol.scram import ScramMechanism
from ottla.runtime.random import SystemRandom
from ottla.security.sasl.scram_client import ScramClientFactory
from ottla.security.secret import Secret
from ottla.testing.cluster_plan import free_ports
from ottla.testing.local_node import LocalNode
from tests.support.apache_kafka import ApacheKafka
from tests.support.java_driver import JavaDriver, Message
from tests.support.wire import CLOSED, WireClient

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
CONFIGS = "kafka.admin.ConfigCommand"
DEADLINE_SECONDS = 60
SHARED = {
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
        f'{PLAIN_MODULE} required user_alice="alice-secret" user_bob="bob-secret";'
    ),
    "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": f"{SCRAM_MODULE} required;",
    "listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config": f"{SCRAM_MODULE} required;",
    "listener.name.short.plain.sasl.jaas.config": (
        f'{PLAIN_MODULE} required user_alice="alice-secret" user_bob="bob-secret";'
    ),
    "listener.name.short.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.short.plain.connections.max.reauth.ms": "5000",
    "connection.failed.authentication.delay.ms": "20",
}
PROTOCOLS = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,SHORT:SASL_PLAINTEXT"

Outcome: TypeAlias = tuple[Any, ...]


class SaslApacheKafka(ApacheKafka):
    """Apache Kafka with two further listeners."""

    def __init__(self, directory: Path, ports: list[int], cluster_id: str | None = None) -> None:
        super().__init__(directory, cluster_id=cluster_id)
        self.sasl = f"127.0.0.1:{ports[0]}"
        self.short = f"127.0.0.1:{ports[1]}"

    def _write_configuration(self) -> None:
        super()._write_configuration()
        plain = f"PLAINTEXT://127.0.0.1:{self.port}"
        more = {
            **SHARED,
            "listeners": (
                f"{plain},CONTROLLER://127.0.0.1:{self.controller_port},"
                f"SASL_PLAINTEXT://{self.sasl},SHORT://{self.short}"
            ),
            "advertised.listeners": f"{plain},SASL_PLAINTEXT://{self.sasl},SHORT://{self.short}",
            "listener.security.protocol.map": PROTOCOLS,
        }
        with (self.directory / "server.properties").open("a") as file:
            file.writelines(f"{name}={value}\n" for name, value in more.items())


@pytest.fixture(scope="module")
def ports() -> list[int]:
    return free_ports(5)


@pytest.fixture(scope="module")
def ottla(ports: list[int]) -> Iterator[LocalNode]:
    listeners = (
        f"SASL_PLAINTEXT://127.0.0.1:{ports[2]},SHORT://127.0.0.1:{ports[3]},PLAINTEXT://127.0.0.1:{ports[4]}"
    )
    settings = {**SHARED, "listeners": listeners, "listener.security.protocol.map": PROTOCOLS}
    with LocalNode(settings) as node:
        add_users(f"127.0.0.1:{ports[4]}")
        yield node


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory, ports: list[int]) -> Iterator[SaslApacheKafka]:
    with SaslApacheKafka(tmp_path_factory.mktemp("sasl-kafka"), ports) as kafka:
        add_users(kafka.bootstrap)
        kafka.settle()
        yield kafka


def upsertion(
    name: str, mechanism: int = 1, iterations: int = 4096, password: str | None = None
) -> ScramCredentialUpsertion:
    kind = ScramMechanism.of_type(mechanism) or ScramMechanism.SCRAM_SHA_256
    salted = scram.salted_password(kind, password or f"{name}-secret", b"salt", iterations)
    return ScramCredentialUpsertion(
        name=name, mechanism=mechanism, iterations=iterations, salt=b"salt", salted_password=salted
    )


def add_users(address: str) -> None:
    changes = [upsertion("carol", 1), upsertion("dave", 2)]
    with WireClient(address) as wire:
        answer = wire.get(
            AlterUserScramCredentialsRequest(upsertions=changes), 0, AlterUserScramCredentialsResponse
        )
        assert [result.error_code for result in answer.results] == [0, 0]


# The same frames, the same answers

HANDSHAKE = SaslHandshakeRequest(mechanism="PLAIN")
GOOD = SaslAuthenticateRequest(auth_bytes=b"\0alice\0alice-secret")


def plain_token(token: bytes) -> SaslAuthenticateRequest:
    return SaslAuthenticateRequest(auth_bytes=token)


SCRIPTS: dict[str, list[tuple[Request, int] | bytes]] = {
    "nothing but metadata": [(MetadataRequest(), 9)],
    "produce before the login": [(ProduceRequest(), 9)],
    "token before the handshake": [(GOOD, 2)],
    "versions once": [(ApiVersionsRequest(), 0), (HANDSHAKE, 1), (GOOD, 0), (MetadataRequest(), 9)],
    "versions twice": [(ApiVersionsRequest(), 0), (ApiVersionsRequest(), 0)],
    "versions in the middle": [(HANDSHAKE, 1), (ApiVersionsRequest(), 0)],
    "metadata after versions": [(ApiVersionsRequest(), 0), (MetadataRequest(), 9)],
    "handshake twice": [(HANDSHAKE, 1), (HANDSHAKE, 1)],
    "handshake for another": [(SaslHandshakeRequest(mechanism="MAGIC"), 1)],
    "handshake for another, as of old": [(SaslHandshakeRequest(mechanism="MAGIC"), 0)],
    "handshake of no mechanism": [(SaslHandshakeRequest(mechanism=""), 1)],
    "small letters": [(SaslHandshakeRequest(mechanism="plain"), 1)],
    "login v1": [(HANDSHAKE, 1), (GOOD, 1), (MetadataRequest(), 9)],
    "login v2": [(HANDSHAKE, 1), (GOOD, 2), (MetadataRequest(), 9)],
    "bare token": [(HANDSHAKE, 0), b"\0alice\0alice-secret", (MetadataRequest(), 9)],
    "wrong bare token": [(HANDSHAKE, 0), b"\0alice\0wrong"],
    "wrong password": [(HANDSHAKE, 1), (plain_token(b"\0alice\0wrong"), 2)],
    "unknown user": [(HANDSHAKE, 1), (plain_token(b"\0unknown\0wrong"), 2)],
    "no user": [(HANDSHAKE, 1), (plain_token(b"\0\0wrong"), 2)],
    "no password": [(HANDSHAKE, 1), (plain_token(b"\0alice\0"), 2)],
    "two parts": [(HANDSHAKE, 1), (plain_token(b"alice\0x"), 2)],
    "four parts": [(HANDSHAKE, 1), (plain_token(b"\0alice\0x\0y"), 2)],
    "other identity": [(HANDSHAKE, 1), (plain_token(b"bob\0alice\0alice-secret"), 2)],
    "empty token": [(HANDSHAKE, 1), (plain_token(b""), 2)],
    "heartbeat for a token": [(HANDSHAKE, 1), (HeartbeatRequest(), 3)],
    "producer id for a token": [(HANDSHAKE, 1), (InitProducerIdRequest(), 4)],
    "handshake after the login": [(HANDSHAKE, 1), (GOOD, 2), (HANDSHAKE, 1), (MetadataRequest(), 9)],
    "token after the login": [(HANDSHAKE, 1), (GOOD, 2), (GOOD, 2), (MetadataRequest(), 9)],
    "not a request": [b"\x60\x82\x01\x00 a GSSAPI token"],
    "two bytes": [b"\0\0"],
    "scram with nonsense": [(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1), (plain_token(b"x"), 2)],
    "scram with channel binding": [
        (SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1),
        (plain_token(b"p=tls-unique,,n=carol,r=abc"), 2),
    ],
    "scram for another identity": [
        (SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1),
        (plain_token(b"n,a=alice,n=carol,r=abc"), 2),
    ],
}


def play(address: str, script: list[tuple[Request, int] | bytes]) -> list[Outcome]:
    """What each step is answered with, until the connection is closed."""
    outcomes: list[Outcome] = []
    with WireClient(address) as wire:
        for step in script:
            if isinstance(step, bytes):
                wire.send_frame(step)
                outcomes.append(("frame", wire.receive_frame()))
            else:
                answer = wire.ask(*step)
                if answer is CLOSED:
                    outcomes.append(("closed",))
                elif isinstance(answer, SaslHandshakeResponse):
                    outcomes.append(("handshake", answer.error_code, sorted(answer.mechanisms)))
                elif isinstance(answer, SaslAuthenticateResponse):
                    outcomes.append(
                        (
                            "authenticate",
                            answer.error_code,
                            answer.error_message,
                            bytes(answer.auth_bytes),
                            answer.session_lifetime_ms,
                        )
                    )
                else:
                    outcomes.append((type(answer).__name__, getattr(answer, "error_code", None)))
            if outcomes[-1] in (("closed",), ("frame", None)):
                return outcomes
        wire.send_frame(b"")
        outcomes.append(("end", wire.receive_frame()))
    return outcomes


@pytest.mark.kafka
def test_frames_get_the_same_answers(ottla: LocalNode, kafka: SaslApacheKafka) -> None:
    differences = {}
    for name, script in SCRIPTS.items():
        ours, theirs = play(ottla.bootstrap_servers, script), play(kafka.sasl, script)
        if ours != theirs:
            differences[name] = (ours, theirs)
    assert not differences


@pytest.mark.kafka
def test_sessions_are_renewed_the_same_way(
    kafka: SaslApacheKafka, ottla: LocalNode, ports: list[int]
) -> None:
    renewals: dict[str, list[tuple[Request, int] | bytes]] = {
        "renewed": [(HANDSHAKE, 1), (GOOD, 2), (HANDSHAKE, 1), (GOOD, 2), (MetadataRequest(), 9)],
        "too soon": [
            (HANDSHAKE, 1),
            (GOOD, 2),
            (HANDSHAKE, 1),
            (GOOD, 2),
            (HANDSHAKE, 1),
            (MetadataRequest(), 9),
        ],
        "by another": [(HANDSHAKE, 1), (GOOD, 2), (HANDSHAKE, 1), (plain_token(b"\0bob\0bob-secret"), 2)],
        "with a wrong password": [(HANDSHAKE, 1), (GOOD, 2), (HANDSHAKE, 1), (plain_token(b"\0alice\0x"), 2)],
        "not finished": [(HANDSHAKE, 1), (GOOD, 2), (HANDSHAKE, 1), (InitProducerIdRequest(), 4)],
    }
    differences = {}
    for name, script in renewals.items():
        ours, theirs = play(f"127.0.0.1:{ports[3]}", script), play(kafka.short, script)
        if ours != theirs:
            differences[name] = (ours, theirs)
    assert not differences


def scram_login(address: str, user: str, password: str, mechanism: ScramMechanism) -> tuple[int, str | None]:
    """Log in as our client does; the error of the last answer."""
    factory = ScramClientFactory(mechanism, user, Secret(password), SystemRandom())
    client = asyncio.run(factory.create("a-host"))
    with WireClient(address) as wire:
        wire.get(SaslHandshakeRequest(mechanism=mechanism.mechanism_name), 1, SaslHandshakeResponse)
        token: bytes | None = client.initial_response()
        while token is not None:
            answer = wire.get(SaslAuthenticateRequest(auth_bytes=token), 2, SaslAuthenticateResponse)
            if answer.error_code:
                return answer.error_code, answer.error_message
            token = client.evaluate_challenge(answer.auth_bytes)
        return 0, None


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("user", "password", "mechanism", "code"),
    [
        ("carol", "carol-secret", ScramMechanism.SCRAM_SHA_256, ErrorCode.NONE),
        ("dave", "dave-secret", ScramMechanism.SCRAM_SHA_512, ErrorCode.NONE),
        ("carol", "wrong", ScramMechanism.SCRAM_SHA_256, ErrorCode.SASL_AUTHENTICATION_FAILED),
        ("unknown", "x", ScramMechanism.SCRAM_SHA_256, ErrorCode.SASL_AUTHENTICATION_FAILED),
        ("carol", "carol-secret", ScramMechanism.SCRAM_SHA_512, ErrorCode.SASL_AUTHENTICATION_FAILED),
    ],
)
def test_scram_ends_the_same_way(
    ottla: LocalNode,
    kafka: SaslApacheKafka,
    user: str,
    password: str,
    mechanism: ScramMechanism,
    code: ErrorCode,
) -> None:
    ours = scram_login(ottla.bootstrap_servers, user, password, mechanism)
    assert ours == scram_login(kafka.sasl, user, password, mechanism)
    assert ours[0] == code


@pytest.mark.kafka
def test_users_are_altered_and_described_the_same_way(
    ottla: LocalNode, kafka: SaslApacheKafka, ports: list[int]
) -> None:
    deletion = ScramCredentialDeletion
    script = [
        AlterUserScramCredentialsRequest(
            upsertions=[
                upsertion("erin"),
                upsertion("few", iterations=4095),
                upsertion("many", iterations=16385),
                upsertion("", password="x"),
                upsertion("other", 3),
                upsertion("twice"),
                upsertion("twice", 2),
            ],
            deletions=[deletion(name="none", mechanism=1), deletion(name="unknown", mechanism=0)],
        ),
        AlterUserScramCredentialsRequest(
            upsertions=[upsertion("erin", 2)], deletions=[deletion(name="erin", mechanism=1)]
        ),
        AlterUserScramCredentialsRequest(),
        DescribeUserScramCredentialsRequest(users=None),
        DescribeUserScramCredentialsRequest(users=[]),
        DescribeUserScramCredentialsRequest(
            users=[UserName(name=name) for name in ("erin", "none", "carol", "carol", "")]
        ),
        AlterUserScramCredentialsRequest(deletions=[deletion(name="erin", mechanism=1)]),
        DescribeUserScramCredentialsRequest(users=[UserName(name="erin")]),
    ]

    def answer_to(wire: WireClient, request: Any) -> list[Any]:
        answer = wire.ask(request, 0)
        assert isinstance(answer, AlterUserScramCredentialsResponse | DescribeUserScramCredentialsResponse)
        said: list[Any] = sorted(repr(result) for result in answer.results)
        if isinstance(answer, DescribeUserScramCredentialsResponse):
            said.append((answer.error_code, answer.error_message))
        return said

    with WireClient(f"127.0.0.1:{ports[4]}") as wire:
        ours = [answer_to(wire, request) for request in script]
    with WireClient(kafka.bootstrap) as wire:
        for request, expected in zip(script, ours, strict=True):
            theirs = answer_to(wire, request)
            # A broker of Kafka may describe what was before a change that it has answered.
            deadline = time.monotonic() + 30
            while (
                isinstance(request, DescribeUserScramCredentialsRequest)
                and theirs != expected
                and time.monotonic() < deadline
            ):
                theirs = answer_to(wire, request)
            assert expected == theirs


# Clients and tools

LOGINS = [("PLAIN", "alice"), ("SCRAM-SHA-256", "carol"), ("SCRAM-SHA-512", "dave")]


def java_settings(mechanism: str, user: str) -> dict[str, str]:
    module = PLAIN_MODULE if mechanism == "PLAIN" else SCRAM_MODULE
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'{module} required username="{user}" password="{user}-secret";',
    }


@pytest.mark.kafka
@pytest.mark.parametrize(("mechanism", "user"), LOGINS)
def test_java_clients_log_in(ottla: LocalNode, java_driver: JavaDriver, mechanism: str, user: str) -> None:
    topic = f"java-{uuid4().hex}"
    config = {name.replace(".", "_"): value for name, value in java_settings(mechanism, user).items()}
    with java_driver.producer(ottla.bootstrap_servers, **config) as producer:
        producer.send([Message(topic, b"hello")])
    consumed = java_driver.consume(ottla.bootstrap_servers, topic, **config)
    assert [record.value for record in consumed.records] == [b"hello"]


@pytest.mark.kafka
def test_kafka_configs_manages_users(ottla: LocalNode, java_driver: JavaDriver, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("".join(f"{k}={v}\n" for k, v in java_settings("PLAIN", "alice").items()))
    common = ("--bootstrap-server", ottla.bootstrap_servers, "--command-config", str(file))
    frank = ("--entity-type", "users", "--entity-name", "frank")
    added = java_driver.tool(
        CONFIGS, *common, "--alter", "--add-config", "SCRAM-SHA-256=[iterations=8192,password=pw]", *frank
    )
    assert "Completed updating config for user frank" in added.out
    shown = java_driver.tool(CONFIGS, *common, "--describe", *frank)
    assert "SCRAM-SHA-256=iterations=8192" in shown.out
    assert scram_login(ottla.bootstrap_servers, "frank", "pw", ScramMechanism.SCRAM_SHA_256)[0] == 0
    java_driver.tool(CONFIGS, *common, "--alter", "--delete-config", "SCRAM-SHA-256", *frank)
    code, _ = scram_login(ottla.bootstrap_servers, "frank", "pw", ScramMechanism.SCRAM_SHA_256)
    assert code == ErrorCode.SASL_AUTHENTICATION_FAILED


@pytest.mark.parametrize(("mechanism", "user"), LOGINS)
def test_python_clients_log_in(ottla: LocalNode, mechanism: str, user: str) -> None:
    topic = f"python-{uuid4().hex}"
    settings: dict[str, Any] = {
        "bootstrap_servers": ottla.bootstrap_servers,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": user,
        "sasl_plain_password": f"{user}-secret",
    }
    producer = KafkaProducer(**settings)
    producer.send(topic, b"one").get(DEADLINE_SECONDS)
    producer.close()

    async def continue_with_aiokafka() -> list[bytes | None]:
        async with AIOKafkaProducer(**settings) as other:
            await other.send_and_wait(topic, b"two")
        async with AIOKafkaConsumer(topic, auto_offset_reset="earliest", **settings) as consumer:
            return [(await consumer.getone()).value for _ in range(2)]

    assert asyncio.run(continue_with_aiokafka()) == [b"one", b"two"]
    consumer = KafkaConsumer(topic, auto_offset_reset="earliest", consumer_timeout_ms=60_000, **settings)
    assert next(consumer).value == b"one"
    consumer.close()
