"""ConsumerGroupDescribe: describe consumer groups, with the current and target assignments of their members.

Version 1 says which members use the classic protocol (KIP-1099).
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from ottla.coordinator.group.requests import DescribeConsumerGroup
from ottla.node.api.context import RequestContext
from ottla.node.api.described_groups import describe_groups
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)

_DENIED: Final = "The group has described topic(s) that the client is not authorized to describe."


def handle(
    context: RequestContext, request: ConsumerGroupDescribeRequest
) -> Awaitable[ConsumerGroupDescribeResponse]:
    return _describe(describe_groups(context, request, DescribeConsumerGroup, _failed, _topics, _DENIED))


async def _describe(groups: Awaitable[list[DescribedGroup]]) -> ConsumerGroupDescribeResponse:
    return ConsumerGroupDescribeResponse(groups=await groups)


def _failed(group_id: str, error: KafkaError) -> DescribedGroup:
    return DescribedGroup(
        group_id=group_id, error_code=int(error.code), error_message=error.message or error.code.text
    )


def _topics(group: DescribedGroup) -> set[str]:
    return {
        topic.topic_name
        for member in group.members
        for assignment in (member.assignment, member.target_assignment)
        for topic in assignment.topic_partitions
    }
