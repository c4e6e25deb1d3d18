"""ShareGroupDescribe: describe share groups, with the assignments of their members.

Version 1 is the first stable one (KIP-932).
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from ottla.coordinator.group.requests import DescribeShareGroup
from ottla.node.api.context import RequestContext
from ottla.node.api.described_groups import describe_groups
from ottla.node.api.group_requests import check_share_groups
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.share_group_describe import (
    DescribedGroup,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)

_DENIED: Final = "The group has described topic(s) that the client is not authorized to describe."


def handle(
    context: RequestContext, request: ShareGroupDescribeRequest
) -> Awaitable[ShareGroupDescribeResponse]:
    check_share_groups(context)
    return _describe(describe_groups(context, request, DescribeShareGroup, _failed, _topics, _DENIED))


async def _describe(groups: Awaitable[list[DescribedGroup]]) -> ShareGroupDescribeResponse:
    return ShareGroupDescribeResponse(groups=await groups)


def _failed(group_id: str, error: KafkaError) -> DescribedGroup:
    # As in Kafka, there is no message where the coordinator was not even asked.
    asked = error.code not in (ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.INVALID_GROUP_ID)
    message = (error.message or error.code.text) if asked else None
    return DescribedGroup(group_id=group_id, error_code=int(error.code), error_message=message)


def _topics(group: DescribedGroup) -> dict[str, None]:
    return {
        topic.topic_name: None for member in group.members for topic in member.assignment.topic_partitions
    }
