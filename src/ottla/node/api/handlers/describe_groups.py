"""DescribeGroups: describe classic groups and their members.

A group that does not exist, or is no classic group, is Dead; from version 6 on its error is
GROUP_ID_NOT_FOUND, with a message.

Version 3 has authorized operations (KIP-430).
Version 4 has static members (KIP-345).
Version 5 is flexible (KIP-482).
Version 6 has the error for missing groups (KIP-1043).
"""

from __future__ import annotations

from typing import Final

from ottla.coordinator.group.requests import DescribeClassicGroup
from ottla.coordinator.runtime.coordinator_runtime import Ticket
from ottla.node.api.context import RequestContext
from ottla.node.api.deduplication import deduplicate_long
from ottla.protocol.acl import AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.describe_groups import (
    DescribedGroup,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from ottla.runtime.turns import Turns

_FIRST_VERSION_WITH_NOT_FOUND: Final = 6


async def handle(context: RequestContext, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
    # All are submitted before any is awaited, so that they are described as of one moment, or nearly.
    turns = Turns(context.broker.runtime.clock)
    tickets = []
    for group_id in deduplicate_long(request.groups):
        tickets.append((group_id, _submit(context, group_id)))
        await turns.pause_if_due()
    return await _describe(context, request, tickets, turns)


def _submit(context: RequestContext, group_id: str) -> Ticket[DescribedGroup] | None:
    if not context.allowed(AclOperation.DESCRIBE, AclResourceType.GROUP, group_id):
        return None
    return context.broker.coordinators.groups.submit(group_id, DescribeClassicGroup(group_id))


async def _describe(
    context: RequestContext,
    request: DescribeGroupsRequest,
    tickets: list[tuple[str, Ticket[DescribedGroup] | None]],
    turns: Turns,
) -> DescribeGroupsResponse:
    response = DescribeGroupsResponse()
    for group_id, ticket in tickets:
        try:
            if ticket is None:
                raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
            group = await ticket
        except KafkaError as error:
            group = _error_group(context, group_id, error)
        if request.include_authorized_operations and not group.error_code:
            group.authorized_operations = context.authorized_operations(AclResourceType.GROUP, group_id)
        response.groups.append(group)
        await turns.pause_if_due()
    return response


def _error_group(context: RequestContext, group_id: str, error: KafkaError) -> DescribedGroup:
    if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
        return DescribedGroup(group_id=group_id, error_code=int(error.code))
    dead = DescribedGroup(group_id=group_id, group_state="Dead")
    if context.version >= _FIRST_VERSION_WITH_NOT_FOUND:
        dead.error_code = int(error.code)
        dead.error_message = error.message
    return dead
