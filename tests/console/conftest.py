"""A node with a console, and topics that the tests of a module look at."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla.testing.local_node import LocalNode
from tests.console.api_client import ApiClient
from tests.support.apache_kafka import ApacheKafka


@pytest.fixture(scope="session")
def console_node() -> Iterator[LocalNode]:
    """One node for all tests; each makes topics and groups of its own."""
    with LocalNode({"http.listener": "http://127.0.0.1:0", "num.partitions": 2}) as node:
        yield node


@pytest.fixture(scope="session")
def apache_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    """An Apache Kafka of the console's own: its pages list all there is, and other tests leave a lot."""
    with ApacheKafka(tmp_path_factory.mktemp("apache-kafka")) as kafka:
        yield kafka


@pytest.fixture
def api(console_node: LocalNode) -> ApiClient:
    assert console_node.http_url is not None
    return ApiClient(console_node.http_url)
