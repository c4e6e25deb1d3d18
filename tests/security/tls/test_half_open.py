"""Handshakes that are begun by the thousand and never finished: what they cost a node with its own bounds."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import psutil
import pytest

from ottla.client.blocking import Admin
from ottla.testing.local_cluster import LocalCluster
from tests.security.tls.test_attacks import client_hello, ended

HALF_OPEN = 3_000
MAX_GROWTH_BYTES = 150 * 1024 * 1024


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """A node in a process of its own, whose memory is its own."""
    with LocalCluster(nodes=1, settings={"socket.listen.backlog.size": 1000}, security="SSL") as cluster:
        yield cluster


@pytest.mark.exhaustive
@pytest.mark.slow
def test_thousands_of_half_open_handshakes_cost_little_memory(cluster: LocalCluster) -> None:
    """A third of them is silent, a third sends a part of the first message, and a third all of it, so that
    the node has answered with its certificate and waits.
    """
    (node,) = cluster.nodes
    assert node.pid is not None
    memory = psutil.Process(node.pid).memory_info
    settings = {"bootstrap.servers": cluster.bootstrap_servers, **cluster.client_settings}
    hello = client_hello()
    with Admin(settings) as admin:
        admin.topics.list()
    before = highest = memory().rss
    slowest = 0.0
    with ExitStack() as stack:
        opened = []
        for number in range(HALF_OPEN):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", node.port), 60))
            connection.sendall((b"", hello[: number % len(hello)], hello)[number % 3])
            opened.append(connection)
            if number % 500 == 499:
                began = time.monotonic()
                with Admin(settings) as admin:
                    assert admin.topics.list() == []
                slowest = max(slowest, time.monotonic() - began)
                highest = max(highest, memory().rss)
        assert all(ended(connection) for connection in opened)
    highest = max(highest, memory().rss)
    grown = (highest - before) / 1024 / 1024
    print(f"{HALF_OPEN} half-open handshakes: {grown:.0f} MB more, the slowest client took {slowest:.1f} s")
    assert highest - before < MAX_GROWTH_BYTES
