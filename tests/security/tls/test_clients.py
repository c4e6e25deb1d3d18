"""Clients that people use, over TLS with client certificates: what they write is what they read, and the node
knows who they are.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer as RdConsumer
from confluent_kafka import Producer as RdProducer

from kafka import KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PyTopicPartition
from ottla.client.blocking import Admin, Consumer, Producer
from ottla.client.errors import BootstrapFailed
from ottla.testing.local_node import LocalNode
from ottla.testing.security import LocalSecurity
from tests.support import certificates, java
from tests.support.waiting import wait_until

DEADLINE_SECONDS = 60
USER = "CN=alice,O=Example"
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


@pytest.fixture(scope="module")
def node() -> Iterator[LocalNode]:
    settings = {
        "authorizer.class.name": AUTHORIZER,
        # The node itself has the name of its certificate; users have theirs by the rule.
        "super.users": "User:alice;User:node",
        "ssl.principal.mapping.rules": "RULE:^CN=([^,]+),.*$/$1/L,DEFAULT",
    }
    with LocalNode(settings, security=LocalSecurity("SSL", user=USER)) as node:
        yield node


@pytest.fixture
def context(node: LocalNode) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(node.security.directory / "ca.crt"))
    context.load_cert_chain(node.security.directory / "client.pem")
    return context


def test_librdkafka(node: LocalNode) -> None:
    settings: dict[str, Any] = {
        "bootstrap.servers": node.bootstrap_servers,
        **node.security.librdkafka_settings,
    }
    producer = RdProducer({**settings, "linger.ms": 0})
    for number in range(200):
        producer.produce("rd", bytes(2000), str(number), partition=0)
    assert producer.flush(DEADLINE_SECONDS) == 0
    consumer = RdConsumer({**settings, "group.id": "rd", "auto.offset.reset": "earliest"})
    consumer.subscribe(["rd"])
    found = consumer.consume(200, DEADLINE_SECONDS)
    assert [message.key() for message in found] == [b"%d" % number for number in range(200)]
    consumer.close()


async def test_aiokafka(node: LocalNode, context: ssl.SSLContext) -> None:
    settings = {
        "bootstrap_servers": node.bootstrap_servers,
        "security_protocol": "SSL",
        "ssl_context": context,
    }
    async with AIOKafkaProducer(**settings) as producer:
        await producer.send_and_wait("aio", b"value", partition=0)
    async with AIOKafkaConsumer("aio", **settings, auto_offset_reset="earliest") as consumer:
        assert (await consumer.getone()).value == b"value"


def test_kafka_python(node: LocalNode, context: ssl.SSLContext) -> None:
    settings: dict[str, Any] = {
        "bootstrap_servers": node.bootstrap_servers,
        "security_protocol": "SSL",
        "ssl_context": context,
    }
    producer = KafkaProducer(**settings)
    producer.send("py", b"value", partition=0).get(DEADLINE_SECONDS)
    producer.close()
    consumer = KafkaConsumer(**settings)
    partition = PyTopicPartition("py", 0)
    consumer.assign([partition])
    consumer.seek_to_beginning()
    assert next(consumer).value == b"value"
    consumer.close()


@pytest.mark.kafka
def test_javas_tools(node: LocalNode, tmp_path: Path) -> None:
    with Producer(settings_of(node)) as producer:
        producer.send("java", b"value")
    pem = tmp_path / "pem.properties"
    pem.write_text((node.security.directory / "client.properties").read_text())
    listed = java.run_tool(
        "org.apache.kafka.tools.TopicCommand",
        *("--bootstrap-server", node.bootstrap_servers, "--command-config", str(pem), "--list"),
    )
    assert "java" in listed.out.split()


def settings_of(node: LocalNode) -> dict[str, str]:
    return {"bootstrap.servers": node.bootstrap_servers, **node.client_settings}


def test_our_clients_by_the_names_of_either_kind(node: LocalNode) -> None:
    for settings in (
        settings_of(node),
        {"bootstrap.servers": node.bootstrap_servers, **node.security.librdkafka_settings},
    ):
        with Producer(settings) as producer:
            offset = producer.send("own", bytes(100_000)).offset
        consumer: Consumer[bytes, bytes] = Consumer(settings, auto_offset_reset="earliest", group_id="own")
        with consumer:
            consumer.subscribe(["own"])
            found = [record.offset for record in consumer.poll(timeout_ms=DEADLINE_SECONDS * 1000)]
            assert found[-1] == offset
        assert "PRIVATE" not in repr(consumer) + repr(producer)


class TestWhatFailedIsExplained:
    """Each client learns why, in words."""

    @staticmethod
    def refusal(node: LocalNode, **changes: str | None) -> str:
        settings = settings_of(node) | {"socket.connection.setup.timeout.ms": "60000"}
        for name, value in changes.items():
            settings.pop(name.replace("_", "."), None)
            if value is not None:
                settings[name.replace("_", ".")] = value
        with pytest.raises(BootstrapFailed) as raised, Admin(settings) as admin:
            admin.topics.list()
        return str(raised.value)

    def test_an_unknown_authority(self, node: LocalNode, tmp_path: Path) -> None:
        other = certificates.write_ca(tmp_path, "other", certificates.authority("CN=Another CA"))
        assert "is not trusted" in self.refusal(node, ssl_truststore_location=other)

    def test_no_certificate_where_one_is_required(self, node: LocalNode) -> None:
        text = self.refusal(node, ssl_keystore_location=None, ssl_keystore_type=None)
        assert "asks for a certificate, and none was shown" in text

    def test_plain_text_at_a_tls_listener(self, node: LocalNode) -> None:
        assert "a TLS or SASL listener?" in self.refusal(
            node,
            security_protocol=None,
            ssl_keystore_location=None,
            ssl_keystore_type=None,
            ssl_truststore_location=None,
            ssl_truststore_type=None,
        )

    def test_tls_at_a_plain_text_listener(self, node: LocalNode, ottla_node: LocalNode) -> None:
        text = self.refusal(node, bootstrap_servers=ottla_node.bootstrap_servers)
        assert "is it a TLS listener?" in text or "does not speak TLS" in text

    def test_a_certificate_that_the_node_does_not_trust(self, node: LocalNode, tmp_path: Path) -> None:
        other = certificates.authority("CN=Another CA").issue("CN=mallory", certificates.now_ms())
        text = self.refusal(node, ssl_keystore_location=certificates.write_pem(tmp_path, "mallory", other))
        assert "does not trust the authority" in text

    def test_an_expired_certificate(self, node: LocalNode, tmp_path: Path) -> None:
        authority = _authority(node)
        expired = authority.issue("CN=alice,O=Example", certificates.now_ms(), days=-1)
        text = self.refusal(node, ssl_keystore_location=certificates.write_pem(tmp_path, "expired", expired))
        assert "says that the certificate has expired" in text

    def test_a_certificate_that_is_not_valid_yet(
        self, node: LocalNode, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """TLS has no alert for it, so the client learns what is refused, and the log of the node says why."""
        early = _authority(node).issue("CN=alice,O=Example", certificates.now_ms(), starts_in_days=1)
        location = certificates.write_pem(tmp_path, "early", early)

        def is_logged() -> bool:
            # After many faults of clients, lines about further ones are left out for a while.
            text = self.refusal(node, ssl_keystore_location=location)
            assert "the other side does not accept the certificate" in text
            return "SSL handshake failed: the certificate is not valid yet" in caplog.text

        wait_until(is_logged)

    @pytest.mark.parametrize(
        ("hosts", "said"),
        [
            (("another.example", "::1"), "the certificate is for another address than 127.0.0.1"),
            (("another.example", "127.0.0.1"), "the certificate is for another host name than localhost"),
        ],
    )
    def test_a_node_whose_certificate_is_for_another_host(
        self, tmp_path: Path, hosts: tuple[str, ...], said: str
    ) -> None:
        issued = certificates.authority().issue("CN=node", certificates.now_ms(), hosts=hosts)
        location = certificates.write_pem(tmp_path, "elsewhere", issued)
        # A node does not start where it cannot reach itself, unless it does not look at names.
        settings = certificates.server_settings(
            tmp_path, ssl_keystore_location=location, ssl_endpoint_identification_algorithm=""
        )
        with LocalNode(settings) as node:
            host = said.rpartition(" ")[2]
            client = {
                "bootstrap.servers": f"{host}:{node.port}",
                "security.protocol": "SSL",
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": certificates.write_ca(tmp_path),
                "socket.connection.setup.timeout.ms": "60000",
            }
            with pytest.raises(BootstrapFailed) as raised, Admin(client) as admin:
                admin.topics.list()
            assert said in str(raised.value)
            with Admin({**client, "ssl.endpoint.identification.algorithm": ""}) as admin:
                assert admin.topics.list() == []


def _authority(node: LocalNode) -> Any:
    from ottla.security.tls.authority import CertificateAuthority

    directory = node.security.directory
    return CertificateAuthority.load((directory / "ca.key").read_bytes(), (directory / "ca.crt").read_bytes())
