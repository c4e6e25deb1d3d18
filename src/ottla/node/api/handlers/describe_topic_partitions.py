"""DescribeTopicPartitions: list topics and their partitions, page by page, with eligible leader replicas.

Topics are in the order of their names. A response holds at most as many partitions as the request allows and
at most `max.request.partition.size.limit`; where it stops, its cursor names the next partition.
"""

from __future__ import annotations

from collections.abc import Awaitable

from ottla.metadata.image.entities import TopicImage
from ottla.node.api.context import RequestContext
from ottla.node.api.metadata_view import TopicView
from ottla.protocol.acl import AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from ottla.protocol.names import INTERNAL_TOPICS, invalid_topic_name
from ottla.runtime.steps import Steps


def handle(
    context: RequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse | Awaitable[DescribeTopicPartitionsResponse]:
    return context.run_steps(_respond(context, request))


def _respond(
    context: RequestContext, request: DescribeTopicPartitionsRequest
) -> Steps[DescribeTopicPartitionsResponse]:
    image = context.image
    asked: set[str] = set()
    for topic in request.topics:
        asked.add(topic.name)
        yield
    names = sorted(asked or image.topics.by_name)
    first_partition = 0
    cursor = request.cursor
    if cursor is not None:
        if cursor.partition_index < 0:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"DescribeTopicPartitionsRequest cursor partition must be valid: {cursor}",
            )
        if request.topics and cursor.topic_name not in names:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "DescribeTopicPartitionsRequest topic list should contain the cursor topic: "
                f"{cursor.topic_name}",
            )
        names = [name for name in names if name >= cursor.topic_name]
        first_partition = cursor.partition_index
    limit = max(
        1,
        min(request.response_partition_limit, context.config.number("max.request.partition.size.limit")),
    )
    view = TopicView(image, context.listener.name)
    response = DescribeTopicPartitionsResponse()
    for name in names:
        yield
        start = first_partition if cursor is not None and name == cursor.topic_name else 0
        found = image.topics.by_name.get(name)
        if not context.allowed(
            AclOperation.DESCRIBE, AclResourceType.TOPIC, name, log_denied=bool(request.topics)
        ):
            if request.topics:
                response.topics.append(_denied(name))
            continue
        operations = context.authorized_operations(AclResourceType.TOPIC, name)
        if found is None:
            error = (
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if invalid_topic_name(name) is None
                else ErrorCode.INVALID_TOPIC_EXCEPTION
            )
            response.topics.append(_error(name, error, operations))
            continue
        if limit == 0:
            response.next_cursor = Cursor(topic_name=name, partition_index=start)
            break
        indexes = [index for index in sorted(found.partitions) if index >= start]
        response.topics.append(_topic(found, indexes[:limit], view, operations))
        if len(indexes) > limit:
            response.next_cursor = Cursor(topic_name=name, partition_index=indexes[limit])
            break
        limit -= len(indexes)
    return response


def _denied(name: str) -> DescribeTopicPartitionsResponseTopic:
    """Whether the topic exists, and what it is, must not be disclosed."""
    return DescribeTopicPartitionsResponseTopic(name=name, error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED)


def _error(name: str, error: ErrorCode, operations: int) -> DescribeTopicPartitionsResponseTopic:
    return DescribeTopicPartitionsResponseTopic(
        name=name,
        error_code=error,
        is_internal=name in INTERNAL_TOPICS,
        topic_authorized_operations=operations,
    )


def _topic(
    topic: TopicImage, indexes: list[int], view: TopicView, operations: int
) -> DescribeTopicPartitionsResponseTopic:
    partitions = []
    for index in indexes:
        registration = topic.partitions[index]
        seen = view.partition(registration)
        partitions.append(
            DescribeTopicPartitionsResponsePartition(
                error_code=seen.error,
                partition_index=index,
                leader_id=seen.leader,
                leader_epoch=registration.leader_epoch,
                replica_nodes=seen.replicas,
                isr_nodes=seen.isr,
                eligible_leader_replicas=list(registration.elr),
                last_known_elr=list(registration.last_known_elr),
                offline_replicas=seen.offline,
            )
        )
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=partitions,
        topic_authorized_operations=operations,
    )
