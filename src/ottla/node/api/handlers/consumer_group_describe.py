"""ConsumerGroupDescribe: describe consumer groups, with the current and target assignments of their members.

Version 1 says which members use the classic protocol.
"""

from __future__ import annotations

from collections.abc import Awaitable

from ottla.coordinator.group.requests import DescribeConsumerGroup
from ottla.coordinator.runtime.coordinator_runtime import Ticket
from ottla.node.api.context import RequestContext
from ottla.node.api.deduplication import deduplicate_long
from ottla.node.api.group_requests import check_group, check_group_id
from ottla.protocol.acl import AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)


def handle(
    context: RequestContext, request: ConsumerGroupDescribeRequest
) -> Awaitable[ConsumerGroupDescribeResponse]:
    tickets = [(group_id, _submit(context, group_id)) for group_id in deduplicate_long(request.group_ids)]
    return _describe(context, request, tickets)


def failure_response(
    request: ConsumerGroupDescribeRequest, code: int, message: str | None
) -> ConsumerGroupDescribeResponse:
    return ConsumerGroupDescribeResponse(
        groups=[
            DescribedGroup(group_id=group_id, error_code=int(code), error_message=message)
            for group_id in request.group_ids
        ]
    )


def _submit(context: RequestContext, group_id: str) -> Ticket[DescribedGroup] | KafkaError:
    try:
        check_group(context, group_id, AclOperation.DESCRIBE)
        check_group_id(group_id)
    except KafkaError as error:
        return error
    return context.broker.coordinators.groups.submit(group_id, DescribeConsumerGroup(group_id))


async def _describe(
    context: RequestContext,
    request: ConsumerGroupDescribeRequest,
    tickets: list[tuple[str, Ticket[DescribedGroup] | KafkaError]],
) -> ConsumerGroupDescribeResponse:
    response = ConsumerGroupDescribeResponse()
    for group_id, ticket in tickets:
        try:
            if isinstance(ticket, KafkaError):
                raise ticket
            group = await ticket
            if not all(_may_describe(context, topic) for topic in _topics(group)):
                raise KafkaError(
                    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                    "The group has described topic(s) that the client is not authorized to describe.",
                )
        except KafkaError as error:
            group = DescribedGroup(
                group_id=group_id, error_code=int(error.code), error_message=error.message or error.code.text
            )
        else:
            if request.include_authorized_operations:
                group.authorized_operations = context.authorized_operations(AclResourceType.GROUP, group_id)
        response.groups.append(group)
    return response


def _topics(group: DescribedGroup) -> set[str]:
    return {
        topic.topic_name
        for member in group.members
        for assignment in (member.assignment, member.target_assignment)
        for topic in assignment.topic_partitions
    }


def _may_describe(context: RequestContext, topic: str) -> bool:
    return context.allowed(AclOperation.DESCRIBE, AclResourceType.TOPIC, topic)
