"""AlterShareGroupOffsets: have a share group without members begin at other offsets."""

from __future__ import annotations

from ottla.node.api.context import RequestContext
from ottla.node.api.group_requests import check_group, check_group_id, check_share_groups
from ottla.protocol.acl import AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
    AlterShareGroupOffsetsResponsePartition,
    AlterShareGroupOffsetsResponseTopic,
)


async def handle(
    context: RequestContext, request: AlterShareGroupOffsetsRequest
) -> AlterShareGroupOffsetsResponse:
    check_share_groups(context)
    check_group(context, request.group_id)
    accepted: list[AlterShareGroupOffsetsRequestTopic] = []
    refused: list[AlterShareGroupOffsetsResponseTopic] = []
    for topic in request.topics:
        if not context.allowed(AclOperation.READ, AclResourceType.TOPIC, topic.topic_name):
            # With the id, as Apache Kafka answers.
            known = context.image.topics.by_name.get(topic.topic_name)
            answer = _refused(topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            refused.append(answer if known is None else answer.replace(topic_id=known.id))
        elif topic.topic_name not in context.image.topics.by_name:
            refused.append(_refused(topic, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
        else:
            accepted.append(topic)
    check_group_id(request.group_id)
    response = await context.broker.coordinators.share_groups.alter_offsets(request.replace(topics=accepted))
    response.responses += refused
    return response


def _refused(
    topic: AlterShareGroupOffsetsRequestTopic, code: ErrorCode
) -> AlterShareGroupOffsetsResponseTopic:
    return AlterShareGroupOffsetsResponseTopic(
        topic_name=topic.topic_name,
        partitions=[
            AlterShareGroupOffsetsResponsePartition(
                partition_index=each.partition_index, error_code=int(code), error_message=code.text
            )
            for each in topic.partitions
        ],
    )
