"""A node with a TLS listener, and clients that speak to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.client.blocking import Admin, Producer
from ottla.node.config.errors import NodeFailed
from ottla.testing.local_node import LocalNode
from tests.support import certificates


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def node(directory: Path) -> Iterator[LocalNode]:
    with LocalNode(certificates.server_settings(directory)) as node:
        yield node


def test_our_client_produces_over_tls(node: LocalNode, directory: Path) -> None:
    settings = {
        "bootstrap.servers": node.bootstrap_servers,
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(directory / "ca.crt"),
    }
    with Producer(settings) as producer:
        assert producer.send("orders", b"1").offset == 0
    with Admin(settings) as admin:
        assert [topic.name for topic in admin.topics.list()] == ["orders"]


def test_a_listener_may_have_settings_of_its_own(directory: Path) -> None:
    """Two TLS listeners: one asks for certificates, the other takes clients with and without."""
    settings = certificates.server_settings(directory)
    settings |= {
        "listeners": "INTERNAL://127.0.0.1:0,EXTERNAL://127.0.0.1:0",
        "listener.security.protocol.map": "INTERNAL:SSL,EXTERNAL:SSL",
        "inter.broker.listener.name": "INTERNAL",
        "ssl.client.auth": "requested",
        "listener.name.external.ssl.client.auth": "required",
        "listener.name.external.ssl.enabled.protocols": "TLSv1.2",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:CN=localhost,O=Ottla;User:ANONYMOUS",
    }
    del settings["security.inter.broker.protocol"]
    with LocalNode(settings) as node:
        client = {
            "bootstrap.servers": node.bootstrap_servers,
            "security.protocol": "SSL",
            "ssl.ca.location": str(directory / "ca.crt"),
        }
        with Admin(client) as admin:  # without a certificate it is User:ANONYMOUS
            admin.topics.create("orders")
        alice = certificates.client_certificate()
        with Admin(
            {**client, "ssl.certificate.pem": alice.chain_pem(), "ssl.key.pem": alice.key_pem()}
        ) as admin:
            assert admin.topics.list() == []  # nor may alice see topics


BROKEN = [
    (
        {"ssl.keystore.location": "/none.pem"},
        r"listener SSL: ssl\.keystore\.location: /none\.pem cannot be read",
    ),
    ({"ssl.keystore.type": "JKS"}, r"looks like PEM, and ssl\.keystore\.type is JKS"),
    ({"ssl.truststore.location": "ANOTHER"}, r"can't connect to a server SSLEngine"),
    ({"ssl.principal.mapping.rules": "RULE:("}, r"ssl\.principal\.mapping\.rules: Invalid rule"),
    ({"ssl.keystore.password": "secret4"}, "cannot be specified for a store of type PEM"),
    ({"ssl.cipher.suites": "TLS_NONE"}, r"ssl\.cipher\.suites: TLS_NONE is not known"),
    ({"ssl.engine.factory.class": "com.corp.Factory"}, r"ssl\.engine\.factory\.class is not supported"),
]


@pytest.mark.parametrize(("change", "message"), BROKEN)
def test_a_node_does_not_start_with_what_it_cannot_use(
    directory: Path, tmp_path: Path, change: dict[str, str], message: str
) -> None:
    other = certificates.write_ca(tmp_path, "another", certificates.authority("CN=Another CA"))
    settings = certificates.server_settings(directory) | change
    settings = {name: other if value == "ANOTHER" else value for name, value in settings.items()}
    with pytest.raises(NodeFailed, match=message) as raised, LocalNode(settings):
        pass
    assert "\n" not in str(raised.value)
    assert "secret4" not in str(raised.value)
