"""DeleteGroups: delete groups without members, and their offsets; those of a share group are its states.

Version 2 is flexible; 3 says why a group was not deleted.
"""

from __future__ import annotations

import asyncio

from ottla.node.api.context import RequestContext
from ottla.node.api.group_requests import check_group
from ottla.protocol.acl import AclOperation
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)


async def handle(context: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
    names = list(dict.fromkeys(request.groups_names))
    return DeleteGroupsResponse(
        results=await asyncio.gather(*(_delete(context, group_id) for group_id in names))
    )


async def _delete(context: RequestContext, group_id: str) -> DeletableGroupResult:
    try:
        check_group(context, group_id, AclOperation.DELETE)
        await context.broker.coordinators.share_groups.delete_group(group_id)
    except KafkaError as error:
        return DeletableGroupResult(
            group_id=group_id, error_code=int(error.code), error_message=error.message
        )
    return DeletableGroupResult(group_id=group_id)
