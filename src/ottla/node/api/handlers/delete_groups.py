"""DeleteGroups: delete groups without members, and their offsets.

Version 2 is flexible.
"""

from __future__ import annotations

from collections.abc import Awaitable

from ottla.coordinator.group.requests import DeleteGroup
from ottla.coordinator.runtime.coordinator_runtime import Ticket
from ottla.node.api.context import RequestContext
from ottla.protocol.acl import AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)


def handle(context: RequestContext, request: DeleteGroupsRequest) -> Awaitable[DeleteGroupsResponse]:
    names = list(dict.fromkeys(request.groups_names))
    return _delete([(group_id, _submit(context, group_id)) for group_id in names])


def failure_response(request: DeleteGroupsRequest, code: int, _message: str | None) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=[
            DeletableGroupResult(group_id=group_id, error_code=int(code)) for group_id in request.groups_names
        ]
    )


def _submit(context: RequestContext, group_id: str) -> Ticket[ErrorCode] | None:
    if not context.allowed(AclOperation.DELETE, AclResourceType.GROUP, group_id):
        return None
    return context.broker.coordinators.groups.submit(group_id, DeleteGroup(group_id))


async def _delete(tickets: list[tuple[str, Ticket[ErrorCode] | None]]) -> DeleteGroupsResponse:
    response = DeleteGroupsResponse()
    for group_id, ticket in tickets:
        code = ErrorCode.NONE
        try:
            if ticket is None:
                raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
            await ticket
        except KafkaError as error:
            code = error.code
        response.results.append(DeletableGroupResult(group_id=group_id, error_code=int(code)))
    return response
