"""A node with a TLS listener, and clients that speak to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ottla.client.blocking import Admin, Producer
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
