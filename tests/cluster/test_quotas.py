"""Quotas in a cluster: other nodes are exempt, a broker throttles for the controller, and all survives."""

from __future__ import annotations

import os
import selectors

import pytest

from ottla import blocking
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from ottla.protocol.messages.metadata import MetadataRequest, MetadataResponse
from ottla.testing.local_cluster import LocalCluster
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

pytestmark = pytest.mark.exhaustive

# So little that replication by a client with them would take hours.
TINY = {"producer_byte_rate": 1.0, "consumer_byte_rate": 1.0, "request_percentage": 0.00001}
MUCH = {"producer_byte_rate": 1e12, "consumer_byte_rate": 1e12, "request_percentage": 1e6}
RECORDS = 30


def test_quotas_do_not_concern_other_nodes_and_are_kept_over_a_restart() -> None:
    with LocalCluster(nodes=3) as cluster, blocking.Admin(cluster.bootstrap_servers) as admin:
        admin.topics.create("t", partitions=3, replication_factor=3)
        for client_id in ("ottla-admin", "writer"):
            admin.quotas.alter({"client-id": client_id}, set=MUCH)
        # Each other client, and so each node by the name of its requests.
        admin.quotas.alter({"client-id": None}, set={**TINY, "controller_mutation_rate": 0.01})
        writer = {"bootstrap.servers": cluster.bootstrap_servers, "client.id": "writer", "acks": "all"}
        with blocking.Producer(writer) as producer:
            for number in range(RECORDS):
                producer.send("t", os.urandom(50_000), partition=number % 3)
            producer.flush()
        cluster.wait_in_sync()
        controller = cluster.controller()
        other = next(node for node in cluster.nodes if node.id != controller)
        _create_by(other.bootstrap_servers)
        # As it was loaded again by a node that starts.
        cluster.restart(other)
        cluster.wait_in_sync()
        wait_until(lambda: _is_throttled(other.bootstrap_servers), "the quotas are not known after a restart")


def _create_by(address: str) -> None:
    """A broker that forwards throttles for as long as the controller says."""

    def request(name: str, partitions: int) -> CreateTopicsRequest:
        topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=1)
        return CreateTopicsRequest(topics=[topic], timeout_ms=30_000)

    with WireClient(address, client_id="maker") as client:
        made = client.get(request("first", 5), 7, CreateTopicsResponse)
        assert made.topics[0].error_code == 0
    with WireClient(address, client_id="maker") as client:
        refused = client.get(request("second", 1), 7, CreateTopicsResponse)
        assert refused.topics[0].error_code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert 400_000 < refused.throttle_time_ms <= 490_000
        client.send(MetadataRequest(topics=[]), 12)
        assert client._socket is not None
        with selectors.DefaultSelector() as selector:
            selector.register(client._socket, selectors.EVENT_READ)
            assert not selector.select(1.5)  # longer than other quotas throttle


def _is_throttled(address: str) -> bool:
    with WireClient(address, client_id="noisy") as client:
        return client.get(MetadataRequest(topics=None), 12, MetadataResponse).throttle_time_ms > 0
