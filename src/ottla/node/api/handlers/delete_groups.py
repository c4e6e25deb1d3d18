"""DeleteGroups: delete groups without members, and their offsets; those of a share group are its states.

Version 2 is flexible.
"""

from __future__ import annotations

import asyncio

from ottla.node.api.context import RequestContext
from ottla.protocol.acl import AclOperation, AclResourceType
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)


async def handle(context: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    names = list(dict.fromkeys(request.groups_names))
    codes = await asyncio.gather(*(_delete(context, group_id) for group_id in names))
    return DeleteGroupsResponse(
        results=[
            DeletableGroupResult(group_id=group_id, error_code=int(code))
            for group_id, code in zip(names, codes, strict=True)
        ]
    )


def failure_response(request: DeleteGroupsRequest, code: int, _message: str | None) -> DeleteGroupsResponse:
    return DeleteGroupsResponse(
        results=[
            DeletableGroupResult(group_id=group_id, error_code=int(code)) for group_id in request.groups_names
        ]
    )


async def _delete(context: RequestContext, group_id: str) -> ErrorCode:
    if not context.allowed(AclOperation.DELETE, AclResourceType.GROUP, group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    try:
        await context.broker.coordinators.share_groups.delete_group(group_id)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE
