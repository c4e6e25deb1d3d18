"""Clients that people use at one `SASL_SSL` listener, with each mechanism that it offers.

The listener asks for a certificate besides the login, and ACLs let the user use what begins with `own-`: what
a client writes it reads back in a group, and with another topic it learns that it may not.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider as AioTokenProvider
from aiokafka.errors import TopicAuthorizationFailedError
from confluent_kafka import Consumer as RdConsumer
from confluent_kafka import KafkaError as RdKafkaError
from confluent_kafka import Producer as RdProducer
from kafka.errors import TopicAuthorizationFailedError as PyTopicAuthorizationFailedError
from kafka.net.sasl.oauth import AbstractTokenProvider as PyTokenProvider

from kafka import KafkaConsumer, KafkaProducer
from ottla.client.admin.acls import AclBinding, AclOperation, AclResourceType, PatternType
from ottla.client.blocking import Admin
from ottla.security.authorizer.standard_authorizer import CLASS_NAME
from ottla.testing.local_node import LocalNode
from tests.support.franz_go import FranzGo
from tests.support.java_driver import JavaDriver, JavaDriverError, Message
from tests.support.tokens import AUDIENCE, ISSUER, Issuer

PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTH = "org.apache.kafka.common.security.oauthbearer"
LISTENER = "listener.name.sasl_ssl"
ALLOWED_URLS = "org.apache.kafka.sasl.oauthbearer.allowed.urls"
USER, PASSWORD = "alice", "alice-secret"
VALUES = (b"one", b"two", b"three")
DEADLINE_SECONDS = 60

every_mechanism = pytest.mark.parametrize(
    "mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
)


@pytest.fixture(scope="module")
def issuer() -> Issuer:
    return Issuer()


@pytest.fixture(scope="module")
def node(issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNode]:
    keys = tmp_path_factory.mktemp("keys") / "jwks.json"
    keys.write_bytes(issuer.jwks())
    users = f'user_node="node-secret" user_{USER}="{PASSWORD}"'
    settings = {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        f"{LISTENER}.plain.sasl.jaas.config": (
            f'{PLAIN_MODULE} required username="node" password="node-secret" {users};'
        ),
        f"{LISTENER}.oauthbearer.sasl.jaas.config": f"{OAUTH}.OAuthBearerLoginModule required ;",
        f"{LISTENER}.oauthbearer.sasl.server.callback.handler.class": (
            f"{OAUTH}.OAuthBearerValidatorCallbackHandler"
        ),
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "connection.failed.authentication.delay.ms": 20,
        # As in Apache Kafka, without the prefix it is for listeners whose protocol is SSL.
        f"{LISTENER}.ssl.client.auth": "required",
        "authorizer.class.name": CLASS_NAME,
        "super.users": "User:node",
    }
    with LocalNode(settings, security="SASL_SSL") as node:
        with Admin(
            {"bootstrap.servers": node.bootstrap_servers, **java_settings(node, "PLAIN", "node")}
        ) as admin:
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
                admin.users.set_password(USER, PASSWORD, mechanism=mechanism)
            admin.acls.create(
                AclBinding(f"User:{USER}", AclOperation.ALL, kind, "own-", PatternType.PREFIXED)
                for kind in (AclResourceType.TOPIC, AclResourceType.GROUP)
            )
            admin.topics.create("others")
        yield node


def java_settings(node: LocalNode, mechanism: str, user: str = USER) -> dict[str, str]:
    """Settings for Kafka's Java client, and ours; for tokens there is more to say."""
    module = PLAIN_MODULE if mechanism == "PLAIN" else SCRAM_MODULE
    return node.client_settings | {
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f'{module} required username="{user}" password="{user}-secret";',
    }


def new_name() -> str:
    return f"own-{uuid4().hex[:12]}"


