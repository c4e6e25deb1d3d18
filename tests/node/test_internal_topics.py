"""The coordinators' own topics in a cluster that is not complete: as many replicas as configured, or none."""

from __future__ import annotations

from typing import cast

import pytest
from tests.support.loops import simulated
from tests.support.sim_nodes import SimNodes

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from ottla.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from ottla.protocol.schema import Request, Response
from ottla.rpc.channel import InterNodeClient
from ottla.runtime.address import Address
from ottla.runtime.runtime import Runtime

pytestmark = pytest.mark.slow

ROLES = {1: "broker,controller", 2: "broker", 3: "broker"}
TOPICS = ["__consumer_offsets", "__transaction_state", "__share_group_state"]
KEYS = ["group", "transaction", "group:AAAAAAAAAAAAAAAAAAAAAQ:0"]
FEW = {
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
}


async def ask(nodes: SimNodes, id: int, request: Request, version: int) -> Response:
    answers: list[Response] = []

    async def work(runtime: Runtime) -> None:
        channel = InterNodeClient(runtime.network, "test")
        answers.append(await channel.request(Address(f"node{id}", 9092), request, version, timeout_ms=20_000))
        channel.close()

    await nodes.as_client(work)
    return answers[0]


async def find(nodes: SimNodes, kind: int) -> tuple[ErrorCode, int]:
    request = FindCoordinatorRequest(key_type=kind, coordinator_keys=[KEYS[kind]])
    response = cast("FindCoordinatorResponse", await ask(nodes, 1, request, 6))
    (found,) = response.coordinators
    return ErrorCode.of(found.error_code), found.node_id


@pytest.mark.parametrize("kind", range(3))
@simulated(lambda: SimNodes(ROLES, settings=FEW), booted=False)
async def test_while_too_few_brokers_have_ever_registered_there_is_no_coordinator(
    nodes: SimNodes, kind: int
) -> None:
    nodes.boot(1, 2)
    await nodes.ready(1, 2)
    assert await find(nodes, kind) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1)
    assert TOPICS[kind] not in nodes.topics(1)
    warning = "there will be no consumer groups and no transactions and no share groups until as many"
    # Node 1 says so, which is a quorum of one.
    assert sum(warning in line for line in nodes.world.trace.tail(20_000)) == 1
    nodes.boot(3)
    await nodes.ready(3)
    error, coordinator = await find(nodes, kind)
    assert error is ErrorCode.NONE
    partition = nodes.partition(TOPICS[kind], by=1)
    assert sorted(partition.replicas) == [1, 2, 3]
    assert partition.leader == coordinator


@simulated(lambda: SimNodes(ROLES, settings=FEW))
async def test_a_broker_that_is_registered_but_away_gets_its_replica_of_a_coordinators_topic(
    nodes: SimNodes,
) -> None:
    nodes.kill(3)
    await nodes.until(lambda: nodes.is_fenced(3, by=1))
    error, _ = await find(nodes, 0)
    assert error is ErrorCode.NONE
    partition = nodes.partition(TOPICS[0], by=1)
    assert sorted(partition.replicas) == [1, 2, 3]
    assert sorted(partition.isr) == [1, 2]
    nodes.boot(3)
    await nodes.until(lambda: sorted(nodes.partition(TOPICS[0], by=1).isr) == [1, 2, 3])


@simulated(lambda: SimNodes(ROLES, settings={"default.replication.factor": "3"}), booted=False)
async def test_a_topic_that_needs_more_brokers_than_there_are_stays_unknown_so_that_clients_ask_again(
    nodes: SimNodes,
) -> None:
    nodes.boot(1, 2)
    await nodes.ready(1, 2)
    request = MetadataRequest(topics=[MetadataRequestTopic(name="orders")], allow_auto_topic_creation=True)
    response = cast("MetadataResponse", await ask(nodes, 1, request, 12))
    (told,) = response.topics
    assert told.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "orders" not in nodes.topics(1)
