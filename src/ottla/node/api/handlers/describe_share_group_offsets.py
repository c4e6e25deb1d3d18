"""DescribeShareGroupOffsets: the start offsets of share groups, of given partitions or of all.

Version 1 has the lag (KIP-1226).
"""

from __future__ import annotations

from ottla.node.api.context import RequestContext
from ottla.node.api.group_requests import check_group, check_share_groups
from ottla.protocol.acl import AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)


async def handle(
    context: RequestContext, request: DescribeShareGroupOffsetsRequest
) -> DescribeShareGroupOffsetsResponse:
    response = DescribeShareGroupOffsetsResponse()
    for group in request.groups:
        try:
            check_share_groups(context)
            check_group(context, group.group_id, AclOperation.DESCRIBE)
        except KafkaError as error:
            response.groups.append(
                DescribeShareGroupOffsetsResponseGroup(group_id=group.group_id, error_code=int(error.code))
            )
            continue
        try:
            response.groups.append(await _describe(context, group))
        except KafkaError as error:
            response.groups.append(
                DescribeShareGroupOffsetsResponseGroup(
                    group_id=group.group_id,
                    error_code=int(error.code),
                    error_message=error.message or error.code.text,
                )
            )
    return response


async def _describe(
    context: RequestContext, group: DescribeShareGroupOffsetsRequestGroup
) -> DescribeShareGroupOffsetsResponseGroup:
    shares = context.broker.coordinators.share_groups
    if group.topics is None:
        described = await shares.describe_all_offsets(group.group_id)
        # Topics that the client may not describe are left out.
        described.topics = [topic for topic in described.topics if _may_describe(context, topic.topic_name)]
        return described
    allowed = [topic for topic in group.topics if _may_describe(context, topic.topic_name)]
    described = await shares.describe_offsets(group.group_id, allowed)
    described.topics += [
        _refused(topic) for topic in group.topics if not _may_describe(context, topic.topic_name)
    ]
    return described


def _may_describe(context: RequestContext, topic: str) -> bool:
    return context.allowed(AclOperation.DESCRIBE, AclResourceType.TOPIC, topic)


def _refused(topic: DescribeShareGroupOffsetsRequestTopic) -> DescribeShareGroupOffsetsResponseTopic:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return DescribeShareGroupOffsetsResponseTopic(
        topic_name=topic.topic_name,
        partitions=[
            DescribeShareGroupOffsetsResponsePartition(
                partition_index=partition,
                start_offset=-1,
                error_code=int(code),
                error_message=code.text,
            )
            for partition in topic.partitions
        ],
    )
