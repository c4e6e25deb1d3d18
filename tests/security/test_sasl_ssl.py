"""SASL over TLS and without it, with the settings that a secured `LocalNode` gives."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import Producer as ConfluentProducer

from ottla.client.admin.admin import Admin
from ottla.client.producer.producer import Producer
from ottla.testing.local_node import LocalNode
from tests.support.java_driver import JavaDriver, Message

SECONDS = 60
# Clients log in again when 85 to 95 % of it are over: the last request before is served in what is left.
SESSION_MS = 4_000
SHORT_PAUSE_S = SESSION_MS / 1000 * 0.05 / 2


@pytest.fixture(scope="module", params=["SASL_PLAINTEXT", "SASL_SSL"])
def node(request: pytest.FixtureRequest) -> Iterator[LocalNode]:
    with LocalNode({"connections.max.reauth.ms": SESSION_MS}, security=request.param) as node:

        async def add_user() -> None:
            settings = {"bootstrap.servers": node.bootstrap_servers, **node.client_settings}
            async with Admin(settings) as admin:
                await admin.users.set_password("alice", "alice-secret", mechanism="SCRAM-SHA-256")

        asyncio.run(add_user())
        yield node


def test_ours_and_librdkafka(node: LocalNode) -> None:
    topic = f"t-{uuid4().hex}"

    async def write() -> None:
        settings = {"bootstrap.servers": node.bootstrap_servers, **node.client_settings}
        async with Producer(settings) as producer:
            await producer.send(topic, b"ours")

    asyncio.run(write())
    settings = {"bootstrap.servers": node.bootstrap_servers, **node.security.librdkafka_settings}
    settings |= {"sasl.mechanisms": "SCRAM-SHA-256"}
    settings |= {"sasl.username": "alice", "sasl.password": "alice-secret"}
    producer = ConfluentProducer(settings)
    producer.produce(topic, b"theirs")
    assert producer.flush(SECONDS) == 0
    consumer = ConfluentConsumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    values = []
    while len(values) < 2:
        message = consumer.poll(SECONDS)
        assert message is not None
        assert message.error() is None
        values.append(message.value())
    consumer.close()
    assert values == [b"ours", b"theirs"]


def connections_to(port: int) -> set[int]:
    """The local ports of the connections to a port of this machine."""
    tables = (Path("/proc/net", name) for name in ("tcp", "tcp6"))
    lines = [line for each in tables if each.exists() for line in each.read_text().splitlines()[1:]]
    ends = [(fields[1], fields[2]) for fields in map(str.split, lines) if fields[3] == "01"]
    return {int(own[-4:], 16) for own, other in ends if int(other[-4:], 16) == port}


@pytest.mark.kafka
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_java_logs_in_again_on_the_same_connection(node: LocalNode, java_driver: JavaDriver) -> None:
    """KIP-368: no request fails, although nothing is sent twice, and sessions end all the time."""
    assert any(goes_on(node, java_driver) for _ in range(10))


def goes_on(node: LocalNode, java_driver: JavaDriver) -> bool:
    """Whether no request failed for more than a session; False if the machine stood still meanwhile, for
    longer than what is left of a session then.
    """
    topic = f"t-{uuid4().hex}"
    config = {name.replace(".", "_"): value for name, value in node.client_settings.items()}
    config |= {"retries": "0", "enable_idempotence": "false"}
    with java_driver.producer(node.bootstrap_servers, **config) as producer:
        assert producer.send([Message(topic, b"first")])[0].error is None
        before = connections_to(node.port)
        assert before
        ends = time.monotonic() + 1.2 * SESSION_MS / 1000
        sent = 1
        while time.monotonic() < ends or sent <= 100:
            asked = time.monotonic()
            results = producer.send([Message(topic, b"x" * 100) for _ in range(20)])
            errors = {result.error for result in results} - {None}
            is_lost = not connections_to(node.port) <= before
            if (errors or is_lost) and time.monotonic() - asked > SHORT_PAUSE_S:
                return False
            assert not errors
            assert not is_lost
            sent += len(results)
    return True
