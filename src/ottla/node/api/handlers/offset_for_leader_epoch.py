"""OffsetForLeaderEpoch: where a leader epoch ends in the log, so that others find out what to truncate.

The answer is the greatest epoch up to the one asked for that this log has, and its end. An epoch that the log
knows nothing of is answered with -1. Version 3 added the id of the replica that asks; 4 is flexible.
"""

from __future__ import annotations

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


def handle(context: RequestContext, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
    anything = context.allowed(AclOperation.CLUSTER_ACTION, AclResourceType.CLUSTER, CLUSTER_NAME)
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    _partition(
                        context,
                        topic.topic,
                        part,
                        allowed=anything
                        or context.allowed(AclOperation.DESCRIBE, AclResourceType.TOPIC, topic.topic),
                    )
                    for part in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


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
