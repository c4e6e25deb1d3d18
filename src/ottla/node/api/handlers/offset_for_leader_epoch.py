"""OffsetForLeaderEpoch: find the end offset of a leader epoch, to which followers and consumers truncate.

The response has the greatest epoch of the log that is not above the requested one, and its end offset; both
are -1 for an epoch that the log does not have.

Version 3 has the id of the requesting replica (KIP-392).
Version 4 is flexible (KIP-482).
"""

from __future__ import annotations

from collections.abc import Awaitable

from ottla.node.api.context import RequestContext
from ottla.protocol.acl import CLUSTER_NAME, AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from ottla.protocol.names import TopicPartition
from ottla.runtime.steps import Steps


def handle(
    context: RequestContext, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse | Awaitable[OffsetForLeaderEpochResponse]:
    return context.run_steps(_respond(context, request))


def _respond(
    context: RequestContext, request: OffsetForLeaderEpochRequest
) -> Steps[OffsetForLeaderEpochResponse]:
    is_broker = context.allowed(
        AclOperation.CLUSTER_ACTION, AclResourceType.CLUSTER, CLUSTER_NAME, log_denied=False
    )
    response = OffsetForLeaderEpochResponse()
    for topic in request.topics:
        result = OffsetForLeaderTopicResult(topic=topic.topic)
        response.topics.append(result)
        for part in topic.partitions:
            allowed = is_broker or context.allowed(AclOperation.DESCRIBE, AclResourceType.TOPIC, topic.topic)
            result.partitions.append(_partition(context, topic.topic, part, allowed=allowed))
            yield
    return response


def _partition(
    context: RequestContext, topic: str, part: OffsetForLeaderPartition, *, allowed: bool
) -> EpochEndOffset:
    try:
        if not allowed:
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
        partition = context.broker.replicas.partition(TopicPartition(topic, part.partition))
        found = partition.last_offset_for_leader_epoch(
            part.leader_epoch, current_leader_epoch=part.current_leader_epoch
        )
    except KafkaError as error:
        return EpochEndOffset(partition=part.partition, error_code=int(error.code))
    return EpochEndOffset(partition=part.partition, leader_epoch=found.epoch, end_offset=found.end_offset)
