"""The Java client of Kafka 4.4 against one node, three nodes, and a node that it does not mean."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from pathlib import Path

import pytest

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.streams_group_heartbeat import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupHeartbeatResponse,
    Subtopology,
    Topology,
)
from ottla.protocol.messages.streams_group_topology_description_update import (
    StreamsGroupTopologyDescriptionUpdateRequest,
    StreamsGroupTopologyDescriptionUpdateResponse,
    TopologyDescription,
    TopologyDescriptionNode,
    TopologyDescriptionSubtopology,
)
from ottla.testing.local_cluster import LocalCluster
from ottla.testing.local_node import LocalNode
from tests.support import kafka_libs
from tests.support.java import run_tool
from tests.support.java_driver import JavaDriver, Message
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until
from tests.support.wire import WireClient

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

PROGRAM = Path(__file__).parents[1] / "support" / "java" / "NewestClient.java"
AUTHORIZED: dict[str, str | int | bool] = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    # The member of the streams group sends no further heartbeat.
    "group.streams.session.timeout.ms": 3_600_000,
    "group.streams.max.session.timeout.ms": 3_600_000,
}


def make_streams_group(servers: str, replicas: int) -> None:
    """A group of Kafka Streams, whose 4.4 cannot be had: what its member would send, by hand."""
    address = servers.split(",")[0]
    with WireClient(address) as client:
        source = CreatableTopic(name="streamed", num_partitions=1, replication_factor=replicas)
        created = client.get(
            CreateTopicsRequest(topics=[source], timeout_ms=60_000), 7, CreateTopicsResponse
        ).topics[0]
        assert created.error_code == 0, created
        find = FindCoordinatorRequest(key_type=0, coordinator_keys=["app"])

        def coordinator() -> str | None:
            (found,) = client.get(find, 6, FindCoordinatorResponse).coordinators
            return None if found.error_code else f"{found.host}:{found.port}"

        wait_until(lambda: coordinator() is not None)
        at = coordinator()
        assert at is not None
    topology = Topology(subtopologies=[Subtopology(subtopology_id="0", source_topics=["streamed"])])
    join = StreamsGroupHeartbeatRequest(
        group_id="app",
        member_id="m",
        rebalance_timeout_ms=3_600_000,
        topology=topology,
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
        process_id="p",
    )
    node = TopologyDescriptionNode(name="in", node_type=1, source_topics=["streamed"])
    update = StreamsGroupTopologyDescriptionUpdateRequest(
        group_id="app",
        member_id="m",
        topology_description=TopologyDescription(
            subtopologies=[TopologyDescriptionSubtopology(subtopology_id="0", nodes=[node])]
        ),
    )
    with WireClient(at) as client:
        wait_until(lambda: client.get(join, 1, StreamsGroupHeartbeatResponse).error_code == 0)
        assert client.get(update, 0, StreamsGroupTopologyDescriptionUpdateResponse).error_code == 0


def check_round(servers: str, replicas: int) -> None:
    make_streams_group(servers, replicas)
    printed = run_tool(str(PROGRAM), servers, "newest", str(replicas), bundle=kafka_libs.NEW_CLIENT).out
    lines = printed.splitlines()
    assert lines[:3] == ["classic 200 200", "consumer 200 200", "share 200 200"]
    assert lines[5:8] == [
        "upgrade ok",
        "range ok",
        "unregister ControllerIdNotRegisteredException Controller ID 4711 is not currently registered.",
    ]
    for line, beginning in (
        (lines[3], "range before UnsupportedVersionException CIDR-based ACL host patterns require"),
        (lines[4], "unregister before UnsupportedVersionException The current MetadataVersion is too old"),
        (lines[9], "delete again GroupIdNotFoundException"),
    ):
        assert line.startswith(beginning), lines
    assert lines[8] == "delete ok"
    assert lines[10:] == ["streams sticky AVAILABLE 1"]


def metrics(node: LocalNode) -> str:
    with urllib.request.urlopen(f"{node.http_url}/metrics", timeout=60) as answer:
        text: str = answer.read().decode()
    return text


def test_one_node_serves_all_that_the_client_does() -> None:
    with LocalNode({**AUTHORIZED, "http.listener": "http://127.0.0.1:0"}) as node:
        check_round(node.bootstrap_servers, 1)
        asked = set(re.findall(r'requests_total{request="(\w+)",version="(\d+)"}', metrics(node)))
    assert asked > {
        ("ApiVersions", "5"),
        ("TxnOffsetCommit", "6"),
        ("DeleteGroups", "3"),
        ("StreamsGroupDescribe", "1"),
        ("UnregisterController", "0"),
    }


@pytest.mark.exhaustive
def test_three_nodes_serve_all_that_the_client_does() -> None:
    with LocalCluster(3, settings=AUTHORIZED) as cluster:
        check_round(cluster.bootstrap_servers, 3)


def misrouted(node: LocalNode) -> int:
    """How many connections the node has sent back."""
    name = ErrorCode.REBOOTSTRAP_REQUIRED.name
    found = re.search(
        rf'errors_total{{request="ApiVersions",version="5",error="{name}"}} (\d+)', metrics(node)
    )
    return 0 if found is None else int(found[1])


async def test_a_client_whose_address_is_that_of_another_cluster_starts_again(
    new_java_driver: JavaDriver,
) -> None:
    async with Proxy() as proxy:
        settings = {
            "advertised.listeners": f"PLAINTEXT://{proxy.address}",
            "http.listener": "http://127.0.0.1:0",
        }
        with LocalNode(settings) as first, LocalNode(settings) as second:
            proxy.target = ("127.0.0.1", first.port)
            producer = await asyncio.to_thread(
                new_java_driver.producer,
                proxy.address,
                metadata_cluster_check_enable="true",
                reconnect_backoff_ms="0",
                reconnect_backoff_max_ms="0",
            )
            # A client that finds no broker at all goes to its bootstrap servers without being sent there.
            for number in range(20):
                node = (first, second)[number % 2]
                proxy.target = ("127.0.0.1", node.port)
                proxy.cut_all()
                await asyncio.to_thread(producer.send, [Message("moved", b"%d" % number)])
                found = await asyncio.to_thread(new_java_driver.consume, proxy.address, "moved")
                assert found.records[-1].value == b"%d" % number
                if await asyncio.to_thread(misrouted, node):
                    break
            else:
                raise AssertionError("no node has sent the client back")
            await asyncio.to_thread(producer.close)
