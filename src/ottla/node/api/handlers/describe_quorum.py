"""DescribeQuorum: the leader of the metadata log, its voters and observers, and the progress of each.

Version 1 has the times at which a replica last fetched and was last caught up (KIP-836).
Version 2 has directory ids, addresses and error messages (KIP-853).
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from ottla.node.api.context import ApiRequestContext
from ottla.protocol.acl import AclOperation
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartitionData,
    DescribeQuorumResponseTopicData,
    Listener,
    Node,
    ReplicaState,
)
from ottla.protocol.names import CLUSTER_METADATA_PARTITION
from ottla.raft.driver.kafka_raft_client import QuorumReplicaInfo
from ottla.runtime.steps import Steps

_UNKNOWN: Final = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def handle(
    context: ApiRequestContext, request: DescribeQuorumRequest
) -> DescribeQuorumResponse | Awaitable[DescribeQuorumResponse]:
    context.require_of_cluster(AclOperation.DESCRIBE)
    if not request.topics:
        return DescribeQuorumResponse()
    requested = [
        (topic.topic_name, part.partition_index)
        for topic in request.topics[:2]
        for part in topic.partitions[:2]
    ]
    if requested != [tuple(CLUSTER_METADATA_PARTITION)]:
        return context.run_steps(_unknown(request))
    return _metadata_quorum(context)


def _unknown(request: DescribeQuorumRequest) -> Steps[DescribeQuorumResponse]:
    response = DescribeQuorumResponse()
    for topic in request.topics:
        answer = DescribeQuorumResponseTopicData(topic_name=topic.topic_name)
        response.topics.append(answer)
        for part in topic.partitions:
            answer.partitions.append(
                DescribeQuorumResponsePartitionData(
                    partition_index=part.partition_index,
                    error_code=_UNKNOWN,
                    error_message=_UNKNOWN.text,
                )
            )
            yield
    return response


def _metadata_quorum(context: ApiRequestContext) -> DescribeQuorumResponse:
    log = context.controller.metadata
    info = log.client.describe()
    if info is None:
        raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this node does not lead the quorum")
    with_directories = context.version >= 2
    partition = DescribeQuorumResponsePartitionData(
        partition_index=CLUSTER_METADATA_PARTITION.partition,
        leader_id=info.leader_id,
        leader_epoch=info.epoch,
        high_watermark=info.high_watermark,
        current_voters=[_replica(each, with_directories) for each in info.voters],
        observers=[_replica(each, with_directories) for each in info.observers],
    )
    response = DescribeQuorumResponse(
        topics=[
            DescribeQuorumResponseTopicData(
                topic_name=CLUSTER_METADATA_PARTITION.topic, partitions=[partition]
            )
        ]
    )
    if with_directories:
        response.nodes = [
            Node(
                node_id=voter.key.id,
                listeners=[
                    Listener(name=name, host=address.host, port=address.port)
                    for name, address in voter.endpoints.items()
                ],
            )
            for voter in log.voters.voters.values()
        ]
    return response


def _replica(info: QuorumReplicaInfo, with_directory: bool) -> ReplicaState:
    return ReplicaState(
        replica_id=info.key.id,
        replica_directory_id=info.key.directory_id if with_directory else bytes(16),
        log_end_offset=info.end_offset,
        last_fetch_timestamp=info.last_fetch_ms,
        last_caught_up_timestamp=info.caught_up_ms,
    )
