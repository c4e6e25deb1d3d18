"""Plain questions to one broker of a cluster: what it answers, with no client that tries again in between."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from ottla import blocking
from ottla.client.admin.partitions import ElectionType
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.messages.produce import (
    ProduceRequest,
    ProduceResponse,
)
from ottla.protocol.names import TopicPartition
from ottla.records.builder import build_batch
from ottla.runtime.clock import SystemClock
from ottla.testing.local_cluster import ClusterNode, LocalCluster, send_request
from tests.support.waiting import wait_until
from tests.support.wire import WireClient, produce_request

PRODUCE_VERSION = 11
LATEST = -1


def create(cluster: LocalCluster, topic: str, assignment: list[list[int]], **configs: str) -> None:
    """Create a topic with replicas on exactly these brokers, each partition led by its first, and wait until
    it is.
    """
    described = CreatableTopic(
        name=topic,
        num_partitions=-1,
        replication_factor=-1,
        assignments=[
            CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
            for index, brokers in enumerate(assignment)
        ],
        configs=[
            CreatableTopicConfig(name=name.replace("_", "."), value=value) for name, value in configs.items()
        ],
    )
    node = cluster.node(assignment[0][0])
    request = CreateTopicsRequest(topics=[described], timeout_ms=40_000)
    answer = send_request(node.port, request, 7, CreateTopicsResponse, timeout_s=60)
    assert [each.error_code for each in answer.topics] == [0], answer
    for index, brokers in enumerate(assignment):
        wait_until(
            partial(_is_led, cluster, topic, index, brokers[0]), f"{topic}-{index} is not led by {brokers[0]}"
        )


def _is_led(cluster: LocalCluster, topic: str, partition: int, wanted: int) -> bool:
    """Whether a broker leads a partition and knows it. It is elected where it was missed for a moment, on a
    busy machine, as the topic was made.
    """
    if cluster.leader(topic, partition) == wanted:
        return end_offset(cluster.node(wanted), topic, partition) is not None
    with blocking.Admin(cluster.bootstrap_servers) as admin:
        admin.partitions.elect_leaders(ElectionType.PREFERRED, [TopicPartition(topic, partition)])
    return False


def wait_for_leader(cluster: LocalCluster, topic: str, *, among: Iterable[int]) -> ClusterNode:
    """Wait until one of these leads partition 0 of a topic and knows it, too: brokers hear of it one after
    the other.
    """
    wanted = set(among)
    found: list[ClusterNode] = []

    def leads() -> bool:
        found[:] = [cluster.node(cluster.leader(topic))]
        return found[0].id in wanted and end_offset(found[0], topic, 0, of_replica=True) is not None

    wait_until(leads, f"none of {wanted} leads {topic}")
    return found[0]


def _request(topic: str, value: bytes, *, acks: int, partition: int, timeout_ms: int) -> ProduceRequest:
    batch = build_batch([(SystemClock().wall_ms(), None, value)])
    return produce_request(topic, batch, partition=partition, acks=acks, timeout_ms=timeout_ms)


def produce(
    node: ClusterNode,
    topic: str,
    value: bytes,
    *,
    acks: int = -1,
    partition: int = 0,
    timeout_ms: int = 30_000,
) -> tuple[ErrorCode, int]:
    """What the broker answers to one record, and the offset that it got."""
    request = _request(topic, value, acks=acks, partition=partition, timeout_ms=timeout_ms)
    answer = send_request(
        node.port, request, PRODUCE_VERSION, ProduceResponse, timeout_s=timeout_ms / 1000 + 30
    )
    (part,) = answer.responses[0].partition_responses
    return ErrorCode.of(part.error_code), part.base_offset


def produce_unheard(node: ClusterNode, topic: str, value: bytes) -> None:
    """Send one record with acks=0, which has no response, and wait until it is in the leader's log."""
    before = end_offset(node, topic, 0, of_replica=True)
    assert before is not None
    with WireClient(node.bootstrap_servers) as wire:
        wire.send(_request(topic, value, acks=0, partition=0, timeout_ms=1_000), PRODUCE_VERSION)
        wait_until(
            lambda: end_offset(node, topic, 0, of_replica=True) == before + 1, "the record did not arrive"
        )


def end_offset(node: ClusterNode, topic: str, partition: int, *, of_replica: bool = False) -> int | None:
    """The end of a partition for consumers, or of the leader's log; None if the broker does not tell."""
    request = ListOffsetsRequest(
        replica_id=99 if of_replica else -1,
        topics=[
            ListOffsetsTopic(
                name=topic, partitions=[ListOffsetsPartition(partition_index=partition, timestamp=LATEST)]
            )
        ],
    )
    answer = send_request(node.port, request, 6, ListOffsetsResponse, timeout_s=30)
    (part,) = answer.topics[0].partitions
    return part.offset if part.error_code == ErrorCode.NONE else None