@pytest.mark.slow
@every_mechanism
def test_librdkafka(node: LocalNode, issuer: Issuer, mechanism: str) -> None:
    settings: dict[str, Any] = {
        "bootstrap.servers": node.bootstrap_servers,
        **node.security.librdkafka_settings,
        "sasl.mechanisms": mechanism,
        "linger.ms": 0,
    }
    if mechanism == "OAUTHBEARER":
        del settings["sasl.username"], settings["sasl.password"]
        settings["oauth_cb"] = lambda _: (issuer.token(), time.time() + 300)
    else:
        settings |= {"sasl.username": USER, "sasl.password": PASSWORD}
    topic = new_name()
    errors: list[RdKafkaError | None] = []
    producer = RdProducer(settings)
    for value in VALUES:
        producer.produce(topic, value)
    producer.produce("others", b"?", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(DEADLINE_SECONDS) == 0
    assert [error and error.code() for error in errors] == [RdKafkaError.TOPIC_AUTHORIZATION_FAILED]
    del settings["linger.ms"]
    consumer = RdConsumer({**settings, "group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found = consumer.consume(len(VALUES), DEADLINE_SECONDS)
    assert [message.value() for message in found] == list(VALUES)
    consumer.close()


@pytest.fixture
def context(node: LocalNode) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(node.security.directory / "ca.crt"))
    context.load_cert_chain(node.security.directory / "client.pem")
    return context


def python_settings(
    node: LocalNode, context: ssl.SSLContext, mechanism: str, tokens: object
) -> dict[str, Any]:
    """The settings that aiokafka and kafka-python have in common."""
    settings: dict[str, Any] = {
        "bootstrap_servers": node.bootstrap_servers,
        "security_protocol": "SASL_SSL",
        "ssl_context": context,
        "sasl_mechanism": mechanism,
    }
    if mechanism == "OAUTHBEARER":
        return settings | {"sasl_oauth_token_provider": tokens}
    return settings | {"sasl_plain_username": USER, "sasl_plain_password": PASSWORD}


@every_mechanism
def test_aiokafka(node: LocalNode, context: ssl.SSLContext, issuer: Issuer, mechanism: str) -> None:
    class Tokens(AioTokenProvider):
        async def token(self) -> str:
            return issuer.token()

    topic = new_name()

    async def copy() -> list[bytes | None]:
        settings = python_settings(node, context, mechanism, Tokens())
        async with AIOKafkaProducer(**settings) as producer:
            for value in VALUES:
                await producer.send_and_wait(topic, value)
            with pytest.raises(TopicAuthorizationFailedError):
                await producer.send_and_wait("others", b"?")
        consumer = AIOKafkaConsumer(topic, group_id=topic, auto_offset_reset="earliest", **settings)
        async with consumer:
            return [(await consumer.getone()).value for _ in VALUES]

    assert asyncio.run(asyncio.wait_for(copy(), DEADLINE_SECONDS)) == list(VALUES)


@every_mechanism
def test_kafka_python(node: LocalNode, context: ssl.SSLContext, issuer: Issuer, mechanism: str) -> None:
    class Tokens(PyTokenProvider):
        def token(self) -> str:
            return issuer.token()

    topic = new_name()
    settings = python_settings(node, context, mechanism, Tokens())
    producer = KafkaProducer(**settings)
    for value in VALUES:
        producer.send(topic, value).get(DEADLINE_SECONDS)
    with pytest.raises(PyTopicAuthorizationFailedError):
        producer.send("others", b"?").get(DEADLINE_SECONDS)
    producer.close()
    consumer = KafkaConsumer(topic, group_id=topic, auto_offset_reset="earliest", **settings)
    assert [next(consumer).value for _ in VALUES] == list(VALUES)
    consumer.close()


@pytest.mark.kafka
@every_mechanism
def test_java(
    node: LocalNode, java_driver: JavaDriver, issuer: Issuer, tmp_path: Path, mechanism: str
) -> None:
    settings = java_settings(node, mechanism)
    if mechanism == "OAUTHBEARER":
        file = tmp_path / "token"
        file.write_text(issuer.token())
        java_driver.call("property", name=ALLOWED_URLS, value=f"file:{file}")
        settings |= {
            "sasl.jaas.config": f"{OAUTH}.OAuthBearerLoginModule required;",
            "sasl.login.callback.handler.class": f"{OAUTH}.OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.token.endpoint.url": f"file:{file}",
        }
    config = {name.replace(".", "_"): value for name, value in settings.items()}
    topic = new_name()
    with java_driver.producer(node.bootstrap_servers, **config) as producer:
        producer.send([Message(topic, value) for value in VALUES])
        (refused,) = producer.try_send([Message("others", b"?")])
        assert refused.error == "TopicAuthorizationException"
    consumed = java_driver.consume(node.bootstrap_servers, topic, **config, group_id=topic)
    assert [record.value for record in consumed.records] == list(VALUES)
    with pytest.raises(JavaDriverError) as raised:
        java_driver.consume(node.bootstrap_servers, "others", **config)
    assert raised.value.kind == "TopicAuthorizationException"


def franz_settings(node: LocalNode, mechanism: str) -> dict[str, Any]:
    directory = node.security.directory
    name = new_name()
    return {
        "bootstrap": node.bootstrap_servers,
        "authority": str(directory / "ca.crt"),
        "certificate": str(directory / "client.pem"),
        "mechanism": mechanism,
        "user": USER,
        "password": PASSWORD,
        "topic": name,
        "group": name,
        "values": [value.decode() for value in VALUES],
    }


@pytest.mark.slow
@pytest.mark.timeout(900)
@every_mechanism
def test_franz_go(node: LocalNode, franz: FranzGo, issuer: Issuer, mechanism: str) -> None:
    outcome = franz.run(**franz_settings(node, mechanism), token=issuer.token())
    assert (outcome.error, outcome.read) == ("", ("one", "two", "three"))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"topic": "others"}, "TOPIC_AUTHORIZATION_FAILED", "Topic authorization failed"),
        ({"group": "others"}, "GROUP_AUTHORIZATION_FAILED", "Group authorization failed"),
        ({"password": "wrong"}, "SASL_AUTHENTICATION_FAILED", "Invalid username or password"),
        ({"certificate": ""}, "", "certificate required"),
        ({"authority": "", "certificate": ""}, "", "is TLS missing?"),
    ],
    ids=["topic", "group", "password", "no certificate", "no TLS"],
)
def test_franz_go_is_refused(
    node: LocalNode, franz: FranzGo, changes: dict[str, str], code: str, said: str
) -> None:
    outcome = franz.run(**franz_settings(node, "PLAIN") | changes)
    assert (outcome.code, outcome.read) == (code, ())
    assert said.lower() in outcome.error.lower()
